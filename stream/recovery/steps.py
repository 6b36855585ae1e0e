"""A task's journal: record format and readers.

The journal has one record per step, with the offsets that the step applied and the task's counts after the step.

Records are JSON objects with the fields of `JournalStep`. Fields that are 0 or None are omitted:

    {"number": 1, "contexts": [0, 20], "feedback": [0, 5], "ledger": {"contexts": 20, ...}, "settings_from": 1,
     "partitions": 1, "settings": {"learner": ...}}
    {"number": 2, "contexts": [20, 50], "feedback": [5, 95], "updates": 31, "ledger": {...}, "settings_from": 1, ...}

The task's first step contains the task's settings (see `stream.task.stored_settings`), and so does each step that
applies a request to change them.

The header `onebit-version` contains the format version, 1.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import chain, dropwhile
from typing import Any, NamedTuple

import orjson
from msgspec import Struct, convert, to_builtins

from stream.errors import OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition, read_partitions
from stream.task.settings import TaskSettings
from stream.task.stored_settings import restored_settings, stored_settings
from stream.wire.codec import VERSION_HEADER
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Headers, Record, TopicPartition, place_of
from stream.wire.topics import Topics

FORMAT = 1
HEADERS: Headers = ((VERSION_HEADER[0], b"%d" % FORMAT),)
"""The headers of journal records."""


class JournalError(OnebitError):
    """The journal or a snapshot cannot be read or continued. The message contains the remedy."""

    def __init__(self, message: str, place: str = "") -> None:
        """Describe the problem and the record, step or partition that has it. The message begins with the place."""
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class UnrecoverableError(JournalError):
    """Records that a recovery needs were deleted or changed. A pipeline that uses these topics cannot continue."""


class MissingRecordsError(UnrecoverableError):
    """A partition lacks records that a recovery needs."""

    def __init__(self, message: str, tp: TopicPartition, needed: int, *, is_deleted: bool) -> None:
        """Describe the missing records.

        Args:
            message: the needed records, the partition's records and the remedy.
            tp: the partition.
            needed: the first step that is missing from a journal; for other topics, the offset of the first needed
                record, or the offset after the last one if the partition ends too early.
            is_deleted: True if the partition's first records were deleted; False if it ends too early.
        """
        super().__init__(message, str(tp))
        self.tp = tp
        self.needed = needed
        self.is_deleted = is_deleted


class LogStep(Struct, frozen=True, omit_defaults=True):
    """A step's position in the shared model's log. `JournalStep.updates` is the model version that the step used."""

    offset: int  # offset up to which the log had been read
    follows: int  # the task's previous step that wrote to the log; 0 if there is none
    entries: int  # number of entries written by the step
    predictions: int  # number of predictions published
    sha256: str  # digest of the predictions' concatenated values
    names: tuple[str, ...] = ()  # open classes added to the log since the task's previous step
    adds: tuple[str, ...] = ()  # open classes that this step writes to the log
    change: int = 0  # offset in the control topic before which the step puts requests in force in the log; 0 if none


class ReplicaDigest(Struct, frozen=True):
    """The digest of a learner process's model, at the version that the step used."""

    instance: str  # the learner process
    sha256: str  # digest of the model's state


class JournalStep(NamedTuple):
    """A step: the offsets of the records that it applied, and the task's counts after the step."""

    number: int  # 1 for a task's first step
    contexts: tuple[int, int]  # offset of the first applied record, and the offset after the last one
    feedback: tuple[int, int]
    updates: int
    ledger: Ledger
    settings_from: int = 1  # number of the latest step whose record has `settings`; can be this step
    partitions: int = 1  # number of partitions in each input topic
    alarms: int = 0  # number of drift alarms raised by the model so far
    log: LogStep | None = None  # None if the task has its own model
    replica: ReplicaDigest | None = None  # None if the step does not report the replica
    settings: TaskSettings | None = None  # None if unchanged since the previous step
    last_context: str = ""  # digest of the last applied context; "" if no context has been applied
    last_feedback: str = ""  # digest of the last applied record of the feedback topic
    imported: str | None = None  # digest of the imported model, in the first step; see `Generation.whole`
    clock_shift_ms: int = 0  # time subtracted from append times of feedback, from this step on; 0 until a clock is set
    control: int = 0  # offset after the last request in the control topic that the task has applied or refused
    refused: tuple[tuple[int, str], ...] = ()  # offsets of the requests that this step refused, with the reasons
    # Number of offsets without a record that were read after the last applied context, and after the last applied
    # record of the feedback topic. A transaction's marker is such an offset.
    skipped: tuple[int, int] = (0, 0)
    opens: bool = False  # whether this is a moved task's first step, without records; see `stream.recovery.moving`

    @property
    def read_to(self) -> tuple[int, int]:
        """The offsets of the first records in the contexts and feedback topics that the step has not applied."""
        return self.contexts[1] + self.skipped[0], self.feedback[1] + self.skipped[1]

    @property
    def wrote(self) -> int:
        """The number of the latest step up to this one that wrote to the shared model's log; 0 if there is none."""
        return 0 if self.log is None else self.number if self.log.entries else self.log.follows


_PLAIN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "contexts": (list, lambda pair: (pair[0], pair[1])),
    "feedback": (list, lambda pair: (pair[0], pair[1])),
    "skipped": (list, lambda pair: (pair[0], pair[1])),
    "ledger": (lambda ledger: {name: n for name, n in ledger._asdict().items() if n}, lambda counts: Ledger(**counts)),
    "log": (to_builtins, partial(convert, type=LogStep)),
    "replica": (to_builtins, partial(convert, type=ReplicaDigest)),
    "settings": (stored_settings, restored_settings),
    "refused": (list, lambda pairs: tuple((offset, reason) for offset, reason in pairs)),
}
"""Conversions to and from plain values, for the `JournalStep` fields whose types JSON does not support."""


def plain_step(step: JournalStep) -> dict[str, Any]:
    """Convert a step to plain values."""
    fields: dict[str, Any] = {name: value for name, value in zip(JournalStep._fields, step, strict=True) if value}
    if not any(step.skipped):
        del fields["skipped"]
    return fields | {name: _PLAIN[name][0](fields[name]) for name in fields.keys() & _PLAIN}


def step_of_plain(fields: dict[str, Any]) -> JournalStep:
    """Convert plain values to a step; the inverse of `plain_step`. Unknown fields are ignored.

    Raises:
        KeyError, TypeError, ValueError, IndexError, AttributeError: the values do not describe a step.
    """
    values: dict[str, Any] = {"number": 0, "updates": 0}
    for name in fields.keys() & JournalStep._fields:
        values[name] = _PLAIN[name][1](fields[name]) if name in _PLAIN else fields[name]
    return JournalStep(**values)


def encode_step(step: JournalStep) -> bytes:
    """Encode a step as a journal record's value."""
    return orjson.dumps(plain_step(step))


def decode_step(record: Record) -> JournalStep:
    """Decode a journal record.

    Raises:
        JournalError: the record is in a different format, was written by another program, or cannot be read.
    """
    version = dict(record.headers).get(VERSION_HEADER[0])
    if version != HEADERS[0][1]:
        raise JournalError(
            f"expected a journal record with the header {VERSION_HEADER[0]}={FORMAT}; got "
            f"{'no such header' if version is None else repr(version)}. Another program or version wrote the record, "
            "and recovery cannot continue past this record. Allow only this version's learners to write to the journal",
            place_of(record),
        )
    try:
        return step_of_plain(orjson.loads(record.value or b""))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise JournalError(f"expected a journal record; decoding failed: {error!r}", place_of(record)) from error


def read_journal(
    broker: Broker, journal: TopicPartition, start: int | None = None, open_ms: int = 0
) -> Generator[tuple[Record, JournalStep], None, None]:
    """Yield a journal's steps, each with its record, up to the journal's current end; see `read_partition`.

    Raises:
        JournalError: a record cannot be read, or was written by another program.
    """
    for record in read_partition(broker, journal, start=start, open_ms=open_ms):
        yield record, decode_step(record)


_ESTIMATE_MARGIN = 20
"""Margin, in offsets, added to the estimated distance between a step and the journal's end."""


def read_from_step(
    broker: Broker, journal: TopicPartition, number: int, last: JournalStep
) -> Iterator[tuple[Record, JournalStep]]:
    """Yield the steps in a journal, starting with step `number`; see `read_journal`.

    A step usually uses two offsets: one for its record and one for its transaction's marker. The start offset is
    therefore estimated from the last step's number. If aborted transactions make the estimate too high, the search is
    repeated from earlier offsets.
    """
    beginning = broker.beginnings([journal])[journal]
    end = broker.ends([journal])[journal].stable
    reach = 2 * max(0, last.number - number + 1) + _ESTIMATE_MARGIN
    while True:
        start = max(beginning, end - reach)
        steps = read_journal(broker, journal, start)
        first = next(steps, None)
        if start == beginning or (first is not None and first[1].number <= number):
            entries = steps if first is None else chain((first,), steps)
            return dropwhile(lambda each: each[1].number < number, entries)
        steps.close()
        reach *= 2


def last_step(broker: Broker, journal: TopicPartition) -> JournalStep | None:
    """Return the last step in a journal, or None if the task has not taken a step."""
    return last_steps(broker, [journal]).get(journal)


def last_steps(broker: Broker, journals: Sequence[TopicPartition]) -> dict[TopicPartition, JournalStep]:
    """Return the last step in each journal that has one. The search proceeds backwards from the journals' ends."""
    newest: dict[TopicPartition, Record] = {}
    beginnings, ends = broker.beginnings(journals), broker.ends(journals)
    left = {tp: end.stable for tp, end in ends.items() if beginnings[tp] < end.stable}
    reach = 100  # number of offsets to search; transaction markers also use offsets
    while left:
        starts = {tp: max(beginnings[tp], end - reach) for tp, end in left.items()}
        for record in read_partitions(broker, starts, left):
            newest[TopicPartition(record.topic, record.partition)] = record
        left = {tp: end for tp, end in left.items() if tp not in newest and starts[tp] > beginnings[tp]}
        reach *= 10
    return {tp: decode_step(record) for tp, record in newest.items()}


class JournalFollower:
    """Reads new steps from a pipeline's journals and stores each task's last step."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int) -> None:
        """Start at each task's last step."""
        journals = [TopicPartition(topics.journal, partition) for partition in range(partitions)]
        self._consumer = broker.reader(journals)
        for journal, ends in broker.ends(journals).items():
            self._consumer.seek(journal, ends.stable)
        # Each task's last step, keyed by partition. Tasks that have not taken a step are omitted.
        self.steps = {journal.partition: step for journal, step in last_steps(broker, journals).items()}

    def read(self, timeout_ms: int) -> Ledger:
        """Read new records and return the sum of the tasks' ledgers."""
        for record in self._consumer.poll(timeout_ms, 10_000):
            self.steps[record.partition] = decode_step(record)
        return total_ledger(step.ledger for step in self.steps.values())

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()
