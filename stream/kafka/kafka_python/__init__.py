"""Apache Kafka behind the Broker port, by kafka-python; the only package that imports that client.

connection   connecting, and errors in the words of the port
security     access to a secured Kafka, and reasons of refusals
admin        topics, offsets, groups
foreign      records that only other clients write
producers    records and transactions out
consumers    records in
membership   consumer groups: rebalances, joins, fencing
broker       all of it as a Broker
"""
