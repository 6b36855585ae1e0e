"""The settings of a task as journal, snapshots and model files name them.

They are *stored* as one JSON object with every field of `TaskSettings` and of its `JoinSettings`, and all of the
learner's parameters:

    {"learner": "soba-diag", "n_classes": 10, "n_features": 64, "parameters": {"gamma": 0.05}, "seed": 0,
     "on_expiry": "drop", ..., "class_names": null, "model": "own", "window_ms": 300000, ...}

*By name* they are a flat mapping with `parameters.gamma` beside `window_ms`, in which settings are compared and shown.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from typing import Any

from stream.learners import registered
from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings

PARAMETER = "parameters."
"""The prefix of the name of a learner's parameter."""

MODEL_SETTINGS = ("learner", "n_classes", "n_features", "parameters")
"""Those that the state of a learner depends on; an imported model has these alone."""

JOIN_SETTINGS = tuple(field.name for field in fields(JoinSettings))
TASK_SETTINGS = tuple(field.name for field in fields(TaskSettings) if field.name != "join")


def stored_settings(settings: TaskSettings) -> dict[str, Any]:
    """All settings, and all of the learner's parameters, as they are stored."""
    own = {name: getattr(settings.resolved(), name) for name in TASK_SETTINGS}
    names = settings.class_names
    return {**own, "class_names": None if names is None else list(names), **asdict(settings.join)}


def named(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings by name: all of a task, or MODEL_SETTINGS.

    Raises:
        ValueError: settings or parameters are missing or unknown.
        KeyError: the learner is unknown.
    """
    _check_names("settings", stored, (*TASK_SETTINGS, *JOIN_SETTINGS) if "seed" in stored else MODEL_SETTINGS)
    parameters = stored["parameters"]
    _check_names("parameters", parameters, [declared.name for declared in registered()[stored["learner"]].parameters])
    flat: dict[str, Any] = {}
    for name, value in stored.items():
        flat |= {PARAMETER + key: one for key, one in parameters.items()} if name == "parameters" else {name: value}
    return flat


def by_name(settings: TaskSettings) -> dict[str, Any]:
    """The settings of a task by name."""
    return named(stored_settings(settings))


def task_settings(flat: Mapping[str, Any]) -> TaskSettings:
    """The settings of a task from all of them by name."""
    parameters = {name.removeprefix(PARAMETER): value for name, value in flat.items() if name.startswith(PARAMETER)}
    own = {name: flat[name] for name in TASK_SETTINGS if name != "parameters"}
    names = own.pop("class_names")
    return TaskSettings(
        **own,
        parameters=parameters,
        class_names=None if names is None else tuple(names),
        join=JoinSettings(**{name: flat[name] for name in JOIN_SETTINGS}),
    )


def _check_names(what: str, found: Mapping[str, Any], expected: Collection[str]) -> None:
    if found.keys() != set(expected):
        raise ValueError(f"{what}: expected {sorted(expected)}; got {sorted(found)}")
