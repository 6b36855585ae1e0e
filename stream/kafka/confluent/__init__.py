"""Apache Kafka behind the Broker port, by confluent-kafka (librdkafka); the only package that imports that client.

connection   properties, access, and errors in the words of the port
headers      names of headers that the client cannot read
bounded      calls that may never return
producers    records and transactions out
consumers    records in
membership   consumer groups: rebalances, losses, fencing
broker       all of it as a Broker
"""
