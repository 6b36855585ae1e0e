"""Learners that take first-order steps from one bit."""
