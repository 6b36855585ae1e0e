"""Commits a step's outputs, journal record and offsets in one transaction, in numbered stages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from stream.kafka.port import Member, TransactionalProducer
from stream.recovery import steps as journal
from stream.recovery.chunks import Message
from stream.recovery.steps import JournalStep, encode_step
from stream.task.task import Effects
from stream.wire import codec, updates
from stream.wire.dead_letters import encode_dead_letter
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from stream.wire.updates import encode_updates


class Commit(NamedTuple):
    """One task's part of a transaction."""

    partition: int
    step: JournalStep
    effects: Effects
    snapshot: Sequence[Message] = ()  # chunks of the snapshot in progress
    contexts_ms: Sequence[int] = ()  # append times of the contexts that the step applied
    ticks: bool = False  # True if the step writes a tick
    records: int = 0  # number of contexts and feedback records that the step applied
    framed: int = 0  # number of these records with the prefix of a schema registry
    steps_clock: bool = False  # True if the step begins with another `clock_shift_ms` than the step before


CrashPoint = Callable[[int], object]
"""A callback that receives the number of each completed stage of a commit. In crash tests, it raises an error."""


def commit(
    producer: TransactionalProducer,
    consumer: Member,
    topics: Topics,
    commits: Sequence[Commit],
    after: CrashPoint = lambda number: None,
) -> Mapping[TopicPartition, int]:
    """Publish steps from one or more tasks in one transaction. Return each partition's latest append time.

    The crash tests refer to the stages by number. The records are in the log (4) before the offsets are sent (5), and
    only a current member of the group can send offsets. A process that recovers a task waits until no transaction is
    open in the task's journal. After that, no earlier process can commit.
    """
    producer.begin(consumer.check_place)
    after(1)
    for part in commits:
        _send_effects(producer, topics, part)
    after(2)
    for send in (_send_state, _send_updates):
        for part in commits:
            send(producer, topics, part)
    after(3)
    appended = producer.flush()
    after(4)
    offsets: dict[TopicPartition, int] = {}
    for part in commits:
        for topic, offset in zip((topics.contexts, topics.feedback), part.step.read_to, strict=True):
            offsets[TopicPartition(topic, part.partition)] = offset
    producer.send_offsets(offsets, consumer)
    after(5)
    producer.commit()
    after(6)
    return appended


COMMIT_STEPS = range(1, 7)


def predictions_digest(values: Iterable[bytes]) -> str:
    """Return the SHA-256 digest that identifies a step's predictions."""
    return sha256(b"".join(values)).hexdigest()


def _send_state(producer: TransactionalProducer, topics: Topics, part: Commit) -> None:
    """Send the journal record and, if the step has any, snapshot chunks and a tick."""
    producer.send(topics.journal, part.partition, None, encode_step(part.step), journal.HEADERS)
    for key, value in part.snapshot:
        producer.send(topics.snapshots, part.partition, key, value, codec.HEADERS)
    if part.ticks:
        producer.send(topics.feedback, part.partition, None, None, codec.tick_headers(part.step.number))


def _send_updates(producer: TransactionalProducer, topics: Topics, part: Commit) -> None:
    """Send the records for the shared model's log.

    These records are sent last, so that the open transaction blocks readers of the log only briefly.
    """
    if part.effects.updates:
        assert part.step.log is not None
        number, follows, control = part.step.number, part.step.log.follows, part.step.control
        for value in encode_updates(part.partition, number, follows, part.effects.updates, control=control):
            producer.send(topics.updates, 0, None, value, updates.HEADERS)


def _send_effects(producer: TransactionalProducer, topics: Topics, part: Commit) -> None:
    send, partition, headers = producer.send, part.partition, codec.step_headers(part.step.number)
    for prediction, offset in part.effects.predictions:
        value = codec.encode_prediction(prediction, offset)
        send(topics.predictions, partition, prediction.id.encode(), value, headers + prediction.trace)
    for example, trace in part.effects.examples:
        send(topics.examples, partition, example.id.encode(), codec.encode_example(example), headers + trace)
    for record, kind, reason in part.effects.dead_letters:
        key, letter, place = encode_dead_letter(record, kind, reason)
        send(topics.dead_letter, partition, key, letter, (*headers, *place[1:]))
