"""Simulated feedback: its program, which sends late bits, and the loop that runs it on Kafka."""
