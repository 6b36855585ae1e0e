"""Off-policy estimation: the value of other policies, from two passes over a log of decisions."""
