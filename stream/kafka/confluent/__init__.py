"""Apache Kafka behind the Broker port, by confluent-kafka (librdkafka); the only package that imports that client.

connection   properties, access, and error translation
headers      header names that the client cannot read
bounded      timeouts for calls that may never return
producers    writing records and transactions
consumers    reading records
membership   consumer groups: rebalances, losses, fencing
broker       the Broker
"""
