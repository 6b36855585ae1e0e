"""Pipelines for testing services, on a Kafka broker or in virtual time; see docs/testing.md."""
