"""Runs of the whole pipeline, embedded or on Kafka."""
