"""The settings of a task as journal, snapshots and model files name them, and what it means when one is not there.

They are *stored* as one JSON object, in which a learner's parameters are an object of their own:

    {"learner": "soba-diag", "n_classes": 10, "n_features": 64, "parameters": {"gamma": 0.05}, "seed": 0,
     "window_ms": 300000, "orphan_ms": 300000, "retain_ms": 3600000, "pending_max": 1000000, "orphans_max": 100000,
     "retained_max": 5000000, "on_expiry": "drop", "late": "ignore", "play": "own", "reward": "exclusive",
     "propensity_min": 0.0}

`features` is there only where contexts have named ones, `class_names` (a list) where classes have names, `model` where
it is not each task's own.

*By name* they are a flat mapping, `parameters.gamma` beside `window_ms`: so they are compared, and named to people.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from stream.joining.join import JoinSettings
from stream.joining.task_settings import TaskSettings
from stream.learners import absent_parameters, registered

PARAMETER = "parameters."
"""What the name of a learner's parameter begins with."""

MODEL_SETTINGS = ("learner", "n_classes", "n_features", "parameters")
"""Those that the state of a learner depends on; an imported model has these alone. All journals have them."""

ABSENT: Mapping[str, Any] = MappingProxyType(
    {
        "seed": 0,
        "window_ms": 300_000,
        "orphan_ms": 300_000,
        "retain_ms": 3_600_000,
        "pending_max": 1_000_000,
        "orphans_max": 100_000,
        "retained_max": 5_000_000,
        "on_expiry": "drop",
        "late": "ignore",
        "play": "own",
        "reward": "exclusive",
        "propensity_min": 0.0,
        "features": None,
        "class_names": None,
        "model": "own",
    }
)
"""What a journal means that lacks a setting: what the version did that wrote it, whatever today's default is.

A new setting gets a line here, with the value that describes what there was before it. For a learner's parameter that
is `Parameter.absent`.
"""

_JOIN_SETTINGS = ("window_ms", "orphan_ms", "retain_ms", "pending_max", "orphans_max", "retained_max")


class UnknownSettingError(ValueError):
    """A stored setting that this version does not have: a later one wrote it."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__(f"{name} = {value!r}")


def stored_settings(settings: TaskSettings) -> dict[str, Any]:
    """All settings, and all of the learner's parameters, as they are stored."""
    join = settings.join
    stored = {
        "learner": settings.learner,
        "n_classes": settings.n_classes,
        "n_features": settings.n_features,
        "parameters": settings.resolved().parameters,
        "seed": settings.seed,
        "window_ms": join.window_ms,
        "orphan_ms": join.orphan_ms,
        "retain_ms": join.retain_ms,
        "pending_max": join.pending_max,
        "orphans_max": join.orphans_max,
        "retained_max": join.retained_max,
        "on_expiry": settings.on_expiry,
        "late": settings.late,
        "play": settings.play,
        "reward": settings.reward,
        "propensity_min": settings.propensity_min,
    }
    names = None if settings.class_names is None else list(settings.class_names)
    optional = {"features": settings.features, "class_names": names}
    shared = {} if settings.model == "own" else {"model": settings.model}
    return stored | shared | {name: value for name, value in optional.items() if value is not None}


def from_format_1(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings as they are today, of those whose window and limits stood in an object `join`."""
    own = {name: value for name, value in stored.items() if name != "join"}
    return {**own, **stored.get("join", {})}


def named(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings by name; parameters that are not there are what they mean then.

    Raises:
        UnknownSettingError: a setting, a parameter or a learner of a later version.
        KeyError: one of MODEL_SETTINGS is not there.
    """
    learner = stored["learner"]
    if learner not in registered():
        raise UnknownSettingError("learner", learner)
    parameters = {**absent_parameters(learner), **stored["parameters"]}
    unknown = {name: value for name, value in stored.items() if name not in MODEL_SETTINGS and name not in ABSENT}
    declared = {parameter.name for parameter in registered()[learner].parameters}
    unknown |= {PARAMETER + name: value for name, value in parameters.items() if name not in declared}
    if unknown:
        raise UnknownSettingError(*min(unknown.items()))
    flat = {name: stored[name] for name in ("learner", "n_classes", "n_features")}
    flat |= {PARAMETER + name: value for name, value in parameters.items()}
    flat |= {name: stored[name] for name in ABSENT if name in stored}
    # Without names none are written; of an imported model, nothing is known about them, and it is a task's own.
    return {"model": "own", **({"features": None, "class_names": None} if "seed" in flat else {}), **flat}


def by_name(settings: TaskSettings) -> dict[str, Any]:
    """The settings of a task by name."""
    return named(stored_settings(settings))


def task_settings(flat: Mapping[str, Any]) -> TaskSettings:
    """The settings of a task from those by name; what is not there means what it does in a journal."""
    values = {**ABSENT, **flat}
    return TaskSettings(
        values["learner"],
        values["n_classes"],
        values["n_features"],
        {name.removeprefix(PARAMETER): value for name, value in values.items() if name.startswith(PARAMETER)},
        values["seed"],
        JoinSettings(**{name: values[name] for name in _JOIN_SETTINGS}),
        values["on_expiry"],
        values["late"],
        values["play"],
        values["reward"],
        values["propensity_min"],
        values["features"],
        None if values["class_names"] is None else tuple(values["class_names"]),
        values["model"],
    )
