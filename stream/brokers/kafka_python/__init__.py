"""Apache Kafka behind the Broker port, by kafka-python."""
