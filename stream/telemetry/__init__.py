"""Metrics, liveness and readiness of a running program."""
