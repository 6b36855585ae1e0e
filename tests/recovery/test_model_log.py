"""A learner that reads a shared model's log: when it waits, what it does meanwhile, and which logs it rejects."""

from typing import Any

import numpy as np
import pytest

from consumers.learner.program import LearnerProgram
from consumers.learner.recovery import RecoveryStoppedError
from consumers.learner.shared_model import GONE_MS
from onebit.simulation.faulty_broker import FaultyBroker
from stream.kafka.producers import TransactionProducer
from stream.recovery.chunks import read_snapshots
from stream.recovery.state import decode_model
from stream.recovery.steps import HEADERS as JOURNAL_HEADERS
from stream.recovery.steps import MissingRecordsError, UnrecoverableError
from stream.wire.codec import HEADERS as EVENT_HEADERS
from stream.wire.records import Features, Foreign, Headers, TopicPartition
from stream.wire.sections import Section, encode_section
from stream.wire.topics import partition_for
from stream.wire.updates import DECIDED, Entry, encode_updates
from stream.wire.updates import HEADERS as UPDATE_HEADERS
from tests.pipeline import TOPICS, Pipeline, context_value, run_until_idle, small_task

LOG = TopicPartition(TOPICS.updates, 0)


def decided(**options: Any) -> Pipeline:
    """A pipeline with four decisions, made in four steps at intervals of 100 ms."""
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner = pipeline.learner(**options)
    for name in "abcd":
        pipeline.context(name)
        run_until_idle(learner)
        pipeline.wait(100)
    run_until_idle(learner)
    learner.close()
    return pipeline


def learner_with_messages(pipeline: Pipeline, **options: Any) -> tuple[LearnerProgram, list[str]]:
    """Return a learner and the list to which the learner appends its messages."""
    messages: list[str] = []
    return pipeline.learner(announce=messages.append, **options), messages


def recreate_log(pipeline: Pipeline) -> None:
    pipeline.broker.delete_topics([TOPICS.updates])
    pipeline.broker.create_topics(TOPICS.specs(1, shares_model=True))


def open_in_log(pipeline: Pipeline) -> TransactionProducer:
    hanging = pipeline.broker.transactional_producer("another")
    hanging.begin()
    hanging.send(TOPICS.updates, 0, None, b"theirs", ())
    hanging.flush()
    return hanging


def assert_fails_after_gone_ms(pipeline: Pipeline, learner: LearnerProgram) -> None:
    """Assert that the learner fails only after GONE_MS. A broker may briefly return an outdated end offset."""
    run_until_idle(learner)
    pipeline.wait(GONE_MS - 1)
    run_until_idle(learner)
    pipeline.wait(1)
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(learner)
    assert raised.value.place == "test.updates/0"


@pytest.mark.parametrize("version", [0, 4])  # the model snapshot's version; 0 if there is no snapshot
def test_recreated_log_is_rejected(version: int) -> None:
    pipeline = decided(snapshot_interval_ms=50 if version else 0)
    newest = read_snapshots(pipeline.broker, TOPICS, None).newest
    assert (0 if newest is None else newest.number) == version
    recreate_log(pipeline)
    learner, messages = learner_with_messages(pipeline)
    run_until_idle(learner)
    assert not learner.ready
    assert len([line for line in messages if "waits" in line]) == 1
    assert_fails_after_gone_ms(pipeline, learner)


def test_log_recreated_under_a_running_learner_is_detected() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner = pipeline.learner()
    pipeline.context("a")
    run_until_idle(learner)
    learner.read_log()
    recreate_log(pipeline)
    assert_fails_after_gone_ms(pipeline, learner)


def test_temporary_stale_log_end_is_tolerated() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    lagging = FaultyBroker(pipeline.broker, "learner-1", lambda call: None)
    learner = pipeline.learner(broker=lagging)
    for name in "ab":
        run_until_idle(learner)
        lagging.lag(LOG, 1)
        pipeline.context(name)
        run_until_idle(learner)
        learner.read_log()
        pipeline.wait(GONE_MS)
    assert pipeline.ledger().decided == 2


@pytest.mark.parametrize("interval_ms", [0, 50])
def test_log_without_its_beginning_is_rejected(interval_ms: int) -> None:
    pipeline = decided(snapshot_interval_ms=interval_ms)
    learner = pipeline.learner()
    pipeline.context("e")
    run_until_idle(learner)
    learner.close()
    pipeline.broker.delete_records(LOG, pipeline.broker.ends([LOG])[LOG].stable)
    with pytest.raises(MissingRecordsError) as raised:
        run_until_idle(pipeline.learner())
    assert (raised.value.tp, raised.value.is_deleted) == (LOG, True)


def test_log_retained_from_the_model_snapshot_on_is_accepted() -> None:
    pipeline = decided(snapshot_interval_ms=50)
    newest = read_snapshots(pipeline.broker, TOPICS, None).newest
    assert newest is not None
    pipeline.broker.delete_records(LOG, decode_model(newest).offset)
    learner = pipeline.learner()
    run_until_idle(learner)
    assert learner.ready


def test_task_that_waits_for_its_log_is_recovered_once() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner = pipeline.learner()
    run_until_idle(learner)
    hanging = open_in_log(pipeline)
    pipeline.context("a")
    run_until_idle(learner)
    learner.close()
    again, messages = learner_with_messages(pipeline)
    for _ in range(5):
        again.step(0)
    assert again.tasks == {}
    assert len([line for line in messages if "recovering" in line]) == 2, "one message at the start and one at the end"
    assert len([line for line in messages if "waits" in line]) == 1
    hanging.abort()
    run_until_idle(again)
    assert again.ready
    assert pipeline.ledger().decided == 1


def test_task_that_moved_while_waiting_for_its_log_is_recovered_again() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner = pipeline.learner()
    run_until_idle(learner)
    hanging = open_in_log(pipeline)
    pipeline.context("a")
    run_until_idle(learner)
    learner.close()
    waiting, messages = learner_with_messages(pipeline, instance="learner-2")
    run_until_idle(waiting)
    waiting.on_revoked(frozenset([TopicPartition(TOPICS.contexts, 0), TopicPartition(TOPICS.feedback, 0)]))
    waiting.on_assigned(frozenset([TopicPartition(TOPICS.contexts, 0), TopicPartition(TOPICS.feedback, 0)]))
    hanging.abort()
    run_until_idle(waiting)
    assert waiting.ready
    assert len([line for line in messages if "recovering" in line]) == 4


class SlowToRead:
    """A learner that reads the log slowly."""

    def __init__(self, pipeline: Pipeline, for_ms: int, **options: Any) -> None:
        self.calls: list[str] = []
        self.messages: list[str] = []
        self.learner: LearnerProgram | None = None

        def consult(call: str) -> None:
            if self.learner is not None and self.learner.replica is not None:
                self.calls.append(call)
                pipeline.wait(for_ms if call == "read" else 0)

        broker = FaultyBroker(pipeline.broker, "learner-1", consult, poll_max=1)
        self.learner = pipeline.learner(
            broker=broker, announce=self.messages.append, stop=lambda: self.calls.count("read") == 6, **options
        )


def test_learner_reading_a_long_log_polls_reports_progress_and_can_be_stopped() -> None:
    slow = SlowToRead(decided(), 2_000)
    assert slow.learner is not None
    with pytest.raises(RecoveryStoppedError):
        run_until_idle(slow.learner)
    # In each step, the recovery and the step itself poll the log once, and the step polls the control topic. Then the
    # learner polls its inputs.
    assert [call for call in slow.calls if call != "ends"] == ["read", "read", "read", "poll"] * 2
    assert [line for line in slow.messages if "log" in line] == [
        "recovering partition 0: offset 3 of 4 in the model's log"
    ]


def test_running_learner_limits_log_reading_per_step_and_keeps_deciding() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    slow = SlowToRead(pipeline, 300, step_max_ms=500)
    assert slow.learner is not None
    run_until_idle(slow.learner)
    write_to_log(pipeline, steps=5)
    versions = []
    for _ in range(3):
        slow.learner.step(0)
        assert slow.learner.replica is not None
        versions.append(slow.learner.replica.version)
    assert versions == [2, 4, 5]


def test_foreign_log_record_is_reported_although_reading_stops_at_its_limit() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    slow = SlowToRead(pipeline, 600, step_max_ms=500)
    assert slow.learner is not None
    run_until_idle(slow.learner)
    for _ in range(3):
        pipeline.broker.producer().send(TOPICS.updates, 0, None, b"junk")
    slow.learner.step(0)
    assert Foreign(1, "test.updates/0 offset 0").describe("test.updates/0") in slow.messages


def write_to_log(pipeline: Pipeline, steps: int) -> None:
    """Write updates from another task (in partition 9), with one decision per step."""
    learner = pipeline.settings.make_learner()
    x = Features(np.array([0, 2], np.int32), np.ones(2))
    entry = Entry(DECIDED, x, learner.predict(x, 0.5))
    for step in range(1, steps + 1):
        (value,) = encode_updates(9, step, step - 1, [entry])
        pipeline.broker.producer().send(TOPICS.updates, 0, None, value, UPDATE_HEADERS)


def test_task_too_far_ahead_of_its_log_pauses_deciding_then_resumes_without_loss() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner, messages = learner_with_messages(pipeline, ahead_max=3)
    run_until_idle(learner)
    hanging = open_in_log(pipeline)
    for name in "abcde":
        pipeline.context(name)
        run_until_idle(learner)
    pipeline.answer("a", 1)
    run_until_idle(learner)
    assert pipeline.ledger()[:2] == (3, 3), "expected three contexts, each with a decision"
    pipeline.wait(100)
    hanging.abort()
    run_until_idle(learner)
    run_until_idle(learner)
    ledger = pipeline.ledger()
    assert (ledger.decided, ledger.matched) == (5, 1)
    assert ["resumes" in line for line in messages if "paused" in line or "resumes" in line] == [False, True]
    assert all(finding.ok for finding in pipeline.audits())


def test_learner_whose_decisions_do_not_change_the_model_is_not_paused() -> None:
    pipeline = Pipeline(small_task("banditron", model="shared"))
    learner = pipeline.learner(ahead_max=3)
    open_in_log(pipeline)
    for name in "abcde":
        pipeline.context(name)
        run_until_idle(learner)
    assert pipeline.ledger().decided == 5


def test_idle_snapshot_task_still_writes_model_snapshots() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"), partitions=2)
    learner = pipeline.learner(snapshot_interval_ms=50)
    run_until_idle(learner)
    for number in range(12):
        if number == 0 or partition_for(b"e%d" % number, 2) == 1:
            pipeline.send(TOPICS.contexts, context_value(f"e{number}"), min(number, 1))
        pipeline.wait(60)
        run_until_idle(learner)
    newest = read_snapshots(pipeline.broker, TOPICS, None).newest
    assert pipeline.ledger().decided > 3
    assert newest is not None
    assert newest.number >= pipeline.ledger().decided - 1
    steps = len(pipeline.journal(0))
    for _ in range(5):
        pipeline.wait(60)
        run_until_idle(learner)
    assert len(pipeline.journal(0)) <= steps + 2, "a complete model snapshot is not written again"


def test_idle_process_still_writes_model_snapshots() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner = pipeline.learner(snapshot_interval_ms=50)
    pipeline.send(TOPICS.contexts, b"{")  # the task starts, but makes no decision
    run_until_idle(learner)
    write_to_log(pipeline, steps=3)
    for _ in range(4):
        pipeline.wait(60)
        run_until_idle(learner)
    newest = read_snapshots(pipeline.broker, TOPICS, None).newest
    assert newest is not None
    assert newest.number == 3


SECTION = b"".join(encode_section(Section("learner", {})))


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"hello", ()),
        (b"hello", EVENT_HEADERS),
        (b'{"id": "a", "reward": 1}', EVENT_HEADERS),
        (b'{"number": 7}', JOURNAL_HEADERS),
        (b"", EVENT_HEADERS),
        (SECTION, UPDATE_HEADERS),
    ],
)
def test_foreign_log_record_is_skipped_and_reported(value: bytes, headers: Headers) -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner, messages = learner_with_messages(pipeline)
    for name in "ab":
        pipeline.context(name)
        pipeline.broker.producer().send(TOPICS.updates, 0, None, value, headers)
        run_until_idle(learner)
    learner.read_log()
    assert learner.replica is not None
    assert (learner.replica.version, learner.replica.foreign) == (2, Foreign(2, "test.updates/0 offset 0"))
    assert any("Onebit did not write" in line for line in messages)
