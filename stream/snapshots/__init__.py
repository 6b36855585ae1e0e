"""Snapshots of tasks and of shared models: their content, the chunks that store it, and the schedule."""
