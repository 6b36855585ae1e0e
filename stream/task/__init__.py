"""The join of decisions with feedback, and the pure function that computes a task's step."""
