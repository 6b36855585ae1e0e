"""The settings of a task by name: the form in which they are stored, compared and displayed.

A flat object contains the fields of `TaskSettings` and of its `JoinSettings`, and the learner's parameters as
`parameters.NAME`:

    {"learner": "soba-diag", "n_classes": 10, "parameters.gamma": 0.05, "window_ms": 300000, "class_names": null, ...}
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings

PARAMETER = "parameters."
"""The prefix of a parameter's name."""

JOIN_SETTINGS = tuple(field.name for field in fields(JoinSettings))


def stored_settings(settings: TaskSettings) -> dict[str, Any]:
    """All settings by name, with all of the learner's parameters."""
    plain = asdict(settings.resolved())
    parameters = {PARAMETER + name: value for name, value in plain.pop("parameters").items()}
    join, names = plain.pop("join"), plain["class_names"]
    return {**plain, "class_names": None if names is None else list(names), **parameters, **join}


def model_settings(settings: TaskSettings) -> dict[str, Any]:
    """The settings on which a learner's state depends; an imported model has only these."""
    stored, of_model = stored_settings(settings), ("learner", "n_classes", "n_features")
    return {name: value for name, value in stored.items() if name in of_model or name.startswith(PARAMETER)}


def check_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Check that these are all settings of a task, or those of `model_settings`, and return them.

    Raises:
        ValueError: settings or parameters are missing or unknown, or the learner is unknown.
        KeyError: the learner is missing.
    """
    names_of = stored_settings if "seed" in stored else model_settings
    expected = names_of(TaskSettings(stored["learner"], 2, 1)).keys()
    if stored.keys() != expected:
        raise ValueError(f"settings: expected {sorted(expected)}; got {sorted(stored)}")
    return dict(stored)


def task_settings(stored: Mapping[str, Any]) -> TaskSettings:
    """The inverse of `stored_settings`."""
    own = check_settings(stored)
    parameters = {name.removeprefix(PARAMETER): own.pop(name) for name in stored if name.startswith(PARAMETER)}
    join = JoinSettings(**{name: own.pop(name) for name in JOIN_SETTINGS})
    names = own.pop("class_names")
    class_names = None if names is None else tuple(names)
    return TaskSettings(**own, parameters=parameters, join=join, class_names=class_names)
