"""Use cases of the commands. Each receives settings, returns a report and prints nothing."""
