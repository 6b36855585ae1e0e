"""Decisions over HTTP: `onebit serve`."""
