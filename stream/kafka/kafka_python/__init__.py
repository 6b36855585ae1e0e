"""The Broker port implemented with kafka-python. Only this package imports that client.

connection   connecting, and error translation
security     access to secured clusters, and reasons for refusals
admin        topics, offsets, groups
foreign      records that only other clients write
producers    writing records and transactions
consumers    reading records
membership   consumer groups: rebalances, joins, fencing
broker       the Broker
"""
