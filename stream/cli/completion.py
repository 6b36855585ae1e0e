"""Values that the shell completes: names of learners, data sets and policies."""

from stream.app.settings import AUTO


def learner_names(incomplete: str) -> list[str]:
    """The learners whose names start with the typed text."""
    return _starting(incomplete, *_learners())


def learner_choices(incomplete: str) -> list[str]:
    """The values of the setting `learner` that start with the typed text: the learners and `auto`."""
    return _starting(incomplete, AUTO, *_learners())


def data_names(incomplete: str) -> list[str]:
    """The data sets whose names start with the typed text; the shell adds files."""
    from producers.datasets.catalogue import catalogue

    return _starting(incomplete, *(entry.name for entry in catalogue()))


def policy_names(incomplete: str) -> list[str]:
    """The policies of `onebit estimate` that start with the typed text."""
    return _starting(incomplete, "logged", "uniform", "constant:", "model:", *_learners())


def _learners() -> list[str]:
    from stream.learners import registered

    return list(registered())


def _starting(incomplete: str, *names: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


COMPLETED = {"learner": learner_choices, "data": data_names}
"""Settings whose values are completed."""
