"""The Broker port implemented with confluent-kafka (librdkafka). Only this package imports that client.

connection   properties, access, and error translation
headers      header names that the client cannot read
bounded      timeouts for calls that may never return
producers    writing records and transactions
consumers    reading records
membership   consumer groups: rebalances, losses, fencing
broker       the Broker
"""
