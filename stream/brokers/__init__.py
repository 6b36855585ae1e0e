"""Brokers: the port, what stands behind it, and time as brokers tell it."""
