"""A local Kafka for development, installed from Python packages."""
