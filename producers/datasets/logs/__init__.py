"""Readers for decision logs: CSV, JSON lines, Parquet, and the formats of Vowpal Wabbit."""
