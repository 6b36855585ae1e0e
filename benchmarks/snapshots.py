"""Measure snapshots on a Kafka broker: their cost, the delay that they add to decisions, and the speed of recovery.

    python benchmarks/snapshots.py [--bootstrap HOST:PORT] [--events 40000] [--large-events 12000]

There are two tasks: soba-diag on SynSep, and full SOBA with K·d = 3,600 and a state of 106 MB. A learner with periodic
snapshots processes a backlog of contexts with feedback. The figures are ratios within one run, because other programs
may run on the machine:

    hold    extra time in a step that writes part of a snapshot: copying, creating chunks and committing
    cost    total extra time for one snapshot, as a fraction of the default interval
    rate    records per second during a recovery from the first step, divided by the learner's rate
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import consumers.learner.program
from consumers.learner.program import LearnerOptions, LearnerProgram
from producers.datasets.synthetic import synsep
from stream.devkafka.local_kafka import local_kafka
from stream.kafka.connection import ConnectionSettings
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.kafka.port import Broker
from stream.learners import check_parameters
from stream.recovery import commit as commit_module
from stream.recovery.recover import Callbacks, ReplayProgress, rebuild
from stream.recovery.state import task_digest
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.wire import codec
from stream.wire.records import Feedback
from stream.wire.topics import Topics

SNAPSHOTS = 5


def fill(broker: Broker, topics: Topics, events: int) -> None:
    """Write contexts with immediate feedback."""
    dataset = synsep(1)
    producer = broker.producer()
    luck = np.random.Generator(np.random.PCG64(1))
    for start in range(0, events, 500):
        names = [f"event-{number}" for number in range(start, min(start + 500, events))]
        for number, name in enumerate(names, start):
            value = codec.encode_context(name, dataset.row(number % dataset.rows).x)
            producer.send(topics.contexts, 0, name.encode(), value, codec.HEADERS)
        producer.flush()
        for name in names:
            value = codec.encode_feedback(Feedback(name, int(luck.random() < 0.05)))
            producer.send(topics.feedback, 0, name.encode(), value, codec.HEADERS)
        producer.flush()
    producer.close()


class Clock:
    """Measures the wall time and this thread's CPU time for calls to a function, in seconds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0  # time since the last reset to 0
        self.cpu_seconds_max = 0.0  # maximum for a single call

    def __call__(self, *arguments: Any) -> Any:
        """Call the function and measure its wall-clock and CPU time."""
        started_s, started_cpu_s = time.perf_counter(), time.thread_time()
        try:
            return self._function(*arguments)
        finally:
            self.seconds += time.perf_counter() - started_s
            self.cpu_seconds_max = max(self.cpu_seconds_max, time.thread_time() - started_cpu_s)


class Step(NamedTuple):
    """One of the learner's steps."""

    records: int
    all_s: float
    snapshot_s: float  # time to copy the state and create chunks
    commit_s: float
    carries: bool  # True if the step writes part of a snapshot


def work(broker: Broker, topics: Topics, task: TaskSettings, events: int, records_max: int) -> float:
    """Process the backlog with snapshots, print their cost, and return the records per second."""
    interval_ms = LearnerOptions().snapshot_interval_ms
    options = LearnerOptions(group=f"{topics.contexts}group", records_max=records_max)
    program = LearnerProgram(broker, topics, task, options, lambda: time.monotonic_ns() // 1_000_000)
    snapshots = program._snapshots
    making = Clock(snapshots.portion)
    committing = Clock(commit_module.commit)
    snapshots.portion = making  # type: ignore[method-assign, assignment]
    consumers.learner.program.commit = committing  # type: ignore[attr-defined, assignment]
    while not program.tasks:
        program.step(100)
    running = program._running[0]
    steps: list[Step] = []
    due_every = 2 * events // (SNAPSHOTS + 1)
    count, done = 0, 0
    while done < 2 * events:
        due = done >= due_every * (count + 1) and snapshots._writing is None and count < SNAPSHOTS
        snapshots.interval_ms = interval_ms if due else 0
        if due:
            running.snapshots.taken_ms = 0
            count += 1
        carries = due or snapshots._writing is not None
        making.seconds = committing.seconds = 0.0
        before, started_s = done, time.perf_counter()
        program.step(100)
        done = running.contexts.offset + running.feedback.offset
        steps.append(Step(done - before, time.perf_counter() - started_s, making.seconds, committing.seconds, carries))
    consumers.learner.program.commit = commit_module.commit  # type: ignore[attr-defined]
    steps = steps[5:]  # the first steps include compilation and the first fetches
    quiet = [step for step in steps if not step.carries]
    carrying = [step for step in steps if step.carries]
    commit_s = float(np.mean([step.commit_s for step in quiet]))
    holds = [step.snapshot_s + max(step.commit_s - commit_s, 0.0) for step in carrying]
    rate = sum(step.records for step in quiet) / sum(step.all_s for step in quiet)
    share = sum(holds) / count / (interval_ms / 1_000)
    longest_quiet_s = max(step.commit_s for step in quiet) - commit_s
    print(f"  live     {rate:>9,.0f} records/s in steps of {records_max}; a commit takes {1e3 * commit_s:.0f} ms")
    print(
        f"  hold     {1e3 * max(holds):>9,.0f} ms at most, median {1e3 * float(np.median(holds)):.0f} ms, "
        f"over {len(carrying) / count:.0f} steps per snapshot; "
        f"a commit without a snapshot takes up to {1e3 * longest_quiet_s:.0f} ms longer than the mean"
    )
    print(
        f"  copy     {1e3 * max(step.snapshot_s for step in carrying):>9,.0f} ms at most, including the step's chunks; "
        f"{1e3 * making.cpu_seconds_max:.0f} ms of CPU"
    )
    print(f"  cost     {sum(holds) / count:>9.2f} s per snapshot, {share:.2%} of {interval_ms // 1_000} s")
    live = task_digest(program.tasks[0])
    program.close()
    recovered = rebuild(broker, topics, 0)
    assert task_digest(recovered.task) == live
    return rate


def replay(broker: Broker, topics: Topics, task: TaskSettings, live_rate: float) -> None:
    """Recover with and without snapshots, and print the recovery speed."""
    started_s = time.perf_counter()
    recovered = rebuild(broker, topics, 0)
    print(f"  with a snapshot {time.perf_counter() - started_s:>9.2f} s to reach step {recovered.step.number:,}")
    seen: list[tuple[float, ReplayProgress]] = []
    rebuild(
        broker,
        topics,
        0,
        callbacks=Callbacks(lambda progress: seen.append((time.perf_counter(), progress))),
        snapshots=False,
    )
    (begun_s, first), (ended_s, last) = seen[0], seen[-1]
    rate = (last.records - first.records) / (ended_s - begun_s)
    print(f"  no snapshot     {rate:>9,.0f} records/s, {rate / live_rate:.1f} times the live rate")


@contextmanager
def kafka_at(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    with local_kafka() as running:
        yield running.bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap")
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--large-events", type=int, default=12_000)
    given = parser.parse_args()
    with kafka_at(given.bootstrap) as bootstrap:
        broker = KafkaBroker(ConnectionSettings(bootstrap))
        for learner, events, records_max in (("soba-diag", given.events, 200), ("soba", given.large_events, 40)):
            topics = Topics.with_prefix(f"bench-{time.time_ns()}-{learner}.")
            broker.create_topics(topics.specs(1))
            fill(broker, topics, events)
            task = TaskSettings(learner, 9, 400, check_parameters(learner, {}), join=JoinSettings())
            task.make_learner()
            print(f"{learner}, {events:,} events:", flush=True)
            replay(broker, topics, task, work(broker, topics, task, events, records_max))
            broker.delete_topics(list(topics))
        broker.close()


if __name__ == "__main__":
    main()
