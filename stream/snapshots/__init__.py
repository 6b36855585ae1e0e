"""Snapshots of a task and of a shared model: state, chunks, and how a topic is searched for them."""
