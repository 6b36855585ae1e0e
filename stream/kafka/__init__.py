"""Access to Kafka: the broker interface (port), the embedded broker, and an adapter for each client."""
