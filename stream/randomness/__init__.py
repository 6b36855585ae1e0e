"""Draws from a seed and an event id, and the laws of delay that use them."""
