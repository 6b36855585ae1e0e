"""Checks of a pipeline from its topics alone, and export of past models."""
