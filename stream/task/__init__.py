"""The join of decisions with feedback, and the pure step of a task."""
