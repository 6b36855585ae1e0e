"""Resolves settings and data into runs: one learner on one stream of events."""

from collections.abc import Mapping
from dataclasses import dataclass

from producers.data import check_play, dataset_of, dataset_of_seed, mean_nnz_of, nnz_of, uneven_warning
from producers.datasets.base import Dataset
from producers.datasets.scaling import uneven_of
from producers.feedback.plan import feedback_plan, feedback_speed, shortest_delay_ms
from producers.feedback.program import FeedbackOptions
from producers.replay.options import ReplayOptions, events_of, replay_options
from stream.learners import registered
from stream.programs.costs import exploration_notice, run_s, slow_warning
from stream.programs.process import announce, warn
from stream.programs.task_settings import check_estimate, task_settings, with_chosen
from stream.randomness.delays import FeedbackPlan
from stream.settings.definitions import Settings, SettingsError
from stream.settings.values import variable_of
from stream.task.settings import TaskSettings
from stream.wire.topics import Topics


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
