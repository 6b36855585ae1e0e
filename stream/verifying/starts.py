"""Finds the steps at which the check of a range, or an export as of the past, can start.

A *start* is a step with a snapshot and a retained journal record. If all later records are retained as well, the check
of a range takes the state in the snapshot as given, and recomputes everything that follows.
"""

from collections.abc import Iterator
from typing import NamedTuple

from stream.kafka.port import Broker
from stream.kafka.reading import offset_at, offset_of_number, read_partition
from stream.recovery.chunks import read_snapshots
from stream.recovery.state import ModelSnapshot, decode_model
from stream.recovery.steps import JournalStep, last_step, read_from_step, read_journal
from stream.recovery.torn import outputs_of
from stream.wire.codec import step_of
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

CLOCKS_MS = 60_000
"""Assumed limit for the difference between the clocks of the brokers that lead a task's partitions."""


class Start(NamedTuple):
    """A step after which records can be checked."""

    step: JournalStep
    append_ms: int  # append time of the step's journal record


def starts_of(broker: Broker, topics: Topics, partition: int) -> list[Start]:
    """Return the steps with a snapshot from which a task can be rebuilt up to its last step, in order.

    Raises:
        JournalError: the journal or the snapshots cannot be read.
    """
    journal = TopicPartition(topics.journal, partition)
    inputs = [TopicPartition(topic, partition) for topic in (topics.contexts, topics.feedback)]
    last, beginnings = last_step(broker, journal), broker.beginnings(inputs)
    starts: list[Start] = []
    if last is None:
        return starts
    for number in sorted({each.number for each in read_snapshots(broker, topics, partition).complete.values()}):
        record, step = next(read_from_step(broker, journal, number, last), (None, None))
        if record is None or step is None or step.number != number:
            continue
        if all(beginnings[tp] <= offset for tp, offset in zip(inputs, step.read_to, strict=True)):
            starts.append(Start(step, record.append_ms))
    return starts


def deleted(broker: Broker, topics: Topics, partition: int) -> dict[TopicPartition, int]:
    """Return the first offsets of a task's partitions whose first records were deleted, apart from the snapshots."""
    tps = [TopicPartition(topic, partition) for topic in topics if topic != topics.snapshots]
    return {tp: beginning for tp, beginning in broker.beginnings(tps).items() if beginning > 0}


def start_of_check(
    broker: Broker,
    topics: Topics,
    partition: int,
    from_step: int | None = None,
    since_ms: int | None = None,
    version_min: int = 0,
) -> Start | None:
    """Return the start for the check of a range, or None if all records must be checked.

    Without `from_step` and `since_ms`, all records are checked unless some were deleted, or the pipeline was moved. In
    these cases, the first start is used after which all records are retained. In a moved pipeline, it is the opening.

    Args:
        broker: the broker.
        topics: the topics.
        partition: the task's partition.
        from_step: the first step to check. The check can start earlier.
        since_ms: the first time to check.
        version_min: the lowest version of a shared model's log that can be applied; 0 if the log is whole.

    Raises:
        JournalError: the journal or the snapshots cannot be read.
    """
    is_whole = not deleted(broker, topics, partition) and not version_min and not _is_moved(broker, topics, partition)
    if since_ms is not None:
        journal = TopicPartition(topics.journal, partition)
        record, first = next(read_journal(broker, journal, offset_at(broker, journal, since_ms)), (None, None))
        last = last_step(broker, journal)
        until = first.number if record is not None and first is not None else 1 + (0 if last is None else last.number)
        from_step = max(from_step or 1, until)
    if is_whole and from_step is None:
        return None
    usable = [
        start
        for start in starts_of(broker, topics, partition)
        if start.step.updates >= version_min and _is_kept(broker, topics, partition, start)
    ]
    early = [start for start in usable if from_step is not None and start.step.number < from_step]
    if early:
        return early[-1]
    return None if is_whole or not usable else usable[0]


def _is_moved(broker: Broker, topics: Topics, partition: int) -> bool:
    """Return whether a task's first retained step is the opening of a moved task."""
    _, first = next(read_journal(broker, TopicPartition(topics.journal, partition)), (None, None))
    return first is not None and first.opens


def _is_kept(broker: Broker, topics: Topics, partition: int, start: Start) -> bool:
    """Return whether the output topics contain all records of the steps after a start.

    Retention deletes whole segments, so it reaches different steps in different topics.
    """
    journal = TopicPartition(topics.journal, partition)
    last = last_step(broker, journal)
    for tp in deleted(broker, topics, partition):
        if tp.topic not in (topics.predictions, topics.examples, topics.dead_letter) or last is None:
            continue
        ends, count = last, 0
        for number in _steps_in(broker, tp):
            if number <= start.step.number:
                count = -1
                break
            if count and number != ends.number:
                break
            if not count:
                _, ends = next(read_from_step(broker, journal, number, last), (None, last))
            count += 1
        if count >= 0 and outputs_of(ends, start.step.ledger, topics)[tp.topic] > count:
            return False
    return True


def _steps_in(broker: Broker, tp: TopicPartition) -> Iterator[int]:
    """Yield the numbers of the steps that published a partition's records."""
    return (number for record in read_partition(broker, tp) if (number := step_of(record)))


def first_model(broker: Broker, topics: Topics) -> ModelSnapshot | None:
    """Return the oldest snapshot of a shared model after which the log is retained, or None if the log is whole.

    The result is also None if there is no such snapshot.
    """
    tp = TopicPartition(topics.updates, 0)
    beginning = broker.beginnings([tp])[tp]
    if beginning == 0:
        return None
    for number in sorted({each.number for each in read_snapshots(broker, topics, None).complete.values()}):
        generation = read_snapshots(broker, topics, None, number).newest
        if generation is not None and (snapshot := decode_model(generation)).offset >= beginning:
            return snapshot
    return None


def first_offset(broker: Broker, tp: TopicPartition, start: Start) -> int:
    """Return an offset at or before the first record in an output partition from a step after a start.

    The step numbers can be out of order if a mirror has appended a record twice, and the times if a clock was set.
    """
    by_number = offset_of_number(broker, tp, start.step.number + 1, lambda record: step_of(record) or None)
    return min(by_number, offset_at(broker, tp, start.append_ms - CLOCKS_MS))


BEFORE_ALL = JournalStep(0, (0, 0), (0, 0), 0, Ledger())
"""A placeholder for the time before a task's first step."""
