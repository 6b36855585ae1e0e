"""Experiments: learners over data, parameters, delays and seeds, in the compiled loop; figures and tables of them."""
