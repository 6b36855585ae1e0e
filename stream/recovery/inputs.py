"""Checks that a task's inputs still contain the records that the task has applied.

After an unclean leader election, a mirror or a recreated topic, an input can have other records at the same offsets. A
journal record therefore contains a digest of the last record that the task has applied from each input. If this record
is unchanged, so are all earlier ones, because a log is only truncated at its end.
"""

import struct
from collections.abc import Mapping
from hashlib import sha256
from itertools import chain

from stream.errors import NEW_PIPELINE
from stream.kafka.port import Broker
from stream.kafka.reading import read_partitions
from stream.recovery.steps import JournalStep, MissingRecordsError, UnrecoverableError
from stream.text import is_utf8
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

_DIGEST_BYTES = 8

LOST_RECORDS = f"{NEW_PIPELINE}. To repeat lost records, send them again"
"""The remedy for deleted or changed records."""


def record_digest(record: Record) -> str:
    """Return a digest of a record's append time, key, value, and headers with UTF-8 names.

    Only one of the two clients can read other headers; see `stream.kafka.confluent.headers`.
    """
    digest = sha256(struct.pack(">q", record.append_ms))
    headers = ((name.encode(), value) for name, value in record.headers if is_utf8(name))
    for part in (record.key, record.value, *chain.from_iterable(headers)):
        digest.update(struct.pack(">i", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.digest()[:_DIGEST_BYTES].hex()


def check_kept(broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
    """Check that an input partition still contains the required records.

    Raises:
        MissingRecordsError: the input begins after `offset` or ends before `end`.
    """
    beginning = broker.beginnings([tp])[tp]
    if beginning > offset:
        raise MissingRecordsError(
            f"recovery needs the records from offset {offset} on; the partition begins at {beginning}. Earlier records "
            f"were deleted. {LOST_RECORDS}",
            tp, offset, is_deleted=True,
        )  # fmt: skip
    kept_to = broker.ends([tp])[tp].stable
    if kept_to < end:
        raise MissingRecordsError(
            f"recovery needs the records up to offset {end}; the partition ends at offset {kept_to}. The topic was "
            f"recreated or truncated. {LOST_RECORDS}",
            tp, end, is_deleted=False,
        )  # fmt: skip


def check_unchanged(broker: Broker, topics: Topics, steps: Mapping[int, JournalStep]) -> None:
    """Check that the last records that tasks have applied are still in their inputs.

    A record that was deleted because of the topic's retention is not checked.

    Args:
        broker: the broker.
        topics: the topics.
        steps: each task's last step, by partition.

    Raises:
        UnrecoverableError: an input has a different record, or ends earlier.
    """
    expected = {
        TopicPartition(topic, partition): (end - 1, digest)
        for partition, step in steps.items()
        for topic, (_, end), digest in (
            (topics.contexts, step.contexts, step.last_context),
            (topics.feedback, step.feedback, step.last_feedback),
        )
        if digest
    }
    beginnings, ends = broker.beginnings(list(expected)), broker.ends(list(expected))
    for tp, (offset, _) in expected.items():
        if ends[tp].stable <= offset:
            raise MissingRecordsError(
                f"expected the record at offset {offset}, which was applied before; the partition ends at offset "
                f"{ends[tp].stable}. The topic was truncated or recreated. {LOST_RECORDS}",
                tp, offset + 1, is_deleted=False,
            )  # fmt: skip
    starts = {tp: offset for tp, (offset, _) in expected.items() if beginnings[tp] <= offset}
    found = {
        TopicPartition(record.topic, record.partition): record
        for record in read_partitions(broker, starts, {tp: offset + 1 for tp, offset in starts.items()})
    }
    for tp, offset in starts.items():
        record = found.get(tp)
        if record is None or record_digest(record) != expected[tp][1]:
            got = "no record" if record is None else f"another record, appended at {record.append_ms} ms"
            raise UnrecoverableError(
                f"expected the record at offset {offset} that was applied before; got {got}. The topic was truncated "
                f"or recreated, and written again. {LOST_RECORDS}",
                str(tp),
            )
