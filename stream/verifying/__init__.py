"""Checks a pipeline using only its topics, and exports past models."""
