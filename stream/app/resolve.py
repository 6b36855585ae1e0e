"""A run: settings and data, resolved once, with its learner and about how long that takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from producers.datasets.base import Dataset
from producers.feedback import FeedbackOptions
from producers.replay import ReplayOptions
from stream.app.plan import (
    check_play,
    class_names_of,
    dataset_of,
    dataset_of_seed,
    events_of,
    feedback_plan,
    feedback_speed,
    replay_options,
    shortest_delay_ms,
)
from stream.app.process import announce, announced_when_slow, warn
from stream.app.setting_values import variable_of
from stream.app.settings import AUTO, Settings, SettingsError
from stream.learners import check_parameters, registered
from stream.learners.auto import choose, defaults_for
from stream.randomness.delays import FeedbackPlan
from stream.reporting.tables import duration
from stream.task.play import Play
from stream.task.settings import TaskSettings
from stream.wire.named_features import NamedFeaturesError, from_plain, to_plain
from stream.wire.topics import Topics

FLOPS_PER_S = 2e9
"""Of one core in a compiled kernel. Factorisations of 3,600 x 3,600 do 1.8 to 3.2e9; it tells minutes from hours."""

SLOW_S = 0.1
"""From so much an event on people are told."""

STEP_S = 0.5
"""A step of a slow learner takes as many records as take about so long: progress is shown, and the group is polled."""

ROWS_SAMPLED = 1_000


def event_s(task: TaskSettings, nnz: int) -> float:
    """About how long one decision with its update takes.

    >>> from stream.learners import check_parameters
    >>> task = TaskSettings("newtron", 9, 400, check_parameters("newtron", {}))
    >>> 10 < event_s(task, 25) < 40
    True
    """
    cost = registered()[task.learner].cost(task.n_classes, task.n_features, nnz, task.parameters)
    return cost.flops_per_event / FLOPS_PER_S


PIPELINE_S = 1e-4
"""What the rest of an embedded run takes for an event: topics, join, ledger; as learners that cost little show."""


def run_s(task: TaskSettings, nnz: int, events: int) -> float:
    """About how long an embedded run takes."""
    return events * (PIPELINE_S + event_s(task, nnz))


def mean_nnz_of(dataset: Dataset) -> float:
    """How many entries of a row are not zero, on average over the first ones."""
    rows = min(dataset.rows, ROWS_SAMPLED)
    return int(dataset.block(0, rows).offsets[-1]) / rows


def nnz_of(dataset: Dataset) -> int:
    """About how many entries of a row are not zero."""
    return int(mean_nnz_of(dataset))


def slow_warning(task: TaskSettings, nnz: int, events: int | None = None) -> str:
    """What to tell before a slow learner begins; nothing for others. Events: how many come, where that is known."""
    one_s = event_s(task, nnz)
    if one_s < SLOW_S:
        return ""
    cls = registered()[task.learner]
    total = "" if events is None else f", and {events:,} of them some {duration(one_s * events)}"
    instead = f"; faster: {cls.instead}" if cls.instead else ""
    return (
        f"{task.learner} with {task.n_classes} classes and {task.n_features} features: an update takes some "
        f"{duration(one_s)}{total}{instead}"
    )


def records_max(task: TaskSettings, nnz: int, most: int) -> int:
    """How many records a step takes at most."""
    return max(1, min(most, int(STEP_S / max(event_s(task, nnz), 1e-9))))


def with_chosen(settings: Settings, n_classes: int, n_features: int, mean_nnz: float | None) -> tuple[Settings, str]:
    """Settings with a learner in the place of auto, and why that one; nothing to say where auto is not asked for.

    A late-ucb that is named gets no random features where the data are known to be sparse, as auto gives it none.

    Args:
        settings: those of the user; what they give for the learner wins.
        n_classes: of the data.
        n_features: of the data.
        mean_nnz: non-zeros of a context on average; None when the data are not known beforehand.
    """
    learners, chosen, why = settings.learner, [], ""
    if AUTO in learners:
        choice = choose(n_classes, n_features, mean_nnz, correctable=settings.late == "correct")
        learners = [choice.learner if name == AUTO else name for name in learners]
        chosen = [f"{choice.learner}.{name}={value}" for name, value in choice.parameters.items()]
        why = f"the learner is {choice.learner}: {choice.why}"
    named = [
        f"{learner}.{name}={value}"
        for learner in dict.fromkeys(settings.learner)
        for name, value in defaults_for(learner, n_features, mean_nnz).items()
    ]
    if learners == settings.learner and not named:
        return settings, why
    of_auto = dict(zip(settings.learner, learners, strict=True)).get(AUTO, AUTO)
    given = [text.replace(f"{AUTO}.", f"{of_auto}.", 1) for text in settings.param]
    return settings.model_copy(update={"learner": learners, "param": named + chosen + given}), why


def parameters_of(settings: Settings, learner: str) -> dict[str, Any]:
    """The parameters of one of the learners, checked, with its defaults under the policy for late feedback.

    Raises:
        SettingsError: a parameter that is not NAME=VALUE, or that none of the learners has.
    """
    given: dict[str, str] = {}
    for text in settings.param:
        name, equals, value = text.partition("=")
        scope, dot, scoped_name = name.rpartition(".")
        if not equals or not scoped_name:
            raise SettingsError(f"--param {text!r}: expected NAME=VALUE or LEARNER.NAME=VALUE")
        if dot and scope not in settings.learner:
            raise SettingsError(f"--param {text!r}: {scope!r} is not among the learners {', '.join(settings.learner)}")
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
    """All that one learner's state depends on beside its inputs."""
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
    )


def named_features(settings: Settings) -> dict[str, Any] | None:
    """Which index each named feature has, as it is stored; None: contexts have no named ones.

    Raises:
        SettingsError: the file cannot be used.
    """
    if settings.features is None:
        return None
    try:
        return to_plain(from_plain(orjson.loads(settings.features.read_bytes())))
    except (OSError, orjson.JSONDecodeError, NamedFeaturesError) as error:
        raise SettingsError(
            f"--features {settings.features}: expected a file that `onebit data show --save-features` wrote; {error}"
        ) from error


def n_features_of(settings: Settings) -> int | None:
    """The number of features that is given, or that named features have."""
    features = named_features(settings) if settings.n_features is None else None
    return settings.n_features if features is None else from_plain(features).n_features


def compile_kernels(task: TaskSettings) -> None:
    """Compile the learner before the first event; a notice says so if it takes long."""
    from stream.learners.kernels import CACHE_DIRECTORY  # here: it loads numba

    cache = (
        "cached for later runs" if CACHE_DIRECTORY else "not cached: no writable cache directory. Set NUMBA_CACHE_DIR"
    )
    with announced_when_slow(f"{task.learner}: compiling its kernels, {cache}"):
        task.warm_up()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The settings of a run as its report shows them."""

    settings: Mapping[str, object]  # by name, and the command
    changed: tuple[str, ...]  # the names of those that differ from their defaults


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
    shortest_delay_ms: int  # of the feedback, but for a thousandth
    is_estimated: bool  # the report says what the learner's own decisions would have earned
    origin: Origin


def resolve_run(settings: Settings, learner: str, dataset: Dataset, command: str = "", name: str | None = None) -> Run:
    """Resolve the run of one of the learners.

    Args:
        settings: all settings, with a learner in the place of auto.
        learner: the learner of this run.
        dataset: the data set of the settings.
        command: the command line, for the report.
        name: what the run is called; the learner by default.

    Raises:
        SettingsError: settings contradict each other, or the data.
    """
    return Run(
        name=learner if name is None else name,
        dataset=dataset,
        events=events_of(settings.replay, dataset),
        task=task_settings(settings, learner, dataset.n_classes, dataset.n_features, class_names_of(dataset)),
        topics=settings.topics,
        partitions=settings.partitions,
        replay=replay_options(settings.replay, dataset),
        plan=feedback_plan(settings.feedback, dataset),
        feedback=FeedbackOptions(
            with_label=registered()[learner].needs_label or settings.with_label, speed=feedback_speed(settings.feedback)
        ),
        shortest_delay_ms=shortest_delay_ms(settings.feedback, dataset),
        is_estimated=settings.estimate,
        origin=Origin(settings=settings.shown() | {"command": command}, changed=settings.changed()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Settings whose learners are chosen and checked, and their data."""

    settings: Settings
    dataset: Dataset
    seconds: tuple[float, ...]  # that a run of each learner takes, about

    def runs(self, command: str = "", seeds: int = 1) -> list[Run]:
        """The runs of each learner with N consecutive seeds."""
        first = self.settings.seed
        found = []
        for learner in self.settings.learner:
            for seed in range(first, first + seeds):
                settings = self.settings.model_copy(update={"seed": seed})
                dataset = dataset_of_seed(self.settings.source, seed, self.dataset)
                name = f"{learner}, seed {seed}" if seeds > 1 else learner
                found.append(resolve_run(settings, learner, dataset, command, name))
        return found


def choose_learners(settings: Settings) -> Chosen:
    """Load the data, choose a learner for auto, and check every learner before the first one runs.

    Raises:
        SettingsError: settings contradict each other, or the data.
        ParameterError: a learner, or a parameter of it, is unknown.
    """
    if settings.loop:
        raise SettingsError(f"{variable_of('loop')}, or loop in a file: a run comes to an end; leave it out")
    dataset = dataset_of(settings.source)
    check_play(settings.play, dataset)
    check_estimate(settings.play, is_asked=settings.estimate)
    settings, why = with_chosen(settings, dataset.n_classes, dataset.n_features, mean_nnz_of(dataset))
    if why:
        announce(why)
    nnz, events = nnz_of(dataset), events_of(settings.replay, dataset)
    seconds = []
    for name in settings.learner:
        task = task_settings(settings, name, dataset.n_classes, dataset.n_features, class_names_of(dataset))
        task.make_learner()
        seconds.append(run_s(task, nnz, events))
        if slow := slow_warning(task, nnz, events):
            warn(slow)
    return Chosen(settings=settings, dataset=dataset, seconds=tuple(seconds))


def check_estimate(play: Play, *, is_asked: bool) -> None:
    """See that there is something to judge.

    Raises:
        SettingsError: the learner plays its own decisions.
    """
    if is_asked and play != "logged":
        raise SettingsError(
            f"--estimate judges what the learner would have done where a log's decisions are played, and --play {play} "
            "plays its own: what they earn is counted as it is. Leave --estimate out, or play those of a log: --play "
            "logged"
        )
