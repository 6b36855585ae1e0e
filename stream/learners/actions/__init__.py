"""Learners that decide among actions with features, and their parts.

A class of these learners is a place in the context's list of actions. x contains the context's features, followed by
one block per place: the action's id as a number, and the action's features.

    x = context [c], then for each place k < K: id_k, action_k [a]        d = c + K (1 + a)
"""
