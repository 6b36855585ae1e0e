"""Runs experiments over data sets, learners, parameters, delays and seeds, and draws figures and tables."""
