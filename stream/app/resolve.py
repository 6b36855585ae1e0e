"""A run: settings and data, resolved once, with all that a use case needs to make it."""

from collections.abc import Mapping
from dataclasses import dataclass

from producers.datasets.base import Dataset
from producers.feedback import FeedbackOptions
from producers.replay import ReplayOptions
from stream.app import cost
from stream.app.datasets import check_play, class_names_of, dataset_of, dataset_of_seed
from stream.app.live_estimates import check_estimate
from stream.app.notices import announce, warn
from stream.app.plan import events_of, feedback_plan, feedback_speed, replay_options, shortest_delay_ms
from stream.app.settings import Settings
from stream.app.tasks import task_settings, with_chosen
from stream.app.topics import topics_of
from stream.learners import registered
from stream.randomness.delays import FeedbackPlan
from stream.task.settings import TaskSettings
from stream.wire.topics import Topics


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
        topics=topics_of(settings),
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
    dataset = dataset_of(settings.source)
    check_play(settings.play, dataset)
    check_estimate(settings.play, is_asked=settings.estimate)
    settings, why = with_chosen(settings, dataset.n_classes, dataset.n_features, cost.mean_nnz_of(dataset))
    if why:
        announce(why)
    nnz, events = cost.nnz_of(dataset), events_of(settings.replay, dataset)
    seconds = []
    for name in settings.learner:
        task = task_settings(settings, name, dataset.n_classes, dataset.n_features, class_names_of(dataset))
        task.make_learner()
        seconds.append(cost.run_s(task, nnz, events))
        if slow := cost.warning(task, nnz, events):
            warn(slow)
    return Chosen(settings=settings, dataset=dataset, seconds=tuple(seconds))
