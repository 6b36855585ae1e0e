"""Resolves settings and data into runs: one learner on one stream of events."""

from collections.abc import Mapping
from dataclasses import dataclass

from producers.data import (
    InMemory,
    check_play,
    check_rewards,
    dataset_of,
    dataset_of_seed,
    mean_nnz_of,
    nnz_of,
    uneven_warning,
)
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
from stream.wire.rewards import BITS, RewardRange
from stream.wire.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One learner on one stream of events."""

    name: str  # for progress and messages
    given: Settings  # the settings from which the run was resolved
    command: str  # the command line, for the report
    dataset: Dataset
    nnz: int  # approximate number of non-zeros per row
    events: int
    task: TaskSettings
    replay: ReplayOptions
    plan: FeedbackPlan
    feedback: FeedbackOptions
    shortest_delay_ms: int  # at most a thousandth of the feedback has a delay shorter than this

    @property
    def topics(self) -> Topics:
        """The run's topics."""
        return self.given.topics

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.given.partitions

    @property
    def shown_range(self) -> RewardRange | None:
        """The range of the rewards if the report shows mean rewards, or None if it shows errors.

        Errors require a right class. Actions have none, even if their rewards are bits.
        """
        return BITS if self.dataset.blocks is not None and self.task.graded is None else self.task.graded

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings by name, and the command, for the report."""
        return self.given.shown() | {"command": self.command}

    @property
    def estimated_s(self) -> float:
        """The estimated duration of an embedded run."""
        return run_s(self.task, self.nnz, self.events)


def plan_runs(settings: Settings, command: str = "", seeds: int = 1, memory: InMemory | None = None) -> list[Run]:
    """Load the data, choose a learner for `auto`, and return the runs for each learner, with N consecutive seeds.

    Every learner is checked before the first run.

    Raises:
        SettingsError: settings contradict each other, or do not match the data.
        ParameterError: a learner or a parameter is unknown.
    """
    if settings.loop:
        raise SettingsError(f"a run cannot loop. Remove {variable_of('loop')}, or `loop` in the settings file")
    dataset = dataset_of(settings, memory)
    if uneven := uneven_warning(uneven_of(dataset)):
        warn(uneven)
    check_estimate(settings.play, is_asked=settings.estimate)
    check_play(settings.play, dataset)
    check_rewards(settings, dataset)
    settings, why = with_chosen(settings, dataset.n_classes, dataset.n_features, mean_nnz_of(dataset), dataset.blocks)
    if why:
        announce(why)
    runs = []
    for learner in settings.learner:
        check_run(first := resolve_run(settings, learner, dataset, command))
        for seed in range(settings.seed, settings.seed + seeds):
            own = settings.model_copy(update={"seed": seed})
            data = dataset_of_seed(settings, seed, dataset)
            named = f"{learner}, seed {seed}"
            runs.append(first if seeds == 1 else resolve_run(own, learner, data, command, named))
    return runs


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
        given=settings,
        command=command,
        dataset=dataset,
        nnz=nnz_of(dataset),
        events=events_of(settings, dataset),
        task=task_settings(
            settings, learner, dataset.n_classes, dataset.n_features, dataset.named_classes(), dataset.blocks
        ),
        replay=replay_options(settings, dataset, settings.partitions),
        plan=feedback_plan(settings, dataset),
        feedback=FeedbackOptions(
            with_label=registered()[learner].needs_label or settings.with_label,
            speed=feedback_speed(settings),
            rule=settings.feedback,
        ),
        shortest_delay_ms=shortest_delay_ms(settings, dataset),
    )


def check_run(run: Run) -> None:
    """Reject a learner that cannot run, and log notices if it is slow or does not explore.

    Raises:
        SettingsError: a parameter is invalid, or the learner does not support the data.
    """
    run.task.make_learner()  # rejects invalid settings
    if run.dataset.has_eligible():
        run.task.check_eligible()
    if slow := slow_warning(run.task, run.nnz, run.events):
        warn(slow)
    if run.task.challengers and (notice := exploration_notice(run.task)):
        announce(notice)
