"""The settings that a user asks of a pipeline: once it has begun, only those that were given."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stream.app.plan import class_names_of, dataset_of
from stream.app.resolve import mean_nnz_of, n_features_of, task_settings, with_chosen
from stream.app.setting_values import flag_of, setting_name
from stream.app.settings import AUTO, Settings, SettingsError
from stream.journal.resolve import SettingsDifferError, resolve
from stream.journal.stored_settings import PARAMETER
from stream.task.settings import Sharing, TaskSettings

STORED_NAMES = {
    "learner": "learner",
    "n_classes": "n_classes",
    "n_features": "n_features",
    "seed": "seed",
    "window_ms": "window_ms",
    "orphan_window_ms": "orphan_ms",
    "retain_ms": "retain_ms",
    "pending_max": "pending_max",
    "orphans_max": "orphans_max",
    "retained_max": "retained_max",
    "on_expiry": "on_expiry",
    "late": "late",
    "play": "play",
    "reward": "reward",
    "propensity_min": "propensity_min",
    "features": "features",
    "data": "class_names",
    "model": "model",
}
"""The fields of `Settings` that are settings of a task, and how the journal names them."""


class Wanted(NamedTuple):
    """The settings of a learner's tasks."""

    task: TaskSettings  # those of a task that has not begun
    nnz: int  # about how many entries of its contexts are not zero
    given: frozenset[str]  # the names, as the journal has them, of those that all tasks must have


def given_names(settings: Settings) -> frozenset[str]:
    """The names, as the journal has them, of the settings that a flag, a variable or the file gave.

    A data set gives the numbers of classes and features, and what the classes are called.
    """
    names = {STORED_NAMES[field] for field in settings.given & STORED_NAMES.keys()}
    if settings.learner == [AUTO]:
        names.discard("learner")
    if settings.model == AUTO:
        names.discard("model")
    names |= {PARAMETER + text.partition("=")[0].rpartition(".")[2] for text in settings.param}
    return frozenset(names | {"n_classes", "n_features"} if "data" in settings.given else names)


def wanted_settings(
    settings: Settings, begun: Mapping[str, Any], place: str, model: Sharing = "own", *, change: bool = False
) -> Wanted:
    """The settings of a learner, in a pipeline that has some, by name, or none yet.

    Args:
        settings: of the user.
        begun: what the pipeline has; nothing where it has not begun.
        place: where that stands, for messages.
        model: whose model decides where it has not begun and none is given, see `Settings.model_of`.
        change: whether given ones that differ are to hold from now on, where they may change.

    Raises:
        SettingsDifferError: given ones differ from the pipeline's; see `resolve`.
        SettingsError: a parameter cannot be read.
        ParameterError: the learner does not have it.
    """
    given = given_names(settings)
    if settings.model == AUTO:
        settings = settings.model_copy(update={"model": model})
    n_classes, n_features, mean_nnz, class_names = _sizes(settings, begun)
    if begun and "learner" not in given:
        own, learner = settings.model_copy(update={"learner": [begun["learner"]]}), begun["learner"]
    else:
        is_known = settings.n_classes is None  # of a service's own contexts only the sizes are
        own, _ = with_chosen(settings, n_classes, n_features, mean_nnz if is_known else None)
        learner = own.learner[0]
    task = task_settings(own, learner, n_classes, n_features, class_names)
    return Wanted(resolve(begun, task, given, change=change, place=place), int(mean_nnz), given)


class _Sizes(NamedTuple):
    """The numbers of classes and of features, of non-zero entries on average; and what a log calls its classes."""

    n_classes: int
    n_features: int
    mean_nnz: float
    class_names: tuple[str, ...] | None = None


def _sizes(settings: Settings, begun: Mapping[str, Any]) -> _Sizes:
    """Those that are given, the pipeline's, or the data set's."""
    n_classes, n_features = settings.n_classes, n_features_of(settings)
    if begun and "data" not in settings.given:
        n_classes, n_features = n_classes or begun["n_classes"], n_features or begun["n_features"]
    if n_classes is None or n_features is None:
        dataset = dataset_of(settings.source)
        return _Sizes(dataset.n_classes, dataset.n_features, mean_nnz_of(dataset), class_names_of(dataset))
    return _Sizes(n_classes, n_features, n_features)


def with_hint(error: SettingsDifferError, *, change: bool) -> SettingsError:
    """The same error with the flag that helps, if one does."""
    if change or not error.can_change:
        return SettingsError(str(error))
    flags = {stored: flag_of(setting_name(field)) for field, stored in STORED_NAMES.items()}
    named = ", ".join(flags[difference.name] for difference in error.differences)
    return SettingsError(f"{error}; or let {named} change from the next step on: --change-settings")
