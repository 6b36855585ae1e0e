"""Learners that decide among actions with features, and their parts.

To these learners, a class is a place in the context's list of actions. `stream.wire.actions` describes x, which
contains the context's features and a block for each place.
"""
