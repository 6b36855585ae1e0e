"""A recovering learner stops on request. A learner without a partition logs the owners of the partitions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from consumers.learner.program import STANDBY_MS, LearnerProgram
from consumers.learner.recovery import SLICE_MS, RecoveryStoppedError
from onebit.simulation.faulty_broker import FaultyBroker, FaultyConsumer
from stream.kafka.port import FETCH_WAIT_MS
from stream.recovery.state import decode_block
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task

JOURNAL_STEPS = 400


def with_a_long_journal() -> Pipeline:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=0)
    learner.step(0)
    for number in range(JOURNAL_STEPS):
        pipeline.context(f"event-{number}")
        run_until_idle(learner)
    learner.close()
    return pipeline


def slow(pipeline: Pipeline, read_ms: int) -> FaultyBroker:
    """Return a connection whose reads take `read_ms` and return one record."""

    def consult(call: str) -> None:
        pipeline.wait(read_ms if call == "read" else 0)

    return FaultyBroker(pipeline.broker, "learner-1", consult, poll_max=1)


@dataclass(eq=False)
class SlowSnapshots(FaultyBroker):
    """A connection that reads only the snapshots through a slow connection."""

    slow: FaultyBroker | None = None

    def reader(self, tps: Sequence[TopicPartition], fetch_wait_ms: int = FETCH_WAIT_MS) -> FaultyConsumer:
        if self.slow is not None and tps[0].topic == TOPICS.snapshots:
            return self.slow.reader(tps, fetch_wait_ms)
        return super().reader(tps, fetch_wait_ms)


def test_recovery_ends_soon_after_a_stop_request() -> None:
    pipeline = with_a_long_journal()
    told_ms: list[int] = []
    learner = pipeline.learner(
        broker=slow(pipeline, 100),
        announce=lambda message: told_ms.append(pipeline.now_ms()),
        # The stop request arrives during the recovery, which reports its progress every 5 s.
        stop=lambda: len(told_ms) > 3,
    )
    ends = pipeline.ends()
    with pytest.raises(RecoveryStoppedError):
        run_until_idle(learner)
    assert len(told_ms) == 4
    assert pipeline.now_ms() - told_ms[-1] <= 500
    assert learner.tasks == {}
    learner.close()
    assert pipeline.ends() == ends
    assert "learner-1" not in pipeline.broker.members("onebit-learner")


SNAPSHOT_PARTS = 60
PART_MS = 500


def with_a_large_snapshot(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Return a pipeline whose snapshot has one section per pending decision, and is split into small chunks."""
    monkeypatch.setattr("stream.recovery.state.BLOCK_ENTRIES", 1)
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=50, snapshot_chunk_bytes=150)
    learner.step(0)
    for number in range(SNAPSHOT_PARTS):
        pipeline.context(f"event-{number}")
    run_until_idle(learner)
    pipeline.clock.advance_to(pipeline.now_ms() + 51)
    run_until_idle(learner)
    learner.close()
    assert len(pipeline.records(TOPICS.snapshots)) > SNAPSHOT_PARTS
    return pipeline


def decode_slowly(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(name: str, *rest: Any) -> list[Any]:
        pipeline.clock.advance_to(pipeline.now_ms() + PART_MS)
        return decode_block(name, *rest)

    monkeypatch.setattr("stream.recovery.state.decode_block", decode)


@pytest.mark.parametrize("slow_part", ["read", "decode"])
def test_stop_request_interrupts_reading_a_large_snapshot(monkeypatch: pytest.MonkeyPatch, slow_part: str) -> None:
    pipeline = with_a_large_snapshot(monkeypatch)
    if slow_part == "decode":
        decode_slowly(pipeline, monkeypatch)
    asked_ms = pipeline.now_ms() + SNAPSHOT_PARTS // 2 * PART_MS
    polled_ms: list[int] = []

    def consult(call: str) -> None:
        if call == "poll":
            polled_ms.append(pipeline.now_ms())

    broker = SlowSnapshots(pipeline.broker, "learner-1", consult)
    if slow_part == "read":
        broker.slow = slow(pipeline, PART_MS)
    learner = pipeline.learner(broker=broker, stop=lambda: pipeline.now_ms() >= asked_ms)

    def steps() -> None:
        for _ in range(SNAPSHOT_PARTS):
            learner.step(0)

    with pytest.raises(RecoveryStoppedError):
        steps()
    assert pipeline.now_ms() - asked_ms <= 2_000
    assert max(then - before for before, then in pairwise(polled_ms)) <= SLICE_MS + PART_MS
    learner.close()


def standby_learner() -> tuple[Pipeline, LearnerProgram, list[str]]:
    pipeline = Pipeline(small_task(), partitions=2)
    messages: list[str] = []
    holders = [pipeline.learner(f"learner-{number}") for number in (1, 2)]
    learner = pipeline.learner("learner-3", announce=messages.append)
    for program in (*holders, learner):
        program.step(0)
    return pipeline, learner, messages


def test_member_without_a_partition_logs_the_owners_once_after_a_delay() -> None:
    pipeline, learner, messages = standby_learner()
    pipeline.clock.advance_to(pipeline.now_ms() + STANDBY_MS - 1)
    learner.step(0)
    assert messages == []
    for _ in range(5):
        pipeline.clock.advance_to(pipeline.now_ms() + STANDBY_MS)
        learner.step(0)
    assert ["learner-1, learner-2" in line for line in messages] == [True]


def test_member_that_lost_its_partition_logs_the_owners_again() -> None:
    pipeline, learner, messages = standby_learner()
    pipeline.clock.advance_to(pipeline.now_ms() + STANDBY_MS)
    learner.step(0)
    pipeline.broker.expel("onebit-learner", "learner-2")
    learner.step(0)
    assert learner.tasks.keys() == {1}
    back = pipeline.learner("learner-2")
    for _ in range(2):
        pipeline.clock.advance_to(pipeline.now_ms() + STANDBY_MS)
        learner.step(0)
        back.step(0)
    assert ["learner-1, learner-2" in line for line in messages] == [True, True]
