"""Values that the shell completes: names of learners, data sets and policies."""

from stream.app.settings import AUTO


def learner_names(incomplete: str) -> list[str]:
    """Return the names of learners that start with the typed text."""
    return _starting(incomplete, *_learners())


def learner_choices(incomplete: str) -> list[str]:
    """Return the values of the setting `learner`, including `auto`, that start with the typed text."""
    return _starting(incomplete, AUTO, *_learners())


def data_names(incomplete: str) -> list[str]:
    """Return the names of data sets that start with the typed text. The shell completes file names."""
    from producers.datasets.catalogue import catalogue

    return _starting(incomplete, *(entry.name for entry in catalogue()))


def policy_names(incomplete: str) -> list[str]:
    """Return the policies of `onebit estimate` that start with the typed text."""
    return _starting(incomplete, "logged", "uniform", "constant:", "model:", *_learners())


def _learners() -> list[str]:
    from stream.learners import registered

    return list(registered())


def _starting(incomplete: str, *names: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


COMPLETED = {"learner": learner_choices, "data": data_names}
"""Completion functions by setting."""
