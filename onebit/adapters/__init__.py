"""Learners inside other libraries: `onebit.adapters.river` and `onebit.adapters.coba`."""
