"""Experiments run learners over data, parameters, delays and seeds, and show the results in figures and tables."""
