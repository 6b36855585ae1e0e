"""Experiments: run learners with combinations of data, parameters, delays and seeds; draw figures and tables."""
