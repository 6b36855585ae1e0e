"""The exact times at which a learner reads, recovers, takes a snapshot, logs a message and runs an idle step."""

import gc
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.learner.partition import Input, Partition
from consumers.learner.program import PORTION_RECORDS, Portion
from onebit.simulation.faulty_broker import FaultyBroker
from stream.kafka.embedded import VirtualClock
from stream.settings.task_fields import JoinSettings
from stream.wire.codec import HEADERS, tick_headers
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import partition_for
from tests.pipeline import TOPICS, Pipeline, context_value, feedback_value, run_until_idle, small_task

IDLE_MS = 100  # one tenth of the window of `small_task`


def ids_of(partition: int, partitions: int) -> Iterator[str]:
    """Return an iterator over event IDs that belong to a partition."""
    names = (f"event-{number}" for number in count())
    return (name for name in names if partition_for(name.encode(), partitions) == partition)


@dataclass
class PauseLog:
    """A consumer that logs the calls to `pause` and `resume`."""

    calls: list[str] = field(default_factory=list)

    def pause(self, tps: Sequence[TopicPartition]) -> None:
        self.calls.append("pause")

    def resume(self, tps: Sequence[TopicPartition]) -> None:
        self.calls.append("resume")


def observed(pipeline: Pipeline) -> tuple[FaultyBroker, list[str]]:
    """Return a learner's connection without faults, and the names of the operations on it."""
    calls: list[str] = []
    return FaultyBroker(pipeline.broker, "learner-1", calls.append), calls


def leave_transaction_open(pipeline: Pipeline, topic: str, partition: int) -> Any:
    """Open a transaction, as if the partition's previous learner had died during a step."""
    producer = pipeline.broker.transactional_producer("before")
    producer.begin()
    producer.send(topic, partition, None, b"", HEADERS)
    return producer


def test_steps_never_request_end_offsets() -> None:
    pipeline = Pipeline(small_task())
    broker, calls = observed(pipeline)
    learner = pipeline.learner(broker=broker, snapshot_interval_ms=0)
    pipeline.answer("first", 1)  # in the first step, the learner checks for an imported model
    run_until_idle(learner)
    calls.clear()
    pipeline.context("a")
    run_until_idle(learner)
    for _ in range(11):
        pipeline.clock.advance_to(pipeline.now_ms() + IDLE_MS)
        run_until_idle(learner)
    assert ("ends" in calls, pipeline.ledger().expired) == (False, 1)


@pytest.mark.parametrize("topic", [TOPICS.journal, TOPICS.snapshots])
def test_blocked_partition_is_paused_alone_and_logged_once(topic: str) -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    before = leave_transaction_open(pipeline, topic, 0)
    names = [next(ids_of(partition, 2)) for partition in (0, 1)]
    for name in names:
        pipeline.context(name)
    messages: list[str] = []
    broker, _ = observed(pipeline)
    learner = pipeline.learner(broker=broker, announce=messages.append)
    for _ in range(5):
        learner.step(0)
    assert (sorted(learner.tasks), learner.ready) == ([1], False)
    assert broker.member is not None
    assert [broker.member.position(TopicPartition(TOPICS.contexts, each)) for each in (0, 1)] == [0, 1]
    assert [message.partition(" waits ")[0] for message in messages if "waits" in message] == ["partition 0"]
    before.abort()
    run_until_idle(learner)
    assert learner.ready
    assert sorted(p["id"] for p in pipeline.all_values(TOPICS.predictions)) == sorted(names)


def test_partition_blocked_again_is_logged_again() -> None:
    pipeline = Pipeline(small_task())
    messages: list[str] = []
    learner = pipeline.learner(announce=messages.append)
    inputs = frozenset(TopicPartition(topic, 0) for topic in (TOPICS.contexts, TOPICS.feedback))
    for times in (1, 2):
        before = leave_transaction_open(pipeline, TOPICS.journal, 0)
        for _ in range(2):
            learner.step(0)
        assert len([message for message in messages if "waits" in message]) == times
        before.abort()
        run_until_idle(learner)
        assert learner.ready
        learner.on_revoked(inputs)
        learner.on_assigned(inputs)


@pytest.mark.parametrize("start_ms", [0, 1_000])
def test_snapshot_is_taken_exactly_when_its_interval_has_passed(start_ms: int) -> None:
    pipeline = Pipeline(small_task(), clock=VirtualClock(start_ms))
    learner = pipeline.learner(snapshot_interval_ms=50)
    counts = []
    for after_ms in (0, 49, 50, 99, 100):
        pipeline.clock.advance_to(start_ms + after_ms)
        pipeline.answer(f"event-{after_ms}", 1)
        run_until_idle(learner)
        counts.append(len(pipeline.records(TOPICS.snapshots)))
    assert counts == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("interval_ms", [1, 50])
def test_idle_task_writes_a_snapshot_after_an_interval_without_records(interval_ms: int) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=interval_ms)
    pipeline.context("a")
    pipeline.answer("a", 1)
    run_until_idle(learner)
    steps = len(pipeline.journal())
    pipeline.clock.advance_to(1_000 + interval_ms - 1)
    assert learner.step(0) == 0
    pipeline.clock.advance_to(1_000 + interval_ms)
    run_until_idle(learner)
    assert len(pipeline.journal()) == steps + 1
    assert len(pipeline.records(TOPICS.snapshots)) == 1


@pytest.mark.parametrize("model", ["own", "shared"])
def test_steps_create_no_reference_cycles_and_dropped_tasks_are_freed(model: str) -> None:
    pipeline = Pipeline(small_task(model=model))
    learner = pipeline.learner()

    def apply(numbers: Iterable[int]) -> None:
        for number in numbers:
            pipeline.context(f"event-{number}")
            run_until_idle(learner)
            for reward in (number % 2, 1):
                pipeline.send(TOPICS.feedback, feedback_value(f"event-{number}", reward))
            pipeline.send(TOPICS.contexts, b"no JSON")
            run_until_idle(learner)

    apply(range(2))  # loading the kernels creates some reference cycles
    gc.collect()
    gc.disable()
    try:
        found = []
        for numbers in (range(2, 26), range(26, 50)):
            apply(numbers)
            found.append(gc.collect())
        assert 0 in found, found  # steps would create cycles both times; another thread or a lazy import, only once
        join = weakref.ref(learner.tasks[0].join)
        assert len(learner.tasks[0].join.retained) == 50
        learner.on_revoked(frozenset({TopicPartition(TOPICS.contexts, 0), TopicPartition(TOPICS.feedback, 0)}))
        learner.park().partitions.clear()
        assert join() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_its_own", [True, False])
def test_only_revoking_its_partition_aborts_a_snapshot(*, is_its_own: bool) -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    learner = pipeline.learner(snapshot_interval_ms=50, snapshot_bytes_max=1, snapshot_chunk_bytes=300)
    counts = [0, 0]
    for partition in (0, 1):
        pipeline.context(next(ids_of(partition, 2)))
    run_until_idle(learner)  # the snapshot interval starts at the first steps
    pipeline.clock.advance_to(pipeline.now_ms() + 50)
    while counts == [0, 0]:
        learner.step(0)
        counts = [len(pipeline.records(TOPICS.snapshots, partition)) for partition in (0, 1)]
    assert sorted(counts) == [0, 1]  # the learner writes one snapshot at a time, in portions
    writing = counts.index(1)
    gone = writing if is_its_own else 1 - writing
    learner.on_revoked(frozenset({TopicPartition(TOPICS.contexts, gone)}))
    run_until_idle(learner)
    whole = [pipeline.generations(partition) for partition in (0, 1)]
    assert whole[gone] == []
    assert whole[1 - gone] != []


def test_idle_step_is_due_after_the_deadline_and_the_tick_interval() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=0)
    run_until_idle(learner)
    assert learner.next_due_ms() is None
    pipeline.context("a")
    run_until_idle(learner)
    assert learner.next_due_ms() == 2_001  # the decision at 1,000 ms has a window of 1,000 ms
    pipeline.clock.advance_to(1_950)
    pipeline.context("b")
    run_until_idle(learner)
    assert learner.next_due_ms() == 1_950 + IDLE_MS
    for name in "ab":
        pipeline.answer(name, 1)
    run_until_idle(learner)
    assert learner.next_due_ms() is None


def test_input_is_paused_while_its_buffer_is_full() -> None:
    tp = TopicPartition(TOPICS.feedback, 0)
    consumer: Any = PauseLog()
    read = Input(tp, 0)
    for waiting, expected in ((0, []), (1, []), (2, ["pause"]), (3, []), (2, []), (1, ["resume"]), (0, [])):
        consumer.calls.clear()
        read.buffer.clear()
        read.buffer.extend([Record(tp.topic, 0, 0, 0, None, b"", HEADERS)] * waiting)
        read.pace(consumer, 2)
        assert (waiting, consumer.calls) == (waiting, expected)


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        ([(250, 1)], 500),  # fast: the size doubles
        ([(250, 1), (500, 1), (1_000, 1), (2_000, 1)], 2_000),  # limited to the maximum
        ([(10, 1)], 250),  # too few records to change the size
        ([(250, 40)], 250),
        ([(250, 101)], 125),
        ([(250, 1), (40, 101)], 20),  # 40 records took too long
        ([(2, 900), (1, 900)], 1),
    ],
)
def test_step_size_adapts_to_the_working_time(took: list[tuple[int, int]], expected: int) -> None:
    portion = Portion(2_000, 100)
    for records, ms in took:
        portion.took(records, ms)
    assert portion.records == expected


def test_change_of_settings_applies_and_is_logged_after_a_single_step() -> None:
    pipeline = Pipeline(small_task())
    first = pipeline.learner(snapshot_interval_ms=0)
    pipeline.send(TOPICS.contexts, b"{")
    run_until_idle(first)
    assert [step.number for step in pipeline.journal()] == [1]
    first.close()
    pipeline.request(window_ms=900)
    messages: list[str] = []
    again = pipeline.learner(given=(), announce=messages.append, snapshot_interval_ms=0)
    again.step(0)
    assert "partition 0, step 2: window: 1s -> 900ms" in messages
    pipeline.clock.advance_to(1_001)
    run_until_idle(again)
    assert [(step.number, step.settings_from) for step in pipeline.journal()][1:2] == [(2, 2)]


def test_records_that_arrive_before_recovery_are_read_once() -> None:
    pipeline = Pipeline(small_task())
    for number in range(5):
        pipeline.send(TOPICS.contexts, context_value(f"event-{number}"))
    broker, _ = observed(pipeline)
    learner = pipeline.learner(broker=broker)
    learner.step(0)
    assert broker.member is not None
    assert broker.member.position(TopicPartition(TOPICS.contexts, 0)) == 0
    run_until_idle(learner)
    assert (pipeline.ledger().contexts, pipeline.ledger().decided) == (5, 5)


def test_step_returns_the_number_of_recoveries_and_steps() -> None:
    pipeline = Pipeline(small_task(), partitions=3)
    learner = pipeline.learner()
    assert learner.step(0) == 3
    assert learner.step(0) == 0
    for partition in (0, 2):
        pipeline.context(next(ids_of(partition, 3)))
    assert learner.step(0) == 2
    assert learner.step(0) == 0


def test_pause_in_an_idle_step_does_not_reduce_the_step_size() -> None:
    pipeline = Pipeline(small_task(join=JoinSettings(window_ms=60_000, orphan_window_ms=500, retain_ms=100_000)))
    pauses: list[int] = []

    def pause(number: int) -> None:
        if number == 1 and pauses:
            pipeline.clock.advance_to(pipeline.now_ms() + pauses.pop())

    learner = pipeline.learner(crash_point=pause, snapshot_interval_ms=0)
    pipeline.context("a")
    run_until_idle(learner)
    pipeline.clock.advance_to(pipeline.now_ms() + 1_000)
    pauses.append(8_000)
    assert learner.step(0) == 1
    assert pauses == []
    for number in range(2 * PORTION_RECORDS):
        pipeline.context(f"event-{number}")
    learner.step(0)
    first, end = pipeline.journal()[-1].contexts
    assert end - first == PORTION_RECORDS


def test_feedback_is_applied_before_any_time_is_known() -> None:
    pipeline = Pipeline(small_task())
    pipeline.answer("early", 1)
    learner = pipeline.learner(snapshot_interval_ms=0)
    run_until_idle(learner)
    assert (pipeline.ledger().feedback, pipeline.ledger().orphans_waiting) == (1, 1)


@pytest.mark.parametrize("lag", [0, 1])
def test_buffered_ticks_are_applied_only_if_no_context_can_precede_them(lag: int) -> None:
    contexts, feedback = TopicPartition(TOPICS.contexts, 0), TopicPartition(TOPICS.feedback, 0)
    tick = Record(*feedback, 0, 1_000, None, None, tick_headers(1))
    partition: Any = SimpleNamespace(contexts=Input(contexts, 0), feedback=Input(feedback, 0, deque([tick])))
    consumer: Any = SimpleNamespace(lag={contexts: lag, feedback: 0}.get)
    assert Partition.idle_ticks(partition, consumer) == [tick] * (lag == 0)
    assert list(partition.feedback.buffer) == [tick] * (lag > 0)
