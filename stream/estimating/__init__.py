"""Off-policy estimation: the values of other policies, from two passes over a log of decisions."""
