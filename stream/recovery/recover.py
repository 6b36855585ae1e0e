"""Recovery: a task as its last commit, or any step before, left it, from snapshots, journal and inputs."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from stream.brokers.port import Broker
from stream.brokers.reading import _read_towards, read_partition
from stream.joining.task import Effects, Task, TaskSettings, merge
from stream.recovery.journal import (
    JournalError,
    JournalStep,
    _flat,
    _place,
    decode_step,
    encode_settings,
    last_step,
    settings_of,
    with_defaults,
)
from stream.recovery.snapshot import restore
from stream.recovery.snapshot_format import Generation, Snapshot, SnapshotError, Stored, decode
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


class Recovered(NamedTuple):
    """A task as its last commit left it, and where it goes on."""

    task: Task
    number: int  # of its last step; 0: it has made none
    contexts_offset: int
    feedback_offset: int
    stored: Stored  # what its snapshots topic holds
    snapshot_ms: int  # the broker's time of its newest snapshot, or else of its first step; -1: there is neither
    snapshot_ledger: Ledger  # as it was then
    imported: str | None  # the model that it began with


class Progress(NamedTuple):
    """How far a recovery has come."""

    number: int  # of the last step applied again
    first: int  # of the first one to be applied again, and of the last
    last: int
    records: int  # applied again so far


Report = Callable[[Progress], None]


def recover(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings,
    progress: Report = lambda progress: None,
) -> Recovered:
    """Bring a task to its last commit, from where it can go on; write nothing.

    Raises:
        JournalError: it was written with other settings, or records that are needed are gone.
    """
    recovered = rebuild(broker, topics, partition, settings, progress)
    if recovered.number > 0:
        for topic, offset in (
            (topics.contexts, recovered.contexts_offset),
            (topics.feedback, recovered.feedback_offset),
        ):
            _check_kept(broker, TopicPartition(topic, partition), offset, offset)
    return recovered


Observer = Callable[[int, Effects], None]
"""Told the number of a step and what it publishes."""


def rebuild(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings | None,
    progress: Report = lambda progress: None,
    *,
    until: int | None = None,
    snapshots: bool = True,
    observe: Observer = lambda number, effects: None,
) -> Recovered:
    """The state of a task after its last step, or after an earlier one; write nothing.

    That is its newest whole snapshot, and what it had applied after that applied again, in the journal's order.

    Args:
        broker: where the topics are.
        topics: the topics.
        partition: the task.
        settings: its settings; None for those that it was begun with.
        progress: is told after each step how far it has come.
        until: the number of the step after which to stop; None for the last.
        snapshots: False to begin with the journal's first step.
        observe: is told what each step that is applied again would publish.

    Raises:
        JournalError: it was written with other settings, or records that are needed are gone.
    """
    journal = TopicPartition(topics.journal, partition)
    stored = _read_snapshots(broker, topics, partition, until if snapshots else 0)
    last = last_step(broker, journal)
    if stored.newest is not None:
        start = _from_snapshot(broker, topics, stored, stored.newest, last, journal, settings)
    elif last is not None:
        start = _from_opening(broker, topics, stored, journal, settings)
    else:
        return _untouched(broker, topics, partition, stored, settings)
    return _apply_again(broker, topics, partition, start, last, until, progress, observe)


class _Start(NamedTuple):
    """Where the application of the journal begins."""

    recovered: Recovered
    journal_offset: int


def _read_snapshots(broker: Broker, topics: Topics, partition: int, number_max: int | None) -> Stored:
    tp = TopicPartition(topics.snapshots, partition)
    stored = Stored(number_max)
    for record in read_partition(broker, tp):
        try:
            stored.add(record.key, record.value)
        except SnapshotError as error:
            raise JournalError(f"{_place(record)}: {error}") from error
    return stored


def _decoded(topics: Topics, journal: TopicPartition, generation: Generation) -> Snapshot:
    try:
        return decode(generation)
    except SnapshotError as error:
        raise JournalError(f"{topics.snapshots}/{journal.partition}: {error}") from error


def _restored(found: Snapshot, settings: TaskSettings, topics: Topics, journal: TopicPartition) -> Task:
    try:
        return restore(found, settings, topics.contexts)
    except SnapshotError as error:
        raise JournalError(f"{topics.snapshots}/{journal.partition}: {error}") from error


def _from_snapshot(
    broker: Broker,
    topics: Topics,
    stored: Stored,
    newest: Generation,
    last: JournalStep | None,
    journal: TopicPartition,
    settings: TaskSettings | None,
) -> _Start:
    place = f"the snapshot in {topics.snapshots}/{journal.partition}, generation {newest.number},"
    found = _decoded(topics, journal, newest)
    if settings is None:
        settings = settings_of(found.settings, place)
    _check_settings(found.settings, settings, place)
    number, journal_offset, contexts_offset, feedback_offset, taken_ms = found.position
    if last is None and broker.beginnings([journal])[journal] > 0:
        pass  # all has been deleted, which is refused where the steps are missed
    elif last is None or last.number < number:
        raise JournalError(
            f"{place} was taken after step {number} of {journal.topic}/{journal.partition}, which holds "
            f"{'no step' if last is None else f'steps up to {last.number}'}: the topic was made anew since; start anew "
            "under another --topic-prefix"
        )
    task = _restored(found, settings, topics, journal)
    recovered = Recovered(task, number, contexts_offset, feedback_offset, stored, taken_ms, found.ledger, None)
    return _Start(recovered, journal_offset)


def _from_opening(
    broker: Broker, topics: Topics, stored: Stored, journal: TopicPartition, settings: TaskSettings | None
) -> _Start:
    record = next(iter(read_partition(broker, journal)))
    opening = decode_step(record)
    if isinstance(opening, JournalStep):
        raise JournalError(
            f"{journal.topic}/{journal.partition} begins with step {opening.number}, without a snapshot of before: "
            "what came before it is gone; set its retention.ms to -1, and start anew under another --topic-prefix"
        )
    if settings is None:
        settings = settings_of(opening, f"{journal.topic}/{journal.partition}")
    _check_settings(opening, settings, f"{journal.topic}/{journal.partition}")
    imported = orjson.loads(record.value or b"").get("import")
    if imported is None:
        task = Task(settings, topics.contexts)
    else:
        task = _imported(topics, journal, stored, imported, settings)
    recovered = Recovered(task, 0, -1, -1, stored, record.append_ms, Ledger(), imported)
    return _Start(recovered, record.offset + 1)


def _imported(topics: Topics, journal: TopicPartition, stored: Stored, wanted: str, settings: TaskSettings) -> Task:
    """The task as an imported model starts it."""
    if stored.imported is None or stored.imported.whole != wanted:
        raise JournalError(
            f"{journal.topic}/{journal.partition} was begun with the imported model {wanted[:16]}; "
            f"{topics.snapshots}/{journal.partition} does not hold it any more; start anew under another --topic-prefix"
        )
    found = _decoded(topics, journal, stored.imported)
    place = f"the model imported into {topics.snapshots}/{journal.partition}"
    begun = with_defaults(asdict(settings_of(found.settings, place)))
    given = with_defaults(asdict(settings))
    for name in found.settings:  # those that a model depends on
        if given[name] != begun[name]:
            raise JournalError(
                f"{place} is of {name} = {begun[name]!r}; got {given[name]!r}: start with the settings of the model"
            )
    return _restored(found, settings, topics, journal)


def _untouched(
    broker: Broker, topics: Topics, partition: int, stored: Stored, settings: TaskSettings | None
) -> Recovered:
    """The task of a journal without records: a new one, if nothing was deleted."""
    journal = TopicPartition(topics.journal, partition)
    beginning = broker.beginnings([journal])[journal]
    if beginning > 0:
        raise JournalError(
            f"{journal.topic}/{journal.partition} is kept from offset {beginning} on: what came before it is gone; set "
            "its retention.ms to -1, and start anew under another --topic-prefix"
        )
    if settings is None:
        raise JournalError(f"{journal.topic}/{journal.partition} is empty: no step has been made")
    starts = broker.beginnings([TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)])
    imported = None if stored.imported is None else stored.imported.whole
    task = Task(settings, topics.contexts)
    if imported is not None:
        task = _imported(topics, journal, stored, imported, settings)
    contexts_offset, feedback_offset = starts.values()
    return Recovered(task, 0, contexts_offset, feedback_offset, stored, -1, Ledger(), imported)


def _apply_again(
    broker: Broker,
    topics: Topics,
    partition: int,
    start: _Start,
    last: JournalStep | None,
    until: int | None,
    progress: Report,
    observe: Observer,
) -> Recovered:
    recovered, journal_offset = start
    journal = TopicPartition(topics.journal, partition)
    task, first = recovered.task, recovered.number + 1
    final = recovered.number if last is None else last.number if until is None else min(until, last.number)
    number, applied, records = recovered.number, None, 0
    inputs: _Inputs | None = None
    beginning = broker.beginnings([journal])[journal]
    try:
        for record in read_partition(broker, journal, start=max(beginning, journal_offset)):
            step = decode_step(record)
            if not isinstance(step, JournalStep) or step.number < first:
                continue  # the steps before the snapshot was taken, of which the last stand behind its position
            if step.number != number + 1:
                raise _wrong_step(journal, number + 1, step.number, journal_offset, beginning)
            if until is not None and step.number > until:
                break
            if inputs is None:
                inputs = _Inputs(broker, topics, partition, step, last or step)
                progress(Progress(number, first, final, 0))
            batch = inputs.of(step)
            observe(step.number, task.step(batch, step.now_ms, step.feedback_end_ms, step.reading))
            _check_same(task, step, journal)
            number, applied, records = step.number, step, records + len(batch)
            progress(Progress(number, first, final, records))
    finally:
        if inputs is not None:
            inputs.close()
    if applied is None:
        if beginning > journal_offset:
            raise _wrong_step(journal, number + 1, None, journal_offset, beginning)
        return recovered
    return recovered._replace(number=number, contexts_offset=applied.contexts[1], feedback_offset=applied.feedback[1])


def _wrong_step(
    journal: TopicPartition, expected: int, got: int | None, journal_offset: int, beginning: int
) -> JournalError:
    """The journal was written by two learners at once, or has lost steps."""
    place = f"{journal.topic}/{journal.partition}"
    if beginning > journal_offset:
        return JournalError(
            f"recovery needs {place} from offset {journal_offset} on, where step {expected} stands; it is kept from "
            f"{beginning} on: set its retention.ms to -1, and start anew under another --topic-prefix"
        )
    return JournalError(
        f"{place}: expected step {expected}; got {got}: another program has written to it; start anew under another "
        "--topic-prefix"
    )


def _check_settings(begun: Mapping[str, Any], settings: TaskSettings, place: str) -> None:
    """Refuse to continue under settings that would have given another state."""
    given = _flat(with_defaults(orjson.loads(encode_settings(settings))["settings"]))
    begun = _flat(with_defaults(asdict(settings_of(begun, place))))
    for name in sorted(given.keys() | begun.keys()):
        if begun.get(name) != given.get(name):
            raise JournalError(
                f"{place} was begun with {name} = {begun.get(name)!r}; got {given.get(name)!r}: start with the "
                "settings of before, or anew under another --topic-prefix"
            )


def _check_same(task: Task, last: JournalStep, journal: TopicPartition) -> None:
    """A step that is applied again must leave the task where the journal says that it stood."""
    if (task.join.ledger(), task.updates) != (last.ledger, last.updates):
        raise JournalError(
            f"step {last.number} of {journal.topic}/{journal.partition}: expected {last.ledger} after {last.updates} "
            f"updates; got {task.join.ledger()} after {task.updates}: the inputs have changed since they were applied"
        )


class _Inputs:
    """The two inputs of a task, read again in the portions that its journal names."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: JournalStep, last: JournalStep) -> None:
        contexts, feedback = TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)
        self._contexts = _Input(broker, contexts, first.contexts[0], last.contexts[1])
        self._feedback = _Input(broker, feedback, first.feedback[0], last.feedback[1])

    def of(self, step: JournalStep) -> list[Record]:
        contexts = self._contexts.up_to(step.contexts[1])
        feedback = self._feedback.up_to(step.feedback[1])
        records_max = len(contexts) + len(feedback)
        return merge(contexts, feedback, contexts_ended=True, feedback_ended=True, records_max=records_max)

    def close(self) -> None:
        self._contexts.close()
        self._feedback.close()


def _check_kept(broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
    """Refuse to go on when records of an input that are still needed were deleted."""
    beginning = broker.beginnings([tp])[tp]
    if beginning > offset:
        raise JournalError(
            f"recovery needs {tp.topic}/{tp.partition} from offset {offset}; it is kept from {beginning} on: raise "
            "its retention.ms, and start anew under another --topic-prefix"
        )
    kept_to = broker.ends([tp])[tp].stable
    if kept_to < end:
        raise JournalError(
            f"recovery needs {tp.topic}/{tp.partition} up to offset {end}; it ends at {kept_to}: the topic was "
            "made anew since; start anew under another --topic-prefix"
        )


class _Input:
    def __init__(self, broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
        _check_kept(broker, tp, offset, end)
        self._tp = tp
        self._consumer = broker.reader([tp])
        self._consumer.seek(tp, offset)
        self._buffer: deque[Record] = deque()

    def up_to(self, end: int) -> deque[Record]:
        """The records before an offset that have not been taken yet."""
        taken: deque[Record] = deque()
        while True:
            while self._buffer and self._buffer[0].offset < end:
                taken.append(self._buffer.popleft())
            if self._buffer or self._consumer.position(self._tp) >= end:
                return taken
            self._buffer.extend(_read_towards(self._consumer, self._tp, end))

    def close(self) -> None:
        self._consumer.close()
