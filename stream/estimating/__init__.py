"""Off-policy estimation of the values of other policies, in two passes over a log of decisions."""
