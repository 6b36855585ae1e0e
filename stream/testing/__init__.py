"""Pipelines for testing services, on a real Kafka or in virtual time; see docs/testing.md."""
