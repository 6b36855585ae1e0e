"""Adapters that let other libraries use Onebit's learners: `onebit.adapters.river` and `onebit.adapters.coba`."""
