"""Detects a step whose transaction was committed in part.

A client that loses its connection during a commit or abort repeats the request. If the first request reaches the broker
during the next transaction of the same epoch, it ends this transaction halfway (KIP-890). Onebit's producers prevent
this; see `stream.kafka.producers`. This module checks the journal's last step, because a half step usually ends its
learner. `onebit verify` checks all steps.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from stream.errors import NEW_PIPELINE
from stream.kafka.port import Broker
from stream.kafka.reading import read_partitions
from stream.recovery.steps import JournalStep, UnrecoverableError, last_step, read_from_step
from stream.wire.codec import MalformedError, decode_example, decode_prediction, step_of
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

SETTLED_COUNTS = ("matched", "expired", "unmatched", "unshown")
LETTER_COUNTS = ("context_malformed", "feedback_malformed", "mismatched", "orphans_dropped", "feedback_excess")
"""Ledger fields that count the examples and dead letters from a step."""

REMEDY = f"Kafka cannot restore the rest. {NEW_PIPELINE}"
IN_PART = f"The step's transaction was committed in part. {REMEDY}"
"""The cause and the remedy, for messages."""

_REACH = 100  # number of offsets in the first search from the end of a partition


def outputs_of(step: JournalStep, before: Ledger, topics: Topics) -> dict[str, int]:
    """Return the number of records that a step published in each output topic."""

    def added(names: tuple[str, ...]) -> int:
        return sum(getattr(step.ledger, name) - getattr(before, name) for name in names)

    return {
        topics.predictions: added(("decided",)),
        topics.examples: added(SETTLED_COUNTS),
        topics.dead_letter: added(LETTER_COUNTS),
    }


def check_whole(broker: Broker, topics: Topics, partition: int, last: JournalStep | None) -> None:
    """Check that the output topics contain the journal's last step, and no later step.

    A partition with an open transaction is not checked, because its last records cannot be read. Deleted records are
    not reported as missing.

    Raises:
        UnrecoverableError: a step was committed in part.
    """
    journal = TopicPartition(topics.journal, partition)
    number = 0 if last is None else last.number
    expected = _expected(broker, topics, journal, last)
    tps = [TopicPartition(topic, partition) for topic in (topics.predictions, topics.examples, topics.dead_letter)]
    for tp, found in _last_steps(broker, topics, _readable(broker, tps), number, expected).items():
        later = max(found.counts, default=0)
        if later > number and not _has_moved(broker, journal, number):
            raise UnrecoverableError(
                f"expected no records after step {number}, the last in {journal}; got records of step {later}. "
                f"{IN_PART}",
                str(tp),
            )
        if found.counts[number] < expected[tp.topic] and found.is_kept:
            raise UnrecoverableError(
                f"expected the {expected[tp.topic]} records that {journal} counts in step {number}; got "
                f"{found.counts[number]}. {IN_PART}",
                str(tp),
            )


def check_log(broker: Broker, topics: Topics, partition: int, last: JournalStep, logged: int) -> None:
    """Check that the shared model's log contains no later step of a task than the journal.

    Args:
        broker: the broker.
        topics: the topics.
        partition: the task's partition.
        last: the task's last step.
        logged: number of the task's last step in the log.

    Raises:
        UnrecoverableError: a step was committed in part.
    """
    journal = TopicPartition(topics.journal, partition)
    if logged > last.number and not _has_moved(broker, journal, last.number):
        raise UnrecoverableError(
            f"expected no updates of partition {partition} after step {last.number}, the last in {journal}; got some "
            f"of step {logged}. {IN_PART}",
            topics.updates,
        )


def _expected(broker: Broker, topics: Topics, journal: TopicPartition, last: JournalStep | None) -> Mapping[str, int]:
    """Return the number of records in the last step, by topic; 0 if they are unknown, because a step was deleted."""
    if last is not None and not last.opens:
        before = Ledger() if last.number == 1 else None
        for _, step in read_from_step(broker, journal, max(1, last.number - 1), last):
            if step.number == last.number - 1:
                before = step.ledger
            elif step.number == last.number and before is not None:
                return outputs_of(last, before, topics)
    return Counter()


def _readable(broker: Broker, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions without an open transaction."""
    return [tp for tp, end in broker.ends(tps).items() if end.stable == end.high_watermark]


def _has_moved(broker: Broker, journal: TopicPartition, number: int) -> bool:
    """Return whether another process has committed a later step, or may be about to."""
    if not _readable(broker, [journal]):
        return True
    newest = last_step(broker, journal)
    return newest is not None and newest.number > number


class _Found(NamedTuple):
    """The records at the end of an output partition."""

    counts: Counter[int]  # the number of records by step
    is_kept: bool  # whether no record of the last step can have been deleted


def _last_steps(
    broker: Broker, topics: Topics, tps: Sequence[TopicPartition], number: int, expected: Mapping[str, int]
) -> dict[TopicPartition, _Found]:
    """Count the records at the ends of output partitions by step, including those of step `number`.

    The search ends at an earlier step, but not before it has found the expected number of records, because a mirror can
    append old records. Records that cannot be decoded are from other programs.
    """
    decoders: dict[str, Callable[[Record], Any]] = {
        topics.predictions: decode_prediction,
        topics.examples: decode_example,
        topics.dead_letter: decode_dead_letter,
    }
    beginnings, ends, reach = broker.beginnings(tps), broker.ends(tps), _REACH
    left, found = set(tps), dict[TopicPartition, _Found]()
    while left:
        starts = {tp: max(beginnings[tp], ends[tp].stable - reach) for tp in left}
        counts = {tp: Counter[int]() for tp in left}
        for record in read_partitions(broker, starts, {tp: ends[tp].stable for tp in left}):
            if step := step_of(record):
                with suppress(MalformedError):
                    decoders[record.topic](record)
                    counts[TopicPartition(record.topic, record.partition)][step] += 1
        for tp, of_tp in counts.items():
            has_earlier = any(step < number for step in of_tp)
            if starts[tp] == beginnings[tp] or (has_earlier and of_tp[number] >= expected[tp.topic]):
                found[tp] = _Found(of_tp, is_kept=beginnings[tp] == 0 or has_earlier)
        left -= found.keys()
        reach *= 10
    return found
