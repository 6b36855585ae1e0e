"""The Broker interface implemented with confluent-kafka (librdkafka). Only this package imports that client.

connection   properties, access, error translation, and timeouts for calls that may never return
headers      header names that the client cannot read or send
producers    writing records and transactions
consumers    reading records
membership   consumer groups: rebalances, lost partitions, fencing
broker       the implementation of Broker
"""
