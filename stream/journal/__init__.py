"""The journal of a task: record format, commits, recovery, and the settings in force."""
