"""A running program's metrics, liveness and readiness."""
