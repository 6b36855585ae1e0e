"""The numbered commit: one step's outputs, journal record and offsets, in one transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from stream.brokers.port import Consumer, TransactionalProducer
from stream.joining.task import Effects
from stream.recovery import journal
from stream.recovery.journal import JournalStep, Opening, SettingsChange, encode_entry
from stream.recovery.snapshot_chunks import Message
from stream.wire import codec, updates
from stream.wire.dead_letters import encode_dead_letter
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from stream.wire.updates import encode_updates


class Commit(NamedTuple):
    """One task's part of a transaction."""

    partition: int
    before: Opening | SettingsChange | None  # what stands before the step: for the first one, and after a change
    step: JournalStep
    effects: Effects
    snapshot: Sequence[Message] = ()  # chunks of a snapshot of this or of an earlier step
    contexts_ms: Sequence[int] = ()  # the append times of the contexts that the step applied


CrashPoint = Callable[[int], None]
"""Called with the number of each commit step when it is done; a test lets it raise."""

Accepts = Callable[[int, int, int], bool]
"""Told a partition, how many decisions are made in it, and how many milliseconds before the append time of its
predictions the first of them is dated: whether they may stand."""


class OutdatedError(Exception):
    """The step's decisions are dated too long before their predictions were appended; its transaction is aborted."""


def commit(
    producer: TransactionalProducer,
    consumer: Consumer,
    topics: Topics,
    commits: Sequence[Commit],
    after: CrashPoint = lambda number: None,
    accepts: Accepts = lambda partition, decisions, age_ms: True,
) -> int:
    """Publish one step of some tasks in one transaction; the broker's time of it.

    The numbers are those of the crash tests. The append times that the acknowledgements bring (4) are fixed, whenever
    the commit comes: so the dates of the decisions are judged by them (5). The records are in the log before the
    offsets are sent (6), which only a current member of the group can do: so whoever recovers a task either sees an
    open transaction in its journal, and waits for it, or knows that none can come.

    Raises:
        OutdatedError: decisions are not accepted; nothing of this will be visible.
    """
    producer.begin()
    after(1)
    for part in commits:
        _send_effects(producer, topics, part)
    after(2)
    for partition, before, step, _, chunks, _ in commits:
        if before is not None:
            producer.send(topics.journal, partition, None, encode_entry(before), journal.HEADERS)
        producer.send(topics.journal, partition, None, encode_entry(step), journal.HEADERS)
        for key, value in chunks:
            producer.send(topics.snapshots, partition, key, value, codec.HEADERS)
    for part in commits:
        _send_updates(producer, topics, part)
    after(3)
    appended_ms = producer.flush()
    after(4)
    _judge_dates(producer, topics, commits, appended_ms, accepts)
    after(5)
    offsets: dict[TopicPartition, int] = {}
    for part in commits:
        offsets[TopicPartition(topics.contexts, part.partition)] = part.step.contexts[1]
        offsets[TopicPartition(topics.feedback, part.partition)] = part.step.feedback[1]
    producer.send_offsets(offsets, consumer)
    after(6)
    append_ms = producer.commit()
    after(7)
    return append_ms


def predictions_digest(values: Iterable[bytes]) -> str:
    """SHA-256 of the predictions of a step, by which they are known again."""
    digest = sha256()
    for value in values:
        digest.update(value)
    return digest.hexdigest()


COMMIT_STEPS = range(1, 8)


def _judge_dates(
    producer: TransactionalProducer,
    topics: Topics,
    commits: Sequence[Commit],
    appended_ms: Mapping[TopicPartition, int],
    accepts: Accepts,
) -> None:
    outdated: list[str] = []
    for part in commits:
        if part.effects.predictions:
            decided_at_ms = part.effects.predictions[0][0].decided_at_ms  # the others are later
            tp = TopicPartition(topics.predictions, part.partition)
            age_ms = appended_ms.get(tp, decided_at_ms) - decided_at_ms
            if not accepts(part.partition, len(part.effects.predictions), age_ms):
                outdated.append(f"partition {part.partition}, step {part.step.number}: {age_ms:,} ms")
    if outdated:
        producer.abort()
        raise OutdatedError(
            f"decisions are dated too long before their predictions were appended: {'; '.join(outdated)}"
        )


def _send_updates(producer: TransactionalProducer, topics: Topics, part: Commit) -> None:
    """Send what the log of a shared model gets: last, so that what is read of it was written a short time before."""
    if part.effects.updates:
        assert part.step.log is not None
        for value in encode_updates(part.partition, part.step.number, part.step.log.follows, part.effects.updates):
            producer.send(topics.updates, 0, None, value, updates.HEADERS)


def _send_effects(producer: TransactionalProducer, topics: Topics, part: Commit) -> None:
    send, partition, headers = producer.send, part.partition, codec.step_headers(part.step.number)
    for prediction, offset in part.effects.predictions:
        value = codec.encode_prediction(prediction, offset)
        send(topics.predictions, partition, prediction.id.encode(), value, headers)
    for example, feedback_offset in part.effects.examples:
        value = codec.encode_example(example, feedback_offset)
        send(topics.examples, partition, example.id.encode(), value, headers)
    for record, kind, reason in part.effects.dead_letters:
        key, letter, place = encode_dead_letter(record, kind, reason)
        send(topics.dead_letter, partition, key, letter, (*headers, *place[1:]))
