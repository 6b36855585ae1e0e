"""Baselines that learn from the true class."""
