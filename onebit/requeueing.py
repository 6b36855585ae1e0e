"""Requeues dead letters. Each dead letter is sent to its original topic at most once."""

from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from typing import NamedTuple

from stream.kafka.port import Broker
from stream.kafka.reading import offset_at, read_partition
from stream.wire.codec import MalformedError
from stream.wire.dead_letters import DeadLetter, decode_dead_letter
from stream.wire.records import Headers, Record, TopicPartition
from stream.wire.topics import Topics, partition_for

REQUEUED_HEADER = "onebit-requeued"
"""The header of a requeued record. It contains the dead letter's PARTITION@OFFSET."""


class Fate(StrEnum):
    """The result of requeueing a dead letter."""

    REQUEUED = "written to its topic again"
    BEFORE = "skipped: already written to its topic again"
    CUT = "skipped: the stored record is incomplete"
    NO_INPUT = "skipped: the record is neither a context nor feedback"


class Requeued(NamedTuple):
    """A selected dead letter, with its position and the result of requeueing it."""

    letter: DeadLetter
    partition: int
    offset: int
    fate: Fate


def requeue(
    broker: Broker,
    topics: Topics,
    partitions: int,
    wanted: Callable[[DeadLetter], bool] = lambda letter: True,
    *,
    dry_run: bool = False,
) -> list[Requeued]:
    """Send the records in dead letters to their original topics again. Return the result for each selected dead letter.

    Each record is sent to its key's partition, with an additional header that identifies the dead letter. Because
    of this header, no dead letter is requeued twice, even if this process is killed. If the record still cannot be
    applied, the learner writes another dead letter.

    Args:
        broker: the broker.
        topics: the pipeline's topics.
        partitions: number of partitions in each topic.
        wanted: returns True if a dead letter should be requeued.
        dry_run: whether to return the results without sending anything.

    Raises:
        BrokerUnavailableError: some records were not acknowledged in time. Repeat the call to send the missing records.
    """
    places = [TopicPartition(topics.dead_letter, partition) for partition in range(partitions)]
    found = [
        (record, letter)
        for tp in places
        for record in read_partition(broker, tp)
        if (letter := _letter_of(record)) is not None and wanted(letter)
    ]
    if not found:
        return []
    before = _requeued_before(broker, topics, partitions, min(record.append_ms for record, _ in found))
    results = []
    with closing(broker.producer()) as producer:
        for record, letter in found:
            fate = _fate(record, letter, topics, before)
            if fate is Fate.REQUEUED and not dry_run:
                home = letter.partition if letter.key is None else partition_for(letter.key, partitions)
                producer.send(letter.topic, home, letter.key, letter.value, _headers(letter, _mark(record)))
            results.append(Requeued(letter, record.partition, record.offset, fate))
    return results


def _letter_of(record: Record) -> DeadLetter | None:
    try:
        return decode_dead_letter(record)
    except MalformedError:
        return None  # another program wrote the record


def _fate(record: Record, letter: DeadLetter, topics: Topics, before: set[bytes]) -> Fate:
    if letter.topic not in (topics.contexts, topics.feedback):
        return Fate.NO_INPUT
    if not letter.is_whole:
        return Fate.CUT
    return Fate.BEFORE if _mark(record) in before else Fate.REQUEUED


def _mark(record: Record) -> bytes:
    return b"%d@%d" % (record.partition, record.offset)


def _headers(letter: DeadLetter, mark: bytes) -> Headers:
    """Return the record's headers with the REQUEUED_HEADER of this dead letter in place of any earlier one."""
    own = tuple(header for header in letter.headers if header[0] != REQUEUED_HEADER)
    return (*own, (REQUEUED_HEADER, mark))


def _requeued_before(broker: Broker, topics: Topics, partitions: int, since_ms: int) -> set[bytes]:
    """Return the REQUEUED_HEADER values from all records that have been requeued since this time."""
    inputs = [TopicPartition(topic, n) for topic in (topics.contexts, topics.feedback) for n in range(partitions)]
    return {
        content
        for tp in inputs
        for record in read_partition(broker, tp, start=offset_at(broker, tp, since_ms))
        for name, content in record.headers
        if name == REQUEUED_HEADER
    }
