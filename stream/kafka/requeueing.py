"""Dead letters put into their topics again, once each."""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from stream.kafka.browsing import offset_at
from stream.kafka.partitioner import partition_for
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire.codec import MalformedError
from stream.wire.dead_letters import DeadLetter, decode_dead_letter
from stream.wire.records import Headers, Record, TopicPartition
from stream.wire.topics import Topics

REQUEUED_HEADER = "onebit-requeued"
"""In a record that was put again: PARTITION@OFFSET of its dead letter. So whoever looks sees which ones were."""


class Fate(StrEnum):
    """What becomes of a dead letter."""

    REQUEUED = "put into its topic again"
    BEFORE = "passed over: it was put again before"
    CUT = "passed over: not all of the record was kept"
    NO_INPUT = "passed over: its record is no context and no feedback"


class Requeued(NamedTuple):
    """A dead letter that was asked for, where it stands, and what became of it."""

    letter: DeadLetter
    partition: int
    offset: int
    fate: Fate


def requeue(
    broker: Broker,
    topics: Topics,
    partitions: int,
    wanted: Callable[[DeadLetter], bool] = lambda letter: True,
    told: Callable[[Requeued], None] = lambda requeued: None,
    *,
    dry_run: bool = False,
) -> Counter[Fate]:
    """Put dead letters into their topics again, as the records that they were, and count what became of each.

    A record goes to the partition of its key. It has one header more, which says which letter it was: one that was put
    again is not put a second time, even if this process is killed amid its work. One that cannot be used still becomes
    another dead letter.

    Args:
        broker: where the topics are.
        topics: those of the pipeline.
        partitions: how many each has.
        wanted: which letters are meant.
        told: hears of each letter that is wanted, when it has its fate.
        dry_run: only tell what would be done.

    Raises:
        BrokerUnavailableError: not all were acknowledged in time; the next call puts those that are missing.
    """
    places = [TopicPartition(topics.dead_letter, partition) for partition in range(partitions)]
    found = [
        (record, letter)
        for tp in places
        for record in read_partition(broker, tp)
        if (letter := _letter_of(record)) is not None and wanted(letter)
    ]
    if not found:
        return Counter()
    before = _requeued_before(broker, topics, partitions, min(record.append_ms for record, _ in found))
    counts: Counter[Fate] = Counter()
    producer = broker.producer()
    try:
        for record, letter in found:
            fate = _fate(record, letter, topics, before)
            if fate is Fate.REQUEUED and not dry_run:
                home = letter.partition if letter.key is None else partition_for(letter.key, partitions)
                producer.send(letter.topic, home, letter.key, letter.value, _headers(letter, _mark(record)))
            counts[fate] += 1
            told(Requeued(letter, record.partition, record.offset, fate))
        producer.flush()
    finally:
        producer.close()
    return counts


def _letter_of(record: Record) -> DeadLetter | None:
    try:
        return decode_dead_letter(record)
    except MalformedError:
        return None  # what another program has put there


def _fate(record: Record, letter: DeadLetter, topics: Topics, before: set[bytes]) -> Fate:
    if letter.topic not in (topics.contexts, topics.feedback):
        return Fate.NO_INPUT
    if not letter.is_whole:
        return Fate.CUT
    return Fate.BEFORE if _mark(record) in before else Fate.REQUEUED


def _mark(record: Record) -> bytes:
    return b"%d@%d" % (record.partition, record.offset)


def _headers(letter: DeadLetter, mark: bytes) -> Headers:
    """The record's own, and which letter it was; not the mark of an earlier time, when it could not be used either."""
    own = tuple(header for header in letter.headers if header[0] != REQUEUED_HEADER)
    return (*own, (REQUEUED_HEADER, mark))


def _requeued_before(broker: Broker, topics: Topics, partitions: int, since_ms: int) -> set[bytes]:
    """The letters whose records stand in an input again: behind the time of the first letter that is asked for."""
    inputs = [TopicPartition(topic, n) for topic in (topics.contexts, topics.feedback) for n in range(partitions)]
    return {
        content
        for tp in inputs
        for record in read_partition(broker, tp, start=offset_at(broker, tp, since_ms))
        for name, content in record.headers
        if name == REQUEUED_HEADER
    }
