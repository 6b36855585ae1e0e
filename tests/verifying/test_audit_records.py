"""Audits of topics that contain records from other programs, or from which Kafka has deleted old records."""

from typing import Any

import pytest

from stream.recovery.steps import JournalError, JournalStep
from stream.verifying.audit import FAULTS_SHOWN_MAX, Finding, audit_partition
from stream.verifying.oracle import Oracle
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from tests.pipeline import TOPICS, Pipeline, feedback_value, small_task
from tests.verifying.tampering import GOOD, drop, hand_made_run, header, tampered


def test_partition_with_an_empty_journal_is_valid_only_without_output_records() -> None:
    pipeline = Pipeline(small_task())
    pipeline.context("a")
    pipeline.send(TOPICS.feedback, feedback_value("a", 1))
    assert audit_partition(pipeline.broker, TOPICS, 0) == Finding(0, Ledger(), Ledger(), (), 1, 1)
    finding = tampered(hand_made_run(), TOPICS.journal, lambda records: [])
    (fault,) = finding.faults
    assert fault.startswith("step 5 ")


def test_journal_without_its_first_record_cannot_be_audited(good: Pipeline) -> None:
    with pytest.raises(JournalError) as raised:
        tampered(good, TOPICS.journal, drop(0))
    assert raised.value.place == f"{TOPICS.journal}/0 offset 0"


def test_audit_ignores_dead_letters_of_other_programs(good: Pipeline) -> None:
    def foreign(records: list[Record]) -> list[Record]:
        letter = header(0, "topic", TOPICS.predictions)(records)[0]
        return [*records, letter._replace(append_ms=records[-1].append_ms)]

    assert tampered(good, TOPICS.dead_letter, foreign).ok


FOREIGN_HEADERS: dict[str, Any] = {
    "no header": (),
    "a step that is not a number": (("onebit-version", b"1"), ("onebit-step", b"x")),
    "a step of 5,000 digits": (("onebit-version", b"1"), ("onebit-step", b"1" * 5_000)),
    "a step without content": (("onebit-version", b"1"), ("onebit-step", None)),
}  # fmt: skip


@pytest.mark.parametrize("headers", FOREIGN_HEADERS)
@pytest.mark.parametrize("topic", [TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter])
def test_foreign_records_are_listed_and_do_not_change_the_ledger(good: Pipeline, topic: str, headers: str) -> None:
    def insert(records: list[Record]) -> list[Record]:
        foreign = records[0]._replace(headers=FOREIGN_HEADERS[headers], key=None, append_ms=records[-1].append_ms)
        return [*records, foreign, foreign._replace(value=None)]

    finding = tampered(good, topic, insert)
    assert (finding.audited, finding.faults, finding.ok) == (GOOD, (), True)
    assert finding.foreign_count == 2
    assert finding.foreign[0].startswith(f"{topic}/0 offset {len(good.records(topic))} ")


def test_number_of_listed_foreign_records_is_limited(good: Pipeline) -> None:
    def insert(records: list[Record]) -> list[Record]:
        return [*records, *[records[-1]._replace(headers=(), key=None)] * (FAULTS_SHOWN_MAX + 1)]

    finding = tampered(good, TOPICS.examples, insert)
    assert (len(finding.foreign), finding.foreign_count) == (FAULTS_SHOWN_MAX, FAULTS_SHOWN_MAX + 1)


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic != TOPICS.snapshots])
def test_deleted_records_are_reported_instead_of_differences(topic: str) -> None:
    pipeline = hand_made_run()
    pipeline.broker.delete_records(TopicPartition(topic, 0), 1)
    (finding,) = pipeline.audits()
    assert not finding.ok
    assert (finding.learner, finding.audited, finding.faults) == (Ledger(), Ledger(), ())
    (message,) = finding.deleted
    assert message.startswith(f"{topic}/0 ")


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic != TOPICS.snapshots])
def test_records_that_are_deleted_during_the_audit_are_reported_instead_of_differences(topic: str) -> None:
    pipeline = hand_made_run()

    def delete(step: JournalStep, oracle: Oracle) -> None:
        pipeline.broker.delete_records(TopicPartition(topic, 0), 1)

    finding = audit_partition(pipeline.broker, TOPICS, 0, observe=delete)
    assert not finding.ok
    assert (finding.learner, finding.audited, finding.faults) == (Ledger(), Ledger(), ())
    (message,) = finding.deleted
    assert message.startswith(f"{topic}/0 ")


def test_deleted_records_of_all_topics_are_reported_together() -> None:
    pipeline = hand_made_run()
    for topic in TOPICS.of_events():
        pipeline.broker.delete_records(TopicPartition(topic, 0), 2)
    (finding,) = pipeline.audits()
    assert {message.split("/")[0] for message in finding.deleted} == set(TOPICS.of_events())


@pytest.mark.parametrize("topic", [TOPICS.contexts, TOPICS.feedback])
def test_records_deleted_before_the_first_step_are_reported(topic: str) -> None:
    pipeline = Pipeline(small_task())
    for event_id in "abcd":
        pipeline.context(event_id)
        pipeline.answer(event_id, 1)
    pipeline.broker.delete_records(TopicPartition(topic, 0), 2)
    (finding,) = pipeline.audits()
    assert not finding.ok
    assert [message.split()[0] for message in finding.deleted] == [f"{topic}/0"]
