"""A task's journal and snapshots: formats, commits, recovery, and the settings in force."""
