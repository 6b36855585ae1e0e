"""Resolves the user's settings into a task's settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from stream.learners import check_parameters, registered, sparse_defaults
from stream.learners.auto import choose, choose_for_actions
from stream.settings.definitions import AUTO, LearnerSettings, Settings, SettingsError
from stream.settings.task_fields import Play, allows_any_right, shared_values
from stream.task.frozen import MODEL, Frozen
from stream.task.settings import TaskSettings
from stream.text import read_bytes
from stream.wire.actions import CONTEXT, ActionBlocks
from stream.wire.named_features import ACTIONS, Kind, NamedFeaturesError, from_plain, to_plain


def with_chosen(
    settings: Settings, n_classes: int, n_features: int, mean_nnz: float | None, blocks: ActionBlocks | None = None
) -> tuple[Settings, str]:
    """Replace the learner `auto`. Return the settings and the reason for the choice (empty if `auto` was not used).

    If the data are known to be sparse, late-ucb does not use random features, even if the user selected late-ucb.

    Args:
        settings: The user's settings. Parameters that the user set take precedence.
        n_classes: Number of classes.
        n_features: Number of features.
        mean_nnz: Mean number of non-zeros per context; None if unknown.
        blocks: The layout of x if contexts have actions.
    """
    learners, chosen, why = settings.learner, [], ""
    if AUTO in learners:
        is_correctable = settings.late == "correct"
        if blocks is None:
            choice = choose(n_classes, n_features, mean_nnz, correctable=is_correctable)
        else:
            is_hashed = any(map(_has_words, (named_features(settings), named_action_features(settings))))
            choice = choose_for_actions(blocks, mean_nnz, is_hashed=is_hashed, correctable=is_correctable)
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


def _has_words(features: Mapping[str, Any] | None) -> bool:
    """Return whether any named features are hashed or are text."""
    if features is None:
        return False
    encoder = from_plain(features)
    return encoder.hash_bits is not None or any(one.kind is Kind.TEXT for one in encoder.names.values())


def parameters_of(settings: Settings, learner: str, blocks: ActionBlocks | None = None) -> dict[str, Any]:
    """Check and return a learner's parameters. Some defaults depend on the settings `late`, `reward` and `rewards`.

    Raises:
        SettingsError: a parameter does not have the form NAME=VALUE, or is for a learner that is not selected.
    """
    given: dict[str, str] = {}
    if blocks is not None and learner in registered() and registered()[learner].for_actions:
        given[CONTEXT] = str(blocks.context)
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
    settings: Settings,
    learner: str,
    n_classes: int,
    n_features: int,
    class_names: tuple[str, ...] | None = None,
    blocks: ActionBlocks | None = None,
) -> TaskSettings:
    """Return a task's settings. Together with the inputs, they determine the learner's state."""
    return TaskSettings(
        learner,
        n_classes,
        n_features,
        parameters_of(settings, learner, blocks),
        join=settings.join,
        features=named_features(settings),
        class_names=class_names,
        model=settings.model_of(settings.partitions),
        holdout_policy=holdout_policy(settings),
        challengers=challengers_of(settings),
        open_classes=settings.classes_max is not None,
        actions=None if blocks is None else {"context": blocks.context, "features": named_action_features(settings)},
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
    encoding = encoding_of(settings)
    return None if encoding is None else {name: value for name, value in encoding.items() if name != ACTIONS}


def named_action_features(settings: LearnerSettings) -> dict[str, Any] | None:
    """Return the stored mapping of actions' feature names to indices, or None if they have no names.

    It is the member `actions` in the file of named features.

    Raises:
        SettingsError: the file is invalid.
    """
    found: dict[str, Any] | None = (encoding_of(settings) or {}).get(ACTIONS)
    return found


def encoding_of(settings: LearnerSettings) -> dict[str, Any] | None:
    """Return the content of the file of named features, or None if there is none; see `encoding_in`."""
    return None if settings.features is None else encoding_in(settings.features)


def encoding_in(path: Path) -> dict[str, Any]:
    """Return the content of a file of named features, with a member for those of actions, if it has one.

    Raises:
        SettingsError: the file is invalid.
    """
    try:
        content = orjson.loads(read_bytes(path))
        encoding = to_plain(from_plain(content))
        if content.get(ACTIONS) is not None:
            encoding[ACTIONS] = to_plain(from_plain(content[ACTIONS]))
    except (OSError, orjson.JSONDecodeError, NamedFeaturesError) as error:
        expected = "a file from `onebit data show --save-features`"
        raise SettingsError(f"--features {path}: expected {expected}; {error}") from error
    return encoding


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


def blocks_of(settings: Settings) -> ActionBlocks | None:
    """Return the layout of contexts with actions, or None if the user did not set the number of actions.

    Raises:
        SettingsError: a number of features is missing or contradicts the file of named features, or x would have too
            many features.
    """
    named = named_action_features(settings)
    if settings.actions_max is None:
        for flag, given in (("--action-features", settings.action_features), ("--features", named)):
            if given is not None:
                raise SettingsError(f"{flag}: features of actions also require --actions-max")
        return None
    given = settings.action_features
    size = given if named is None else from_plain(named).n_features
    if size is None:
        raise SettingsError(
            f"--actions-max {settings.actions_max}: expected --action-features N, or --features FILE with a member "
            "`actions`; got none"
        )
    if given not in (None, size):
        raise SettingsError(
            f"--action-features {given}: expected {size}, as in {settings.features}. Omit --action-features"
        )
    context = n_features_of(settings)
    if context is None:
        raise SettingsError(
            f"--actions-max {settings.actions_max}: contexts also require --n-features or --features. If they have no "
            "features, set --n-features 1, and send contexts without `x`"
        )
    blocks = ActionBlocks(settings.actions_max, context, size)
    try:
        blocks.check()
    except ValueError as error:
        raise SettingsError(f"--actions-max {settings.actions_max}: {error}") from error
    return blocks


def n_features_of(settings: Settings) -> int | None:
    """Return the number of features that the user set, or the number of named features of a context."""
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
