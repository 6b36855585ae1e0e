"""Checks a pipeline from its topics alone, and exports past models."""
