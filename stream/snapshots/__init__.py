"""Snapshots of a task and of a shared model: state, chunks, and their schedule."""
