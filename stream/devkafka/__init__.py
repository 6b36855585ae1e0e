"""A local Kafka broker for development, installed from Python packages."""
