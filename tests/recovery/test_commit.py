"""Commits and recovery: visibility of a step, rejected inputs, and learners that are replaced or expelled."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from consumers.learner.program import LearnerProgram
from onebit.simulation.faulty_broker import FaultyBroker
from stream.kafka.port import BrokerError, BrokerUnavailableError, FencedError
from stream.recovery.commit import COMMIT_STEPS, Commit, commit
from stream.recovery.recover import recover
from stream.recovery.state import task_digest
from stream.recovery.steps import JournalStep, MissingRecordsError, UnrecoverableError
from stream.task.task import DeadLetter, Effects
from stream.verifying.reapply import replay_journal
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from tests.contract.records import RebalanceLog
from tests.pipeline import (
    TOPICS,
    CrashError,
    Pipeline,
    context_value,
    crash_at,
    edited_copy,
    feedback_value,
    run_until_idle,
    small_task,
)


@pytest.mark.parametrize("number", COMMIT_STEPS)
def test_step_becomes_visible_atomically_at_its_commit(number: int) -> None:
    pipeline = Pipeline(small_task())
    pipeline.context("a")
    pipeline.answer("a", 1)
    pipeline.send(TOPICS.contexts, b"{")
    learner = pipeline.learner(crash_point=crash_at(number))
    with pytest.raises(CrashError):
        run_until_idle(learner)
    counts = [len(pipeline.records(topic)) for topic in (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter)]
    committed = pipeline.broker.committed("onebit-learner", [TopicPartition(TOPICS.contexts, 0)])
    if number < COMMIT_STEPS[-1]:
        assert (counts, committed, pipeline.journal()) == ([0, 0, 0], {}, [])
    else:
        assert (counts, list(committed.values())) == ([1, 1, 1], [2])
        assert [step.contexts for step in pipeline.journal()] == [(0, 2)]


def settled_pipeline(**changes: Any) -> tuple[Pipeline, LearnerProgram]:
    pipeline = Pipeline(small_task(**changes))
    learner = pipeline.learner()
    for number in range(6):
        pipeline.context(f"event-{number}", number % 4)
        run_until_idle(learner)
        pipeline.clock.advance_to(pipeline.now_ms() + 10)
        pipeline.answer(f"event-{number}", number % 2)
        run_until_idle(learner)
    return pipeline, learner


def test_recovery_restores_the_last_commit_and_writes_nothing() -> None:
    pipeline, learner = settled_pipeline()
    before = pipeline.ends()
    recovered = recover(pipeline.broker, TOPICS, 0, pipeline.settings)
    assert task_digest(recovered.task) == task_digest(learner.tasks[0])
    last = pipeline.journal()[-1]
    assert recovered.step == last
    assert pipeline.ends() == before


@pytest.mark.parametrize("topic", [TOPICS.contexts, TOPICS.feedback])
def test_task_is_not_started_if_unread_records_were_deleted(topic: str) -> None:
    pipeline = Pipeline(small_task())
    events(pipeline, 5, "event")
    pipeline.broker.delete_records(TopicPartition(topic, 0), 3)
    before = pipeline.ends()
    with pytest.raises(MissingRecordsError) as raised:
        run_until_idle(pipeline.learner())
    assert (raised.value.tp, raised.value.needed, raised.value.is_deleted) == (TopicPartition(topic, 0), 0, True)
    assert pipeline.ends() == before


CONTEXTS, FEEDBACK, JOURNAL = (TopicPartition(topic, 0) for topic in (TOPICS.contexts, TOPICS.feedback, TOPICS.journal))


def recreate(pipeline: Pipeline, topic: str) -> None:
    pipeline.broker.delete_topics([topic])
    pipeline.broker.create_topics(TOPICS.specs(1))


def repeat_the_last_step(pipeline: Pipeline) -> None:
    last = pipeline.records(TOPICS.journal)[-1]
    pipeline.broker.producer().send(TOPICS.journal, 0, None, last.value, last.headers)


@pytest.mark.parametrize(
    ("damage", "tp", "needed", "is_deleted"),
    [
        (lambda pipeline: pipeline.broker.delete_records(CONTEXTS, 3), CONTEXTS, 0, True),
        (lambda pipeline: pipeline.broker.delete_records(FEEDBACK, 3), FEEDBACK, 0, True),
        (lambda pipeline: pipeline.broker.delete_records(JOURNAL, 1), JOURNAL, 1, True),
        (lambda pipeline: pipeline.broker.delete_records(JOURNAL, 3), JOURNAL, 1, True),
        (lambda pipeline: pipeline.broker.delete_records(JOURNAL, 100), JOURNAL, 1, True),
        (lambda pipeline: recreate(pipeline, TOPICS.contexts), CONTEXTS, 6, False),
        (lambda pipeline: recreate(pipeline, TOPICS.feedback), FEEDBACK, 12, False),
        (repeat_the_last_step, JOURNAL, 13, False),
    ],
)
def test_recovery_is_rejected_if_records_are_missing(
    damage: Callable[[Pipeline], None], tp: TopicPartition, needed: int, is_deleted: bool
) -> None:
    pipeline, _ = settled_pipeline()
    damage(pipeline)
    with pytest.raises(MissingRecordsError) as raised:
        run_until_idle(pipeline.learner())
    assert (raised.value.tp, raised.value.needed, raised.value.is_deleted) == (tp, needed, is_deleted)


def test_recovery_is_rejected_if_the_inputs_differ() -> None:
    pipeline, _ = settled_pipeline()
    records = pipeline.broker.log((TOPICS.feedback, 0)).records
    records[:-1] = [record._replace(value=feedback_value("other", 1)) for record in records[:-1]]
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner())
    assert raised.value.place == "step 2 of test.journal/0"


def test_learner_rejects_a_changed_partition_count() -> None:
    pipeline, _ = settled_pipeline()
    other = edited_copy(pipeline, partitions=3)
    ends = other.ends()
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(other.learner())
    assert raised.value.place == "test.journal/0"
    assert other.ends() == ends


def test_misplaced_records_are_counted_by_learner_recovery_and_audit() -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    first = pipeline.learner(snapshot_interval_ms=0)
    for event_id, key in (("a", b"a"), ("d", b"d"), ("f", None)):  # d and f belong to partition 1
        pipeline.send(TOPICS.contexts, context_value(event_id), 0, key)
        pipeline.send(TOPICS.feedback, feedback_value(event_id, 1), 0, key)
    pipeline.send(TOPICS.feedback, b"{", 0, b"d")
    run_until_idle(first)
    ledger = pipeline.journal(0)[-1].ledger
    assert (ledger.decided, ledger.matched) == (3, 3)
    assert (ledger.contexts_misplaced, ledger.feedback_misplaced) == (2, 3)
    second = pipeline.learner(snapshot_interval_ms=0)
    pipeline.send(TOPICS.contexts, context_value("g"), 0, b"g")
    run_until_idle(second)
    assert pipeline.journal(0)[-1].ledger.contexts_misplaced == 3
    assert [finding.ok for finding in pipeline.audits()] == [True, True]
    assert replay_journal(pipeline.broker, TOPICS, 0).ok


def test_oversized_record_is_truncated_in_its_dead_letter() -> None:
    # A broker can accept records that are larger than the producer can send, for example compressed records.
    pipeline = Pipeline(small_task())
    large = Record(TOPICS.contexts, 0, 5, 0, b"key", b"x" * 5_000_000, ())
    effects = Effects([], [], [DeadLetter(large, "malformed", "value: too large")], [], [])
    step = JournalStep(1, (0, 1), (0, 0), 0, Ledger())
    producer = pipeline.broker.transactional_producer("other")
    consumer = pipeline.broker.group_consumer("other", "one", (TOPICS.contexts, TOPICS.feedback), RebalanceLog())
    consumer.poll(0, 1)
    commit(producer, consumer, TOPICS, [Commit(0, step, effects)])
    (letter,) = pipeline.records(TOPICS.dead_letter)
    assert letter.value is not None
    assert 0 < len(letter.value) < 1_000_000
    assert dict(letter.headers)["onebit-value-bytes"] == b"5000000"


@pytest.mark.parametrize("number", [*COMMIT_STEPS][:-1])
def test_learner_replaced_during_a_commit_is_fenced(number: int) -> None:
    pipeline = Pipeline(small_task())
    new: list[LearnerProgram] = []

    def replaced(reached: int) -> None:
        if reached == number:
            new.append(pipeline.learner())
            run_until_idle(*new)

    old = pipeline.learner(crash_point=replaced)
    pipeline.context("a")
    with pytest.raises(FencedError):
        run_until_idle(old)
    old.close()
    run_until_idle(*new)
    assert [p["id"] for p in pipeline.values(TOPICS.predictions)] == ["a"]
    assert pipeline.audits()[0].ok


def events(pipeline: Pipeline, count: int, name: str) -> None:
    for number in range(count):
        pipeline.context(f"{name}-{number}", number % 4)
        pipeline.answer(f"{name}-{number}", number % 2)


@pytest.mark.parametrize("leaves", ["close", "expel"])
def test_partitions_of_a_leaving_learner_continue_on_another(leaves: str) -> None:
    pipeline = Pipeline(small_task(), partitions=3)
    first, second = pipeline.learner("learner-1"), pipeline.learner("learner-2")
    events(pipeline, 30, "before")
    run_until_idle(first, second)
    assert sorted(first.tasks.keys() | second.tasks.keys()) == [0, 1, 2]
    assert first.tasks.keys().isdisjoint(second.tasks.keys())
    if leaves == "close":
        first.close()
    else:
        pipeline.broker.expel("onebit-learner", "learner-1")
    events(pipeline, 30, "after")
    run_until_idle(second)
    assert sorted(second.tasks) == [0, 1, 2]
    assert all(finding.ok for finding in pipeline.audits()), pipeline.audits()
    assert pipeline.ledger().pending == 0
    assert len(pipeline.all_values(TOPICS.predictions)) == pipeline.ledger().contexts == 60


@pytest.mark.parametrize("number", COMMIT_STEPS)
def test_learner_expelled_during_a_commit_applies_nothing_twice(number: int) -> None:
    pipeline = Pipeline(small_task(), partitions=3)
    second = pipeline.learner("learner-2")
    expelled: list[int] = []

    def expel(reached: int) -> None:
        if reached == number and not expelled:
            expelled.append(number)
            pipeline.broker.expel("onebit-learner", "learner-1")
            run_until_idle(second)

    first = pipeline.learner("learner-1", crash_point=expel)
    run_until_idle(first, second)
    events(pipeline, 30, "event")
    with pytest.raises(FencedError):
        run_until_idle(first, second)
    assert expelled
    first.close()
    again = pipeline.learner("learner-1")
    run_until_idle(again, second)
    assert sorted([*again.tasks, *second.tasks]) == [0, 1, 2]
    assert all(finding.ok for finding in pipeline.audits()), pipeline.audits()
    assert len(pipeline.all_values(TOPICS.predictions)) == 30
    assert pipeline.ledger().matched == 30


def test_expelled_learner_is_fenced_even_without_a_successor() -> None:
    pipeline, learner = settled_pipeline()
    pipeline.broker.expel("onebit-learner", "learner-1")
    pipeline.context("next")
    before = pipeline.ends()
    with pytest.raises(FencedError):
        learner.step(0)
    learner.close()
    assert pipeline.ends() == before
    again = pipeline.learner("learner-1")
    run_until_idle(again)
    assert pipeline.ledger().decided == 7
    assert pipeline.audits()[0].ok


@pytest.mark.parametrize("is_expelled", [True, False])
def test_learner_checks_its_membership_after_a_timeout(*, is_expelled: bool) -> None:
    pipeline = Pipeline(small_task())

    def time_out(call: str) -> None:
        if call == "poll" and is_out:
            if is_expelled:
                pipeline.broker.expel("onebit-learner", "learner-1")
            raise BrokerUnavailableError("no answer in time")

    is_out = False
    learner = pipeline.learner(broker=FaultyBroker(pipeline.broker, "learner-1", time_out))
    run_until_idle(learner)
    is_out = True
    with pytest.raises(FencedError if is_expelled else BrokerUnavailableError):
        learner.step(0)


def test_open_transaction_of_a_dead_learner_blocks_its_partitions() -> None:
    pipeline = Pipeline(small_task())
    dead = pipeline.learner("learner-1", crash_point=crash_at(5))
    pipeline.context("a")
    with pytest.raises(CrashError):
        run_until_idle(dead)
    pipeline.broker.expel("onebit-learner", "learner-1")
    other = pipeline.learner("learner-2")
    run_until_idle(other)
    assert other.tasks == {}  # the open transaction may still be committed
    pipeline.broker.transactional_producer("onebit-learner-learner-1")  # aborts the transaction, like a broker timeout
    run_until_idle(other)
    assert sorted(other.tasks) == [0]
    assert [p["id"] for p in pipeline.values(TOPICS.predictions)] == ["a"]
    assert pipeline.audits()[0].ok


def test_decision_after_an_outage_has_the_full_window() -> None:
    pipeline = Pipeline(small_task())
    pipeline.learner().close()
    pipeline.context("a")
    pipeline.clock.advance_to(1_000_000)
    learner = pipeline.learner()
    run_until_idle(learner)
    pipeline.clock.advance_to(1_001_000)
    pipeline.answer("a", 1)
    run_until_idle(learner)
    assert [(e["outcome"], e["delay_ms"]) for e in pipeline.values(TOPICS.examples)] == [("matched", 1_000)]


def test_feedback_during_an_outage_is_judged_by_its_append_time() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for name in "abc":
        pipeline.context(name)
    run_until_idle(learner)  # the decisions at 1,000 ms have a window of 1,000 ms
    learner.close()
    for at_ms, name in ((2_000, "a"), (2_001, "b"), (9_000, "c")):
        pipeline.clock.advance_to(at_ms)
        pipeline.answer(name, 1)
    run_until_idle(pipeline.learner())
    assert [(e["id"], e["outcome"]) for e in pipeline.values(TOPICS.examples)] == [
        ("a", "matched"), ("b", "expired"), ("c", "expired"),
    ]  # fmt: skip
    assert pipeline.ledger().late == 2
    assert pipeline.audits()[0].ok


def test_backlog_of_one_input_is_not_buffered_while_waiting_for_the_other() -> None:
    pipeline = Pipeline(small_task())
    for number in range(2_000):
        pipeline.context(f"event-{number}")
    pipeline.answer("event-0", 1)
    broker = FaultyBroker(pipeline.broker, "learner-1", lambda call: None)
    learner = pipeline.learner(broker=broker, records_max=20)
    assert broker.member is not None
    most = 0
    for _ in range(300):
        learner.step(0)
        most = max(most, *(unapplied - broker.member.lag(tp) for tp, unapplied in learner.lag().items()))
    assert 0 < most <= 40
    run_until_idle(learner)
    assert pipeline.ledger().decided == 2_000


def test_learner_cannot_continue_after_an_error() -> None:
    pipeline, _ = settled_pipeline()
    learner = pipeline.learner(crash_point=crash_at(2))
    pipeline.context("next")
    with pytest.raises(CrashError):
        run_until_idle(learner)
    pipeline.context("after-next")
    with pytest.raises(BrokerError):
        run_until_idle(learner)  # the transaction is open and the task is ahead of the journal
    learner.close()
    run_until_idle(pipeline.learner())
    assert [p["id"] for p in pipeline.values(TOPICS.predictions)][6:] == ["next", "after-next"]
    assert orjson.loads(pipeline.records(TOPICS.journal)[-1].value or b"")["contexts"][1] == 8


def test_orphan_waits_for_its_context_in_a_backlog() -> None:
    pipeline = Pipeline(small_task())
    pipeline.answer("a", 1)
    pipeline.clock.advance_to(1_400)
    for number in range(30):
        pipeline.context(f"event-{number}")
    pipeline.context("a")
    pipeline.clock.advance_to(90_000)
    run_until_idle(pipeline.learner(records_max=20))
    assert (pipeline.ledger().matched, pipeline.ledger().orphans_dropped) == (1, 0)


def test_decisions_expire_while_the_context_backlog_grows() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(records_max=5)
    for number in range(300):
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        for copy in range(6):
            pipeline.context(f"event-{number}-{copy}")
        learner.step(0)
    assert pipeline.ledger().expired > 500
    assert pipeline.audits()[0].ok
