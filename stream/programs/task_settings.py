"""Resolves the user's settings into a task's settings."""

from pathlib import Path
from typing import Any

import orjson

from stream.learners import check_parameters, registered, sparse_defaults
from stream.learners.auto import choose
from stream.settings.definitions import AUTO, LearnerSettings, Settings, SettingsError
from stream.settings.task_fields import Play, allows_any_right, shared_values
from stream.task.frozen import MODEL, Frozen
from stream.task.settings import TaskSettings
from stream.text import read_bytes
from stream.wire.named_features import NamedFeaturesError, from_plain, to_plain


def with_chosen(settings: Settings, n_classes: int, n_features: int, mean_nnz: float | None) -> tuple[Settings, str]:
    """Replace the learner `auto`. Return the settings and the reason for the choice (empty if `auto` was not used).

    If the data are known to be sparse, late-ucb does not use random features, even if the user selected late-ucb.

    Args:
        settings: The user's settings. Parameters that the user set take precedence.
        n_classes: Number of classes.
        n_features: Number of features.
        mean_nnz: Mean number of non-zeros per context; None if unknown.
    """
    learners, chosen, why = settings.learner, [], ""
    if AUTO in learners:
        choice = choose(n_classes, n_features, mean_nnz, correctable=settings.late == "correct")
        learners = [choice.learner if name == AUTO else name for name in learners]
        chosen = [f"{choice.learner}.{name}={value}" for name, value in choice.parameters.items()]
        why = f"learner {choice.learner}: {choice.why}"
    named = [
        f"{learner}.{name}={value}"
        for learner in dict.fromkeys(settings.learner)
        for name, value in sparse_defaults(learner, n_features, mean_nnz).items()
    ]
    if learners == settings.learner and not named:
        return settings, why
    of_auto = dict(zip(settings.learner, learners, strict=True)).get(AUTO, AUTO)
    given = [text.replace(f"{AUTO}.", f"{of_auto}.", 1) for text in settings.param]
    return settings.model_copy(update={"learner": learners, "param": named + chosen + given}), why


def parameters_of(settings: Settings, learner: str) -> dict[str, Any]:
    """Check and return a learner's parameters. Some defaults depend on the settings `late`, `reward` and `rewards`.

    Raises:
        SettingsError: a parameter does not have the form NAME=VALUE, or is for a learner that is not selected.
    """
    given: dict[str, str] = {}
    for text in settings.param:
        scope, scoped_name, value = parameter_of(text)
        if scope and scope not in settings.learner:
            raise SettingsError(
                f"--param {text!r}: expected one of the learners {', '.join(settings.learner)}; got {scope!r}"
            )
        if scope and scope != learner:
            continue
        owners = [other for other in settings.learner if other in registered() and _has(other, scoped_name)]
        if scope or learner in owners or not owners:
            given[scoped_name] = value
    any_right = allows_any_right(settings.reward, settings.rewards)
    return check_parameters(learner, given, correctable=settings.late == "correct", any_right=any_right)


def parameter_of(text: str) -> tuple[str, str, str]:
    """Return the learner (empty if not given), the name and the value of a --param.

    Raises:
        SettingsError: the text does not have the form NAME=VALUE or LEARNER.NAME=VALUE.
    """
    name, equals, value = text.partition("=")
    scope, _, scoped_name = name.rpartition(".")
    if not equals or not scoped_name:
        raise SettingsError(f"--param {text!r}: expected NAME=VALUE or LEARNER.NAME=VALUE")
    return scope, scoped_name, value


def _has(learner: str, parameter: str) -> bool:
    return any(declared.name == parameter for declared in registered()[learner].parameters)


def task_settings(
    settings: Settings, learner: str, n_classes: int, n_features: int, class_names: tuple[str, ...] | None = None
) -> TaskSettings:
    """Return a task's settings. Together with the inputs, they determine the learner's state."""
    return TaskSettings(
        learner,
        n_classes,
        n_features,
        parameters_of(settings, learner),
        join=settings.join,
        features=named_features(settings),
        class_names=class_names,
        model=settings.model_of(settings.partitions),
        holdout_policy=holdout_policy(settings),
        challengers=challengers_of(settings),
        open_classes=settings.classes_max is not None,
        **{**shared_values(settings), "scale": "none"},  # a data set is scaled when it is read
    )


def challengers_of(settings: LearnerSettings) -> dict[str, dict[str, str]]:
    """Return the parameters that the user set for each challenger.

    Raises:
        SettingsError: a challenger appears twice, or a parameter does not have the form NAME=VALUE.
    """
    found: dict[str, dict[str, str]] = {}
    for text in settings.challenger:
        _, colon, listed = text.partition(":")
        pairs = [pair.partition("=") for pair in listed.split(",") if colon]
        if text in found or not all(name and equals for name, equals, _ in pairs):
            raise SettingsError(
                f"--challenger: expected distinct NAMEs or NAME:PARAM=VALUE,...; got {', '.join(settings.challenger)}"
            )
        found[text] = {name: value for name, _, value in pairs}
    return found


def named_features(settings: LearnerSettings) -> dict[str, Any] | None:
    """Return the stored mapping of feature names to indices, or None if there are no named features.

    Raises:
        SettingsError: the file is invalid.
    """
    if settings.features is None:
        return None
    try:
        return to_plain(from_plain(orjson.loads(read_bytes(settings.features))))
    except (OSError, orjson.JSONDecodeError, NamedFeaturesError) as error:
        raise SettingsError(
            f"--features {settings.features}: expected a file from `onebit data show --save-features`; {error}"
        ) from error


def holdout_policy(settings: LearnerSettings) -> str:
    """Return the holdout's policy in its stored form. For `model:FILE`, the stored form contains the model.

    Raises:
        SettingsError: the file is not a model, or the model is too large.
    """
    if not settings.holdout_policy.startswith(MODEL):
        return settings.holdout_policy
    from stream.recovery.model_files import ModelError, identity, read_model  # deferred: few commands read a model

    try:
        model = read_model(Path(settings.holdout_policy.removeprefix(MODEL)))
        return Frozen.of_learner(identity(model.meta), model.learner(), **model.names).to_text()
    except (ModelError, ValueError) as error:
        raise SettingsError(f"--holdout-policy {settings.holdout_policy}: {error}") from error


def n_features_of(settings: Settings) -> int | None:
    """Return the number of features that the user set, or the number of named features."""
    features = named_features(settings) if settings.n_features is None else None
    return settings.n_features if features is None else from_plain(features).n_features


def check_estimate(play: Play, *, is_asked: bool) -> None:
    """Check that an estimate is possible.

    Raises:
        SettingsError: the learner plays its own actions.
    """
    if is_asked and play != "logged":
        raise SettingsError(
            f"--estimate requires --play logged; got --play {play}, which reports the learner's actual reward"
        )
