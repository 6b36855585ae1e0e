"""Measures of a run: error rates, latencies and delays."""
