"""Kafka: the port, the embedded broker, and an adapter for each client."""
