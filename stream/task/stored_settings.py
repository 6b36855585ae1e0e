"""A task's settings in stored form, and their comparison with the user's settings.

Stored settings are one flat object with the fields of `TaskSettings` and `JoinSettings`. The learner's parameters are
named `parameters.NAME`:

    {"learner": "soba-diag", "n_classes": 10, "parameters.gamma": 0.05, "window_ms": 300000, "class_names": null, ...}
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from typing import Any, get_args, get_type_hints

from stream.errors import OnebitError
from stream.settings.model import Change, Stored
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.wire.control import STARTED_FROM, Replaced

PARAMETER = "parameters."
"""Prefix for learner parameters in the names of stored settings."""

_TUPLES = ("class_names", "retired_classes", "retired_features")
"""The settings that are stored as lists."""

ONLY_REQUESTED = {"champion", STARTED_FROM, "retired_classes", "retired_features"}
"""The settings that only requests name, and no user gives when a learner starts."""

READING = ("envelope", "retired_classes", "retired_features")
"""The settings that determine only how contexts and feedback are read."""

JOIN_SETTINGS = tuple(field.name for field in fields(JoinSettings))


def _stored(kind: type) -> dict[str, Stored]:
    """Return how a class's fields are stored, by name. A field without this annotation cannot change."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: next((one for one in get_args(hints[field.name]) if isinstance(one, Stored)), Stored())
        for field in fields(kind)
    }


STORED = _stored(TaskSettings) | _stored(JoinSettings)
"""How each of a task's fields is stored, by name."""

MODEL_SETTINGS = tuple(name for name, stored in STORED.items() if stored.shapes_model)
"""The settings on which a learner's state depends, in addition to the learner's parameters."""

NAMES = ("class_names", "features")
"""The settings that name a model's classes and features. An imported model is stored with those that it has."""

OMITTED = ("actions",)
"""The settings that are stored only if they are not None. Pipelines with classes do not have them."""

CHANGEABLE = frozenset(name for name, stored in STORED.items() if stored.change is Change.FREE)
"""The settings that can change without a change of the model or the pending decisions: windows, limits and policies."""

MOVABLE = frozenset(("seed", "model"))
"""The settings that only `onebit move` changes."""


def stored_settings(settings: TaskSettings) -> dict[str, Any]:
    """Return all settings by name, including all of the learner's parameters."""
    plain = asdict(settings.resolved())
    parameters = {PARAMETER + name: value for name, value in plain.pop("parameters").items()}
    join = plain.pop("join")
    plain = _without_omitted(plain)
    lists = {name: list(plain[name]) for name in _TUPLES if plain[name] is not None}
    return {**plain, **lists, **parameters, **join}


def _without_omitted(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if value is not None or name not in OMITTED}


def differences(before: TaskSettings, after: TaskSettings) -> dict[str, Replaced]:
    """Return the stored settings that differ, by name."""
    if before == after:  # most calls, and faster than a comparison by name
        return {}
    old, new = stored_settings(before), stored_settings(after)
    return {name: Replaced(old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)}


def model_settings(settings: TaskSettings) -> dict[str, Any]:
    """Return the settings on which a learner's state depends. An imported model is stored with these and its names."""
    stored = stored_settings(settings)
    return {name: value for name, value in stored.items() if name in MODEL_SETTINGS or name.startswith(PARAMETER)}


def check_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Check that `stored` has either all of a task's settings or those from `model_settings`, with or without `NAMES`.

    Returns a copy.

    Raises:
        ValueError: settings or parameters are missing or unknown, or the learner is unknown.
        KeyError: the learner is missing.
    """
    names_of = stored_settings if "seed" in stored else model_settings
    expected = names_of(TaskSettings(stored["learner"], 2, 1)).keys()
    if not expected <= stored.keys() <= {*expected, *NAMES, *OMITTED}:
        raise ValueError(f"settings: expected {sorted(expected)}; got {sorted(stored)}")
    return dict(stored)


def restored_settings(stored: Mapping[str, Any]) -> TaskSettings:
    """Convert stored settings to `TaskSettings`; the inverse of `stored_settings`."""
    own = check_settings(stored)
    parameters = {name.removeprefix(PARAMETER): own.pop(name) for name in stored if name.startswith(PARAMETER)}
    join = JoinSettings(**{name: own.pop(name) for name in JOIN_SETTINGS})
    own |= {name: tuple(own[name]) for name in _TUPLES if own[name] is not None}
    return TaskSettings(**own, parameters=parameters, join=join)


Given = Collection[str] | None
"""Names of the settings that the user set. Learner parameters are named `parameters.NAME`. None means all settings
except those that only requests name."""

_REMEDY = "use the pipeline's settings"


class SettingsDifferError(OnebitError):
    """The user's settings differ from the pipeline's settings.

    `differences` contains the pipeline's value (`old`) and the user's value (`new`) of each differing setting, by name.
    """

    def __init__(self, place: str, differences: Mapping[str, Replaced], remedy: str) -> None:
        self.differences = differences
        shown = ", ".join(f"{name} = {_shown(one.old)}; got {_shown(one.new)}" for name, one in differences.items())
        super().__init__(f"{place} has {shown}: {remedy}")

    @property
    def can_change(self) -> bool:
        """Whether `onebit change` can change all of the settings."""
        return all(name.startswith(PARAMETER) or STORED[name].change is not Change.REFUSED for name in self.differences)

    @property
    def prevents_import(self) -> bool:
        """Whether a new pipeline with the user's values would reject this pipeline's model."""
        return any(
            name in MODEL_SETTINGS or name.startswith(PARAMETER) or (name in NAMES and one.old is not None)
            for name, one in self.differences.items()
        )


def resolve(stored: Mapping[str, Any], requested: TaskSettings, given: Given = None, *, place: str) -> TaskSettings:
    """Return the pipeline's settings, completed with the user's if the pipeline has not stored all of them.

    Args:
        stored: the pipeline's settings, keyed by name. These are all settings, only an imported model's settings, or
            none.
        requested: the user's settings and the current defaults. A default applies only to a setting missing from
            `stored`.
        given: names of the settings that the user set.
        place: the topic and partition of the pipeline's settings, for messages.

    Raises:
        SettingsDifferError: one of the user's settings differs from the pipeline's.
    """
    if stored:
        stored = {**dict.fromkeys(OMITTED), **stored}
    values = {**dict.fromkeys(OMITTED), **stored_settings(requested)}
    parameters = {name for name in values if name.startswith(PARAMETER)}
    if given is None:
        given = values.keys() - parameters - ONLY_REQUESTED | {PARAMETER + name for name in requested.parameters}
    elif stored and "learner" not in given:  # keep the pipeline's learner and drop other learners' parameters
        for name in parameters - {*given, *stored}:
            del values[name]
    chosen = {name: value for name, value in values.items() if name in given}
    differing = {
        name: Replaced(stored.get(name), value)
        for name, value in chosen.items()
        if stored and stored.get(name) != value and (name in stored or name in parameters)
    }
    if "learner" in differing:  # the parameters differ only because they belong to a different learner
        differing = {"learner": differing["learner"]}
    if differing:
        raise SettingsDifferError(place, differing, _REMEDY)
    return restored_settings(_without_omitted({**values, **stored, **chosen}))


def _shown(value: object) -> str:
    """Format a value for a message. Long values, such as vocabularies, are shortened."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
