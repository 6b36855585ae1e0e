"""`onebit run`, embedded: the whole pipeline in this process, in virtual time."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from consumers.learner import LearnerOptions, LearnerProgram
from producers.datasets.base import Dataset
from producers.feedback import FeedbackOptions, FeedbackProgram
from producers.replay import ReplayProgram
from stream.audit import audit_partition
from stream.broker import Broker, EmbeddedBroker, VirtualClock
from stream.checkpoint import read_partition, state_digest
from stream.cli.console import announce, run_progress
from stream.cli.options import events_of, feedback_plan, replay_options, task_settings, topics_of
from stream.codec import decode_example
from stream.delays import parse_delay
from stream.engine import TaskSettings
from stream.evaluate import ErrorCurve, RunReport, constant_error_rate, summarise_delays
from stream.events import Answer
from stream.learners import registered
from stream.ledger import total_ledger
from stream.records import TopicPartition
from stream.settings import Settings
from stream.simulate import run_until_settled


@dataclass(slots=True)
class Judge:
    """Judges every prediction as it was made, from the true class."""

    n_classes: int
    curve: ErrorCurve = field(default_factory=ErrorCurve)
    labels: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.labels = [0] * self.n_classes

    def observe(self, answer: Answer, label: int) -> None:
        """Take in one answer and the true class."""
        self.curve.add(answer.action != label, answer.greedy != label)
        self.labels[label] += 1


@dataclass(frozen=True, slots=True)
class EmbeddedPipeline:
    """The programs of one learner's run over an embedded broker, ready to run."""

    settings: Settings
    task: TaskSettings
    clock: VirtualClock
    broker: EmbeddedBroker
    replay: ReplayProgram
    feedback: FeedbackProgram
    learner: LearnerProgram
    judge: Judge

    def run(self, progress: Callable[[], None] = lambda: None) -> None:
        """Run until every decision is settled."""
        with _without_collector():
            run_until_settled(self.clock, (self.replay, self.feedback), self.learner, _poll_ms(self.settings), progress)

    @property
    def pending(self) -> int:
        """Decisions that wait."""
        return sum(len(task.join.pending) for task in self.learner.tasks.values())


def prepare_embedded(settings: Settings, learner: str, dataset: Dataset) -> EmbeddedPipeline:
    """Make topics and programs, and compile the learner, so that a run measures the run."""
    task = task_settings(settings, learner, dataset.n_classes, dataset.n_features)
    task.warm_up()
    topics = topics_of(settings)
    clock = VirtualClock()
    broker = EmbeddedBroker(clock)
    broker.create_topics(topics.specs(settings.partitions))
    judge = Judge(dataset.n_classes)

    def now_ms() -> int:
        return clock.now_ms

    options = FeedbackOptions(with_label=registered()[learner].needs_label or settings.with_label)
    plan = feedback_plan(settings, dataset)
    return EmbeddedPipeline(
        settings,
        task,
        clock,
        broker,
        ReplayProgram(broker, topics, dataset, replay_options(settings, dataset), now_ms),
        FeedbackProgram(broker, topics, dataset.label_of, plan, options, now_ms, observe=judge.observe),
        LearnerProgram(broker, topics, task, LearnerOptions(snapshot_interval_ms=0), now_ms),
        judge,
    )


def run_embedded(settings: Settings, learner: str, dataset: Dataset, command: str) -> RunReport:
    """Run one learner on the data set until every decision is settled."""
    pipeline = prepare_embedded(settings, learner, dataset)
    curve = pipeline.judge.curve
    with run_progress(learner, events_of(settings, dataset)) as progress:

        def show() -> None:
            progress.show(len(curve), curve.error_rate, pipeline.pending)

        started_s = time.perf_counter()
        pipeline.run(lambda: show() if progress.due() else None)
        wall_s = time.perf_counter() - started_s
        show()
    tasks = pipeline.learner.tasks
    digest = state_digest(tasks[partition].learner.state() for partition in sorted(tasks))
    updates = sum(task.updates for task in tasks.values())
    outcome = Outcome(updates, digest, pipeline.clock.now_ms / 1_000, wall_s)
    return report_of(pipeline.broker, settings, pipeline.task, dataset, pipeline.judge, outcome, command)


POLL_MS_MAX = 100
"""The records of so much time go into one transaction. What is learned is the same for any value up to the shortest
delay, and a larger one is hardly faster."""

SHORT_DELAY_SHARE = 0.001
"""This share of the feedback may come sooner than the learner polls again, and then waits for it."""


def _poll_ms(settings: Settings) -> int:
    """How often the learner polls: at every moment, where answers come at once or nearly so."""
    return min(POLL_MS_MAX, parse_delay(settings.delay).quantile_ms(SHORT_DELAY_SHARE))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Leave the cyclic garbage collector out: a run makes no cycles, and all its records would be walked again."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Outcome(NamedTuple):
    """What a run left behind, beside its topics."""

    updates: int
    state_sha256: str
    virtual_s: float
    wall_s: float


def report_of(
    broker: Broker,
    settings: Settings,
    task: TaskSettings,
    dataset: Dataset,
    judge: Judge,
    outcome: Outcome,
    command: str,
) -> RunReport:
    """The report of a run: its ledger and its delays are read from the topics, and the learner's counts audited."""
    topics = topics_of(settings)
    findings = [audit_partition(broker, topics, partition) for partition in range(settings.partitions)]
    for finding in findings:
        for fault in finding.faults:
            announce(f"ledger of partition {finding.partition}: {fault}")
    delays_ms = [
        example.delay_ms
        for partition in range(settings.partitions)
        for record in read_partition(broker, TopicPartition(topics.examples, partition))
        if (example := decode_example(record)[0]).delay_ms is not None
    ]
    return RunReport(
        data=dataset.name,
        learner=task.learner,
        params=task.resolved().parameters,
        seed=settings.seed,
        events=events_of(settings, dataset),
        classes=dataset.n_classes,
        features=dataset.n_features,
        ledger=total_ledger(finding.learner for finding in findings),
        audit_ok=all(finding.ok for finding in findings),
        errors=judge.curve.summary(),
        settings=settings.shown() | {"command": command},
        full_information=registered()[task.learner].needs_label,
        delays=summarise_delays(delays_ms),
        constant_error_rate=constant_error_rate(judge.labels),
        **outcome._asdict(),
    )
