"""The join of decisions with feedback, and a task's step as a pure function."""
