"""Data sets for replay: synthetic data, svmlight files, logs, and the included data."""
