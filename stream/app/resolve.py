"""Resolve settings and data into runs, with estimates of their duration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from producers.datasets.base import Dataset
from producers.datasets.scaling import uneven_of
from producers.feedback import FeedbackOptions
from producers.replay import ReplayOptions
from stream.app.plan import (
    check_play,
    dataset_of,
    dataset_of_seed,
    events_of,
    feedback_plan,
    feedback_speed,
    replay_options,
    shortest_delay_ms,
    uneven_warning,
)
from stream.app.process import announce, announced_when_slow, warn
from stream.app.setting_values import variable_of
from stream.app.settings import AUTO, LearnerSettings, Settings, SettingsError
from stream.learners import check_parameters, registered, sparse_defaults
from stream.learners.auto import choose
from stream.randomness.delays import FeedbackPlan
from stream.reporting.tables import duration
from stream.task.frozen import MODEL, Frozen
from stream.task.play import Play
from stream.task.settings import TaskSettings
from stream.wire.named_features import NamedFeaturesError, from_plain, to_plain
from stream.wire.records import Features
from stream.wire.topics import Topics

FLOPS_PER_S = 2e9
"""Assumed speed of one core running a compiled kernel, in operations per second. Factorisations of 3,600 x 3,600
matrices reach 1.8e9 to 3.2e9."""

SLOW_S = 0.1
"""Time per event above which a warning is logged."""

STEP_S = 0.5
"""Approximate maximum duration of a step. Between steps, the learner reports progress and polls the group."""

ROWS_SAMPLED = 1_000


def event_s(task: TaskSettings, nnz: int) -> float:
    """Estimate the time in seconds for one decision and its update.

    >>> from stream.learners import check_parameters
    >>> task = TaskSettings("newtron", 9, 400, check_parameters("newtron", {}))
    >>> 10 < event_s(task, 25) < 40
    True
    """
    cost = registered()[task.learner].cost(task.n_classes, task.n_features, nnz, task.parameters)
    return cost.flops_per_event / FLOPS_PER_S


PIPELINE_S = 1e-4
"""Time per event that an embedded run spends on the topics, the join and the ledger, excluding the learner itself."""


def run_s(task: TaskSettings, nnz: int, events: int) -> float:
    """Estimate an embedded run's duration in seconds."""
    return events * (PIPELINE_S + event_s(task, nnz))


def mean_nnz_of(dataset: Dataset) -> float:
    """Return the mean number of non-zeros per row, computed from the first rows."""
    rows = min(dataset.rows, ROWS_SAMPLED)
    return int(dataset.block(0, rows).offsets[-1]) / rows


def nnz_of(dataset: Dataset) -> int:
    """Return the approximate number of non-zeros per row."""
    return int(mean_nnz_of(dataset))


def slow_warning(task: TaskSettings, nnz: int, events: int | None = None) -> str:
    """Return a warning if the learner is slow, otherwise an empty string. `events` is None if unknown."""
    one_s = event_s(task, nnz)
    if one_s < SLOW_S:
        return ""
    cls = registered()[task.learner]
    total = "" if events is None else f", {events:,} events about {duration(one_s * events)}"
    instead = f"; faster: {cls.instead}" if cls.instead else ""
    return (
        f"{task.learner} with {task.n_classes} classes and {task.n_features} features: an update takes about "
        f"{duration(one_s)}{total}{instead}"
    )


def exploration_notice(task: TaskSettings) -> str:
    """Return a notice if there is too little exploration to evaluate other policies, otherwise an empty string."""
    if task.challengers and not task.floor:
        return (
            f"challengers cannot learn about classes that {task.learner} never plays. The estimate for a challenger "
            "that chooses such a class is too low. To explore, start a pipeline with --floor 0.05"
        )
    decision = task.make_learner().predict(Features(np.zeros(1, np.int32), np.ones(1)), 0.5)
    if decision.propensity < 1.0 or task.play == "logged":
        return ""
    return (
        f"{task.learner} does not explore: the propensity is 1, and no other policy can be evaluated from the "
        "decisions. To explore, start a pipeline with --floor 0.05"
    )


def records_max(task: TaskSettings, nnz: int, most: int) -> int:
    """Return the maximum number of records in a step."""
    return max(1, min(most, int(STEP_S / max(event_s(task, nnz), 1e-9))))


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
    """Check and return a learner's parameters. Some defaults depend on the settings `late` and `reward`.

    Raises:
        SettingsError: a parameter does not have the form NAME=VALUE, or is for a learner that is not selected.
    """
    given: dict[str, str] = {}
    for text in settings.param:
        name, equals, value = text.partition("=")
        scope, dot, scoped_name = name.rpartition(".")
        if not equals or not scoped_name:
            raise SettingsError(f"--param {text!r}: expected NAME=VALUE or LEARNER.NAME=VALUE")
        if dot and scope not in settings.learner:
            raise SettingsError(
                f"--param {text!r}: expected one of the learners {', '.join(settings.learner)}; got {scope!r}"
            )
        if dot and scope != learner:
            continue
        owners = [other for other in settings.learner if other in registered() and _has(other, scoped_name)]
        if dot or learner in owners or not owners:
            given[scoped_name] = value
    return check_parameters(learner, given, correctable=settings.late == "correct", any_right=settings.reward == "any")


def _has(learner: str, parameter: str) -> bool:
    return any(declared.name == parameter for declared in registered()[learner].parameters)


def task_settings(
    settings: Settings, learner: str, n_classes: int, n_features: int, class_names: tuple[str, ...] | None = None
) -> TaskSettings:
    """Return a task's settings. Together with the inputs, they determine the learner's state."""
    return TaskSettings(
        learner=learner,
        n_classes=n_classes,
        n_features=n_features,
        parameters=parameters_of(settings, learner),
        seed=settings.seed,
        join=settings.join,
        on_expiry=settings.on_expiry,
        late=settings.late,
        play=settings.play,
        reward=settings.reward,
        propensity_min=settings.propensity_min,
        features=named_features(settings),
        class_names=class_names,
        model=settings.model_of(settings.partitions),
        floor=settings.floor,
        holdout=settings.holdout,
        holdout_policy=holdout_policy(settings),
        challengers=challengers_of(settings),
        open_classes=settings.classes_max is not None,
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
        return to_plain(from_plain(orjson.loads(settings.features.read_bytes())))
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
    from stream.verifying.model_files import ModelError, identity, read_model  # deferred: few commands read a model

    try:
        model = read_model(Path(settings.holdout_policy.removeprefix(MODEL)))
        of_pipeline = model.meta.get("settings", {})
        names, features = of_pipeline.get("class_names"), of_pipeline.get("features")
        return Frozen.of_learner(identity(model.meta), model.learner(), names, features).to_text()
    except (ModelError, ValueError) as error:
        raise SettingsError(f"--holdout-policy {settings.holdout_policy}: {error}") from error


def n_features_of(settings: Settings) -> int | None:
    """Return the number of features that the user set, or the number of named features."""
    features = named_features(settings) if settings.n_features is None else None
    return settings.n_features if features is None else from_plain(features).n_features


def compile_kernels(task: TaskSettings) -> None:
    """Compile the learner's kernels before the first event. Log a notice if compilation is slow."""
    from stream.learners.kernels import CACHE_DIRECTORY  # deferred: loads numba

    what = (
        f"compiling its kernels, or loading them from {CACHE_DIRECTORY}"
        if CACHE_DIRECTORY
        else "compiling its kernels, which are not cached: no cache directory is writable. Set NUMBA_CACHE_DIR"
    )
    with announced_when_slow(f"{task.learner}: {what}"):
        task.warm_up()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One learner on one stream of events."""

    name: str  # for progress and messages
    dataset: Dataset
    events: int
    task: TaskSettings
    topics: Topics
    partitions: int
    replay: ReplayOptions
    plan: FeedbackPlan
    feedback: FeedbackOptions
    shortest_delay_ms: int  # at most a thousandth of the feedback has a delay shorter than this
    is_estimated: bool  # whether the report contains an estimate of the learner's own policy
    settings: Mapping[str, object]  # settings by name, and the command, for the report
    changed: tuple[str, ...]  # names of the settings that differ from their defaults, for the report


def resolve_run(settings: Settings, learner: str, dataset: Dataset, command: str = "", name: str | None = None) -> Run:
    """Resolve the settings into one learner's run.

    Args:
        settings: All settings, with the learner `auto` already replaced.
        learner: The learner for this run.
        dataset: The data set that the settings select.
        command: The command line, for the report.
        name: The run's name; the learner by default.

    Raises:
        SettingsError: settings contradict each other, or do not match the data.
    """
    return Run(
        name=learner if name is None else name,
        dataset=dataset,
        events=events_of(settings, dataset),
        task=task_settings(settings, learner, dataset.n_classes, dataset.n_features, dataset.named_classes()),
        topics=settings.topics,
        partitions=settings.partitions,
        replay=replay_options(settings, dataset, settings.partitions),
        plan=feedback_plan(settings, dataset),
        feedback=FeedbackOptions(
            with_label=registered()[learner].needs_label or settings.with_label, speed=feedback_speed(settings)
        ),
        shortest_delay_ms=shortest_delay_ms(settings, dataset),
        is_estimated=settings.estimate,
        settings=settings.shown() | {"command": command},
        changed=settings.changed(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The data set, and the settings after their learners have been chosen and checked."""

    settings: Settings
    dataset: Dataset
    seconds: tuple[float, ...]  # estimated duration of each learner's run

    def runs(self, command: str = "", seeds: int = 1) -> list[Run]:
        """Return the runs for each learner, with N consecutive seeds."""
        first = self.settings.seed
        found = []
        for learner in self.settings.learner:
            for seed in range(first, first + seeds):
                settings = self.settings.model_copy(update={"seed": seed})
                dataset = dataset_of_seed(self.settings, seed, self.dataset)
                name = f"{learner}, seed {seed}" if seeds > 1 else learner
                found.append(resolve_run(settings, learner, dataset, command, name))
        return found


def choose_learners(settings: Settings) -> Chosen:
    """Load the data, choose a learner for `auto`, and check every learner before the first one runs.

    Raises:
        SettingsError: settings contradict each other, or do not match the data.
        ParameterError: a learner or a parameter is unknown.
    """
    if settings.loop:
        raise SettingsError(f"a run cannot loop. Remove {variable_of('loop')}, or `loop` in the settings file")
    dataset = dataset_of(settings)
    if uneven := uneven_warning(uneven_of(dataset)):
        warn(uneven)
    check_estimate(settings.play, is_asked=settings.estimate)
    check_play(settings.play, dataset)
    settings, why = with_chosen(settings, dataset.n_classes, dataset.n_features, mean_nnz_of(dataset))
    if why:
        announce(why)
    nnz, events, is_among_eligible = nnz_of(dataset), events_of(settings, dataset), dataset.has_eligible()
    seconds = []
    for name in settings.learner:
        task = task_settings(settings, name, dataset.n_classes, dataset.n_features, dataset.named_classes())
        task.make_learner()  # reject invalid settings
        if is_among_eligible:
            task.check_eligible()
        seconds.append(run_s(task, nnz, events))
        if slow := slow_warning(task, nnz, events):
            warn(slow)
        if task.challengers and (notice := exploration_notice(task)):
            announce(notice)
    return Chosen(settings=settings, dataset=dataset, seconds=tuple(seconds))


def check_estimate(play: Play, *, is_asked: bool) -> None:
    """Check that an estimate is possible.

    Raises:
        SettingsError: the learner plays its own actions.
    """
    if is_asked and play != "logged":
        raise SettingsError(
            f"--estimate requires --play logged; got --play {play}, which reports the learner's actual reward"
        )
