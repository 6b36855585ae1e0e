"""A task's journal: record format, commits, recovery, and the settings in force."""
