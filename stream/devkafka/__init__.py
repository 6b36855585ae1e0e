"""A local Kafka for development, from Python packages."""
