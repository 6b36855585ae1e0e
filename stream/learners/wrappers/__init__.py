"""Learners that wrap another learner: running scale, mixture with fixed policies, and challenger."""
