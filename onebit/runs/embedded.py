"""Embedded runs: replay, feedback and learner share an in-process broker in virtual time."""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace

from consumers.learner.program import LearnerOptions, LearnerProgram
from onebit.runs.plan import Run
from onebit.runs.report import Judge, RunEnd, report_of
from producers.feedback.program import FeedbackProgram
from producers.replay.program import ReplayProgram
from stream.errors import ExitCode, OnebitError
from stream.kafka.embedded import EmbeddedBroker, VirtualClock, run_until_settled
from stream.measures.latencies import LatencyCounts, ReplicaReport
from stream.programs.costs import compile_kernels, records_max
from stream.programs.process import Meter, Progress, ShowProgress, announce, gc_disabled, ignore
from stream.recovery.state import state_digest
from stream.reporting.runs import LearnerRun
from stream.telemetry.sketch import Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPrograms:
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


def prepare_embedded(run: Run) -> EmbeddedPrograms:
    """Create the topics and programs, and compile the learner. The reported run time excludes this preparation."""
    run = replace(run, task=replace(run.task, dated_by="context"))
    task, topics = run.task, run.topics
    compile_kernels(task)
    clock = VirtualClock()
    broker = EmbeddedBroker(clock)
    broker.create_topics(topics.specs(run.partitions, shares_model=task.model == "shared"))
    judge = Judge(run.dataset.n_classes, run.shown_range, are_places=run.dataset.blocks is not None)

    def now_ms() -> int:
        return clock.now_ms

    step_max = records_max(task, run.nnz, LearnerOptions().records_max)
    learner_options = LearnerOptions(snapshot_interval_ms=0, records_max=step_max)
    return EmbeddedPrograms(
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
    figure = at.figure and f", {at.figure}"
    return f"{at.name}: interrupted after {at.decided:,} of {at.events:,} events{figure}, {at.pending:,} pending"


def run_embedded(run: Run, show: ShowProgress = ignore) -> LearnerRun:
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
            progress = meter.progress(len(judge.decided_ms), judge.figure, pipeline.pending)
            raise RunInterruptedError(interruption(progress)) from error
        end = _end_of(pipeline, wall_s, latency)
        return report_of(pipeline.broker, pipeline.run, pipeline.judge, end)


def _end_of(pipeline: EmbeddedPrograms, wall_s: float, latency: LatencyCounts | None) -> RunEnd:
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


def _run(pipeline: EmbeddedPrograms, meter: Meter) -> tuple[float, LatencyCounts | None]:
    """Run the pipeline and report its progress. Return the run time in seconds and the step latencies."""
    judge = pipeline.judge

    def show() -> None:
        meter.show(len(judge.decided_ms), judge.figure, pipeline.pending)

    started_s = time.perf_counter()
    latency = pipeline.run_to_end(lambda: show() if meter.is_due() else None)
    wall_s = time.perf_counter() - started_s
    show()
    return wall_s, latency


POLL_MS_MAX = 100
"""Maximum virtual time between two polls. Each poll is one transaction. Any interval up to the shortest delay gives
the same result, so a longer interval is reduced to the shortest delay. A higher maximum would save almost no time."""
