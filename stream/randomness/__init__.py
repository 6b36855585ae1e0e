"""Random draws from a seed and an event id, and delay distributions."""
