"""Embedded runs: replay, feedback and learner share an in-process broker in virtual time."""

import math
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from consumers.learner.program import LearnerOptions, LearnerProgram
from consumers.live_estimates import arms_of, challenger_estimator, from_topics, live_estimator
from onebit.runs.plan import Run
from producers.data import nnz_of
from producers.datasets.base import Known
from producers.feedback.program import FeedbackProgram
from producers.replay.program import ReplayProgram
from stream.errors import ExitCode, OnebitError
from stream.kafka.embedded import EmbeddedBroker, VirtualClock, run_until_settled
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.learners import registered
from stream.measures.errors import ErrorCurve, Settlements, constant_error_rate, exploration
from stream.measures.latencies import LatencyCounts, ReplicaReport, quantiles, summarise_delays
from stream.programs.costs import compile_kernels, records_max
from stream.programs.process import Meter, Progress, ShowProgress, announce, gc_disabled, ignore
from stream.recovery.state import state_digest
from stream.reporting import tables
from stream.reporting.run_report import RunReport, versions
from stream.reporting.tables import percent
from stream.telemetry.sketch import Sketch
from stream.verifying.audit import audit_partition, latencies_of
from stream.verifying.shared_log import audit_log
from stream.wire.codec import decode_example
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Example, TopicPartition
from stream.wire.typed_fields import PredictionFields

AFTER_END_MAX = 1 / 3
"""A warning is logged if more than this fraction of the feedback arrives after the last decision, too late to affect
any decision."""

DELAYS_PER_RUN = 10
"""Recommended ratio of a run's duration to the mean delay. At this ratio, at most a tenth of the feedback arrives after
the last decision."""


class Answers(NamedTuple):
    """The delays and timing of a run's matched feedback."""

    delays_ms: list[int]
    lasted_ms: int  # time from the first to the last decision
    after_end: float  # fraction of the feedback that arrived after the last decision; nan without feedback


def answers(examples: Iterable[Example]) -> Answers:
    """Summarise a run's settled decisions.

    >>> from stream.wire.records import Outcome
    >>> settled = [Example(id, Outcome.MATCHED, 0, 1.0, 1, *times, 0) for id, *times in (("a", 5, 15), ("b", 2, 22))]
    >>> answers(settled)  # decided at 10 and at 20
    Answers(delays_ms=[5, 2], lasted_ms=10, after_end=0.5)
    """
    matched = [(one.settled_at_ms, one.delay_ms) for one in examples if one.delay_ms is not None]
    if not matched:
        return Answers([], 0, math.nan)
    decided_ms = [settled_at_ms - delay_ms for settled_at_ms, delay_ms in matched]
    last_ms = max(decided_ms)
    late = sum(settled_at_ms > last_ms for settled_at_ms, _ in matched)
    return Answers([delay_ms for _, delay_ms in matched], last_ms - min(decided_ms), late / len(matched))


def feedback_warnings(found: Answers, events: int, rate_per_s: float) -> tuple[str, ...]:
    """Return a warning that suggests a better --rate if much of the feedback arrived after the last decision."""
    if not found.after_end > AFTER_END_MAX:
        return ()
    mean_s = sum(found.delays_ms) / len(found.delays_ms) / 1_000
    better_per_s = _rounded_down(min(events / (DELAYS_PER_RUN * mean_s), rate_per_s / 2))
    return (
        f"{tables.percent(found.after_end)} of the feedback arrived after the last event, too late to affect any "
        f"decision. All decisions were made within {tables.duration(found.lasted_ms / 1_000)}, and the mean delay is "
        f"{tables.duration(mean_s)}. Use --rate {better_per_s:g} (duration "
        f"{tables.duration(events / better_per_s)}), a shorter --delay, or more --epochs",
    )


def _rounded_down(value: float) -> float:
    """Round down to one significant digit.

    >>> [_rounded_down(value) for value in (56.2, 9.99, 0.0123)]
    [50.0, 9.0, 0.01]
    """
    unit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.floor(value / unit) * unit:.1g}")


@dataclass(slots=True)
class Judge:
    """Evaluates each prediction against the true class, or against the logged reward of its action."""

    n_classes: int
    curve: ErrorCurve = field(default_factory=ErrorCurve)
    labels: list[int] = field(init=False)
    decided_ms: "array[int]" = field(default_factory=lambda: array("q"))
    explored: bytearray = field(default_factory=bytearray)  # 1 if the action was not the greedy class

    def __post_init__(self) -> None:
        self.labels = [0] * self.n_classes

    def observe(self, prediction: PredictionFields, known: Known, decided_ms: int) -> None:
        """Add a prediction and its outcome. The error excludes predictions without a known outcome."""
        self.decided_ms.append(decided_ms)
        action, greedy = prediction.action, prediction.greedy
        self.explored.append(action != greedy)
        bit = known.bit(action)
        greedy_bit = bit if greedy == action else known.bit(greedy)
        if bit is not None:
            self.curve.add(bit == 0, None if greedy_bit is None else greedy_bit == 0)
        if known.label is not None:
            self.labels[known.label] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPipeline:
    """One run's programs on an embedded broker."""

    run: Run
    clock: VirtualClock
    broker: EmbeddedBroker
    replay: ReplayProgram
    feedback: FeedbackProgram
    learner: LearnerProgram
    judge: Judge
    poll_ms: int  # the learner's poll interval

    def run_to_end(self, progress: Callable[[], None] = lambda: None) -> LatencyCounts | None:
        """Run until every decision is settled. Return the latencies of the learner's steps."""
        learner = _Watched(self.learner, progress)
        with gc_disabled():
            run_until_settled(self.clock, (self.replay, self.feedback), learner, self.poll_ms)
        return learner.latency()

    @property
    def pending(self) -> int:
        """The number of unsettled decisions."""
        ledgers = [task.join.ledger() for task in self.learner.tasks.values()]
        return sum(ledger.pending + ledger.deferred for ledger in ledgers)


class _Watched:
    """Measures the duration of a learner's steps.

    It also reports progress, because the updates due at a single virtual time can take minutes.
    """

    def __init__(self, learner: LearnerProgram, progress: Callable[[], None]) -> None:
        self._progress = progress
        self._step = learner.step
        self._steps_ms = array("d")
        self.next_due_ms = learner.next_due_ms

    def step(self, timeout_ms: int) -> int:
        """Execute a step, and record its duration; see `Program`."""
        began_s = time.perf_counter()
        done = self._step(timeout_ms)
        if done:
            self._steps_ms.append(1_000 * (time.perf_counter() - began_s))
        self._progress()
        return done

    def latency(self) -> LatencyCounts | None:
        """Return the step latencies, or None before the first step."""
        return LatencyCounts("step", Sketch.of(self._steps_ms)) if self._steps_ms else None


def prepare_embedded(run: Run) -> EmbeddedPipeline:
    """Create the topics and programs, and compile the learner. The reported run time excludes this preparation."""
    run = replace(run, task=replace(run.task, dated_by="context"))
    task, topics = run.task, run.topics
    compile_kernels(task)
    clock = VirtualClock()
    broker = EmbeddedBroker(clock)
    broker.create_topics(topics.specs(run.partitions, shares_model=task.model == "shared"))
    judge = Judge(run.dataset.n_classes)

    def now_ms() -> int:
        return clock.now_ms

    step_max = records_max(task, nnz_of(run.dataset), LearnerOptions().records_max)
    learner_options = LearnerOptions(snapshot_interval_ms=0, records_max=step_max)
    return EmbeddedPipeline(
        run=run,
        clock=clock,
        broker=broker,
        replay=ReplayProgram(broker, topics, run.dataset, run.replay, now_ms),
        feedback=FeedbackProgram(
            broker,
            topics,
            run.dataset.known_of,
            run.plan,
            run.feedback,
            now_ms,
            observe=judge.observe,
            decided_ms=lambda prediction, record: (
                broker.log((topics.contexts, record.partition)).at(prediction.context_offset).append_ms
            ),
            announce=announce,
        ),
        learner=LearnerProgram(broker, topics, task, learner_options, now_ms),
        judge=judge,
        poll_ms=min(POLL_MS_MAX, run.shortest_delay_ms),
    )


class RunInterruptedError(OnebitError):
    """Ctrl-C interrupted a run. The message contains the run's name and progress."""

    exit_code = ExitCode.INTERRUPTED
    hint = "no page was written"


def interruption(at: Progress) -> str:
    """Return the error message for an interrupted run."""
    error = "" if math.isnan(at.error_rate) else f", error {percent(at.error_rate)}"
    return f"{at.name}: interrupted after {at.decided:,} of {at.events:,} events{error}, {at.pending:,} pending"


def run_embedded(run: Run, show: ShowProgress = ignore) -> RunReport:
    """Run until every decision is settled.

    Args:
        run: The run.
        show: Called at intervals with the progress.

    Raises:
        RunInterruptedError: Ctrl-C interrupted the run.
    """
    pipeline = prepare_embedded(run)
    with gc_disabled():
        meter, judge = Meter(run.name, run.events, show), pipeline.judge
        try:
            wall_s, latency = _run(pipeline, meter)
        except KeyboardInterrupt as error:
            progress = meter.progress(len(judge.decided_ms), judge.curve.error_rate, pipeline.pending)
            raise RunInterruptedError(interruption(progress)) from error
        end = _end_of(pipeline, wall_s, latency)
        return report_of(pipeline.broker, pipeline.run, pipeline.judge, end)


def _end_of(pipeline: EmbeddedPipeline, wall_s: float, latency: LatencyCounts | None) -> "RunEnd":
    """Return the results that depend on the final models. A replica is final only after it has read the whole log."""
    learner, virtual_s = pipeline.learner, pipeline.clock.now_ms / 1_000
    learner.read_log()
    replica = learner.replica
    if replica is not None:
        digest = state_digest([replica.learner.state()])
        found = ReplicaReport(LearnerOptions().instance, replica.version, digest)
        alarms = int(replica.learner.alarms.sum())
        return RunEnd(replica.updates, alarms, digest, virtual_s, wall_s, latency, "shared", (found,))
    tasks = learner.tasks
    digest = state_digest(tasks[partition].learner.state() for partition in sorted(tasks))
    updates = sum(task.version for task in tasks.values())
    alarms = sum(task.alarms for task in tasks.values())
    return RunEnd(updates, alarms, digest, virtual_s, wall_s, latency)


def _run(pipeline: EmbeddedPipeline, meter: Meter) -> tuple[float, LatencyCounts | None]:
    """Run the pipeline and report its progress. Return the run time in seconds and the step latencies."""
    curve = pipeline.judge.curve

    def show() -> None:
        meter.show(len(pipeline.judge.decided_ms), curve.error_rate, pipeline.pending)

    started_s = time.perf_counter()
    latency = pipeline.run_to_end(lambda: show() if meter.is_due() else None)
    wall_s = time.perf_counter() - started_s
    show()
    return wall_s, latency


POLL_MS_MAX = 100
"""Maximum virtual time between two polls. Each poll is one transaction. Any interval up to the shortest delay gives
the same result, so a longer interval is reduced to the shortest delay. A higher maximum would save almost no time."""


class RunEnd(NamedTuple):
    """The results of a run that are not stored in its topics."""

    updates: int
    drift_alarms: int
    state_sha256: str
    virtual_s: float
    wall_s: float
    latency_counts: LatencyCounts | None
    model: str = "own"
    replicas: tuple[ReplicaReport, ...] = ()


class NoDecisionsError(OnebitError, ValueError):
    """A run made no decision, because all contexts were malformed. The message contains the first reason."""

    exit_code = ExitCode.USAGE


def _malformed_warnings(broker: Broker, run: Run, ledger: Ledger) -> tuple[str, ...]:
    """Return a warning if some contexts were malformed.

    Raises:
        NoDecisionsError: all contexts were malformed.
    """
    malformed, seen = ledger.context_malformed, ledger.contexts
    if not malformed:
        return ()
    letters = (
        decode_dead_letter(record)
        for partition in range(run.partitions)
        for record in read_partition(broker, TopicPartition(run.topics.dead_letter, partition))
    )
    reason = next((letter.reason for letter in letters if letter.topic == run.topics.contexts), "unknown reason")
    least = "; set --propensity-min to the smallest propensity in the log" if "propensity_min" in reason else ""
    if malformed == seen:
        raise NoDecisionsError(f"{run.dataset.name}: all {seen:,} contexts are malformed: {reason}{least}")
    return (f"{malformed:,} of {seen:,} contexts are malformed, and have no decision; the first: {reason}{least}",)


def report_of(broker: Broker, run: Run, judge: Judge, end: RunEnd, *, in_real_time: bool = False) -> RunReport:
    """Create the report: read the ledger and the delays from the topics, and audit the learner's counts."""
    task, topics = run.task, run.topics
    findings = [audit_partition(broker, topics, partition) for partition in range(run.partitions)]
    latencies = latencies_of(findings) if in_real_time else Sketch()
    for finding in findings:
        for fault in finding.faults:
            announce(f"ledger of partition {finding.partition}: {fault}", limited=False)
    ledger = total_ledger(finding.learner for finding in findings)
    malformed_warnings = _malformed_warnings(broker, run, ledger)
    log = audit_log(broker, topics, run.partitions) if end.model == "shared" else None
    for fault in () if log is None else log.faults:
        announce(f"log of the shared model: {fault}", limited=False)
    settlements = Settlements()
    found = answers(
        settlements.take(
            decode_example(record)
            for partition in range(run.partitions)
            for record in read_partition(broker, TopicPartition(topics.examples, partition))
        )
    )
    return RunReport(
        data=run.dataset.name,
        learner=task.learner,
        params=task.parameters,
        seed=task.seed,
        events=run.events,
        classes=task.n_classes,
        features=task.n_features,
        ledger=ledger,
        audit_ok=all(finding.ok for finding in (*findings, *(() if log is None else (log,)))),
        model_behind=None if log is None else log.behind,
        errors=judge.curve.summary(),
        settings=dict(run.settings),
        full_information=registered()[task.learner].needs_label,
        delays=summarise_delays(found.delays_ms),
        delay_counts=Sketch.of(found.delays_ms) if found.delays_ms else None,
        first_feedback=settlements.first_feedback(judge.decided_ms),
        exploration=exploration(judge.explored),
        changed=run.changed,
        versions=versions(),
        feedback_after_end=found.after_end,
        delayed=settlements.curve(judge.decided_ms),
        warnings=(*malformed_warnings, *feedback_warnings(found, run.events, run.replay.rate_per_s)),
        constant_error_rate=constant_error_rate(judge.labels),
        latency=quantiles(latencies),
        estimate=from_topics(broker, topics, run.partitions, live_estimator()).now() if run.is_estimated else None,
        arms=from_topics(broker, topics, run.partitions, arms_of(task.holdout)).now() if task.holdout else None,
        challengers=(
            from_topics(broker, topics, run.partitions, challenger_estimator()).now() if task.challengers else None
        ),
        **end._asdict() | ({"latency_counts": LatencyCounts("decision", latencies)} if latencies.size else {}),
    )
