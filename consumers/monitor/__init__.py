"""The monitor: the state of a live pipeline, and its page."""
