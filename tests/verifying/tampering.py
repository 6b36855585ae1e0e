"""A valid learner run, and functions that edit a run's topics."""

from typing import Any

import orjson

from stream.recovery.chunks import ChunkWriter
from stream.recovery.recover import rebuild
from stream.recovery.state import encode, take
from stream.recovery.steps import decode_step
from stream.verifying.audit import Finding, audit_partition
from stream.wire import codec
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from tests.pipeline import TOPICS, Edit, Pipeline, edited_copy, run_until_idle, small_task


def hand_made_run(**changes: Any) -> Pipeline:
    """A run with duplicate, malformed, late, conflicting and orphaned records."""
    pipeline = Pipeline(small_task(**changes))
    learner = pipeline.learner()

    def at(now_ms: int) -> None:
        run_until_idle(learner)
        pipeline.clock.advance_to(now_ms)

    pipeline.answer("dropped", 1)  # feedback 0
    pipeline.answer("early", 1)  # feedback 1
    at(1_100)
    for event_id in ("early", "matched", "expired", "matched"):  # contexts 0 to 3
        pipeline.context(event_id)
    pipeline.send(TOPICS.contexts, b"{")  # context 4
    at(1_200)
    pipeline.answer("matched", 1)  # feedback 3, after the tick
    pipeline.answer("matched", 1)  # feedback 4, duplicate
    pipeline.answer("matched", 0)  # feedback 5, conflict
    pipeline.send(TOPICS.feedback, b"{")  # feedback 6
    at(3_000)
    pipeline.answer("expired", 1)  # feedback 7, late
    at(3_100)
    pipeline.context("pending")  # context 5
    pipeline.answer("waiting", 1)  # feedback 8
    at(3_200)
    run_until_idle(learner)
    return pipeline


GOOD = Ledger(
    contexts=6, decided=4, context_duplicates=1, context_malformed=1, feedback=8, matched=2, expired=1, pending=1,
    late=1, feedback_duplicates=2, conflicts=1, orphans_waiting=1, orphans_dropped=1, feedback_malformed=1,
)  # fmt: skip


def tampered(good: Pipeline, topic: str, edit: Edit, start: int | None = None) -> Finding:
    """Copy all topics, edit one topic's records in the copy, and return the audit of the copy.

    With a start, the audit begins after the snapshot of this step, because all earlier records are deleted.
    """
    other = edited_copy(good, {TopicPartition(topic, 0): edit})
    if start is not None:
        add_snapshot(other, good, start)
        cut(other, start)
    return audit_partition(other.broker, TOPICS, 0)


def add_snapshot(pipeline: Pipeline, of: Pipeline, number: int, partition: int = 0, slot: str = "a") -> None:
    """Write a snapshot of a step of the same run, or of another copy of it."""
    recovered = rebuild(of.broker, TOPICS, partition, until=number, snapshots=False)
    snapshot = take(recovered.task, recovered.step)
    for key, value in ChunkWriter(number, encode(snapshot), str(partition), slot).portion(10**9):
        pipeline.broker.producer().send(TOPICS.snapshots, partition, key, value, codec.HEADERS)


def cut(pipeline: Pipeline, number: int, partition: int = 0) -> None:
    """Delete the records before a step's end, except the step's journal record."""
    (step,) = (step for step in pipeline.journal(partition) if step.number == number)
    firsts = dict(zip((TOPICS.contexts, TOPICS.feedback), step.read_to, strict=True))
    for record in pipeline.records(TOPICS.journal, partition):
        if decode_step(record).number == number:
            firsts.setdefault(TOPICS.journal, record.offset)
    for topic in (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter):
        later = (each.offset for each in pipeline.records(topic, partition) if (codec.step_of(each) or 0) > number)
        tp = TopicPartition(topic, partition)
        firsts[topic] = next(later, pipeline.broker.ends([tp])[tp].stable)
    for topic, first in firsts.items():
        pipeline.broker.delete_records(TopicPartition(topic, partition), first)


def drop(offset: int) -> Edit:
    return lambda records: [record for record in records if record.offset != offset]


def duplicate(offset: int) -> Edit:
    return lambda records: [*records, records[offset]._replace(append_ms=records[-1].append_ms)]


def change(offset: int, **fields: object) -> Edit:
    def edit(records: list[Record]) -> list[Record]:
        value = orjson.dumps({**orjson.loads(records[offset].value or b""), **fields})
        key = str(fields["id"]).encode() if "id" in fields else records[offset].key
        return [*records[:offset], records[offset]._replace(value=value, key=key), *records[offset + 1 :]]

    return edit


def garbage(records: list[Record]) -> list[Record]:
    return [*records, records[-1]._replace(value=b"{", key=None)]


def header(number: int, name: str, content: str) -> Edit:
    def edit(records: list[Record]) -> list[Record]:
        new = tuple((n, content.encode() if n == f"onebit-{name}" else old) for n, old in records[number].headers)
        return [*records[:number], records[number]._replace(headers=new), *records[number + 1 :]]

    return edit


def appended(offset: int, append_ms: int) -> Edit:
    return lambda records: [r._replace(append_ms=append_ms) if r.offset == offset else r for r in records]
