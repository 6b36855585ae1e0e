"""Apache Kafka behind the Broker port, by confluent-kafka (librdkafka); the only package that imports that client.

connection   connecting, asking, and errors in the words of the port
security     coming in at a secured Kafka, and hearing what is not allowed
admin        topics, offsets, groups
headers      names of headers that the client cannot tell
producers    records and transactions out
consumers    records in
membership   consumer groups: rebalances, losses, fencing
broker       all of it as a Broker
"""
