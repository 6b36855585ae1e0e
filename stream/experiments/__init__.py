"""Experiments: learners run over data, parameters, delays and seeds, with figures and tables of the results."""
