"""Learners designed for bits that arrive late, and their parts."""
