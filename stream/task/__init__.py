"""The join of decisions and feedback, and the pure step of a task."""
