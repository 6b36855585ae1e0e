"""Learners from "Bandit Multiclass Classification" (the Notes)."""
