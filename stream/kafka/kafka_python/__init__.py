"""The Broker interface implemented with kafka-python. Only this package imports that client.

connection   connections and error translation
security     TLS and SASL settings, and explanations of denied connections
admin        topics, offsets, groups
foreign      records that kafka-python itself cannot read or write
producers    writing records and transactions
consumers    reading records
membership   consumer groups: rebalances, joins, fencing
broker       the implementation of Broker
"""
