"""The journal of a task: its format, the numbered commit, recovery, and the settings in force."""
