"""Access to Kafka: the Broker interface, the embedded broker, and an adapter for each Kafka client."""
