"""Logs of decisions and outcomes, read as streams: CSV, JSONL, Parquet, and the formats of Vowpal Wabbit."""
