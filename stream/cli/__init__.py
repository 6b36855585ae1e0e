"""The command line: the composition root, and the only place that prints and sets exit codes."""
