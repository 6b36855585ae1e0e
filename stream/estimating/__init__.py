"""What another policy would have earned, from logged decisions: off-policy estimates, in two readings of the log."""
