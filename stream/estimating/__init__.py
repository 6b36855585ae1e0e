"""Off-policy estimation: estimates the values of other policies in two passes over a log of decisions."""
