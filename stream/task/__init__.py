"""The join of decisions with feedback, and the step of a task as a pure function."""
