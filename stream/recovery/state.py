"""Encodes and decodes a snapshot's content: the state of a task or of a shared model.

A state is a sequence of sections (see `stream.wire.sections`):

    state     values: the task's settings, its last step and its times; `model` for a shared model
    learner   one part of `Learner.state()`; one section for each part
    pending   a block of pending decisions, oldest first; as many sections as needed
    deferred  a block of deferred decisions that are waiting to be shown
    shown     a block of pending decisions that were deferred, in the order in which they were shown
    orphans   a block of feedback that is waiting for its context
    more      a block of further feedback for the ids of orphans
    answers   a block of feedback for pending decisions whose reward later feedback can change
    retained  a block of settled ids, with the decisions that late feedback can correct
    end       empty, and always last

A *block* contains up to BLOCK_ENTRIES join entries, encoded as MessagePack in the array `entries`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import msgpack
from numpy.typing import NDArray

from stream.learners import Learner, State
from stream.recovery.chunks import Generation
from stream.recovery.slices import Parts, at_once, finish
from stream.recovery.steps import JournalError, JournalStep, plain_step, step_of_plain
from stream.settings.model import Change
from stream.shared.history import Earlier, History
from stream.shared.replica import Place, Replica, SettingsAfter, unchanged
from stream.task.answers import Answer
from stream.task.carry import Models, no_models
from stream.task.join import Orphan, Pending, Retained
from stream.task.settings import TaskSettings
from stream.task.stored_settings import (
    PARAMETER,
    STORED,
    check_settings,
    differences,
    model_settings,
    restored_settings,
    stored_settings,
)
from stream.task.task import Task
from stream.wire.control import Replaced
from stream.wire.records import NOTHING_LOGGED, DecisionTime, Feedback, FloatArray, IndexArray
from stream.wire.sections import Section, SectionReader, encode_section

BLOCK_ENTRIES = 2_000
"""Maximum number of join entries in one section. Encoding a section takes about 4 ms."""

RESTORED_ENTRIES = 20_000
"""Number of retained ids that are restored between two steps of the running partitions. This takes about 20 ms."""

Entries = Sequence[Sequence[Any]]
"""Join entries as columns, oldest first. There are no columns if there are no entries."""


class Snapshot(NamedTuple):
    """A task's state after a step."""

    settings: Mapping[str, Any]  # by name; for an imported model, only the settings on which the model depends
    step: JournalStep  # its number is 0 for an imported model
    dated_ms: int  # time of the latest decision so far
    undated: Mapping[int, DecisionTime]  # unknown decision times, keyed by step; some of these decisions may be settled
    stream_ms: int
    classes: list[str]  # names of open classes, in index order; empty unless the classes are open
    learner: State  # empty with a shared model
    pending: Entries = ()  # columns: ids, Pending
    orphans: Entries = ()  # columns: ids, Orphan
    retained: Entries = ()  # columns: ids, Retained, settlement stream times
    deferred: Entries = ()  # columns: ids, Pending
    shown: Entries = ()  # columns: ids, Pending
    more: Entries = ()  # columns: ids, Orphan
    answers: Entries = ()  # columns: ids, Answer


class ModelSnapshot(NamedTuple):
    """A shared model at a specific version."""

    settings: Mapping[str, Any]  # by name; for an imported model, only the settings on which the model depends
    version: int
    updates: int
    offset: int
    control: int
    places: Mapping[int, Place]
    classes: list[str]  # names of open classes, in index order
    learner: State
    changes: Sequence[tuple[int, Mapping[str, Replaced]]] = ()  # earlier changes; see `_changes_of`


class Spare(NamedTuple):
    """An earlier copy of a learner's state, whose arrays can be overwritten.

    Copying 100 MB takes 10 ms into reused memory, but 250 ms into new memory.
    """

    settings: Mapping[str, Any]  # stored settings of the learner
    state: State


def _copied(learner: Learner, settings: Mapping[str, Any], spare: Spare | None) -> State:
    """Return a copy of a learner's state, if possible in the memory of `spare`.

    Tasks of one process can have different settings for a short time, because a change reaches them one by one.
    """
    if spare is None or spare.settings != settings:
        return learner.state()
    return learner.state_into(spare.state)


def take(task: Task, step: JournalStep, spare: Spare | None = None) -> Snapshot:
    """Copy a task's state.

    Later steps do not change the copy, except for decision times that are still unknown. Unknown times are not encoded.

    Args:
        task: the task.
        step: the task's last step.
        spare: an earlier copy. It is overwritten if it has the same settings.
    """
    join, settings = task.join, stored_settings(task.settings)
    learner = _copied(task.learner, settings, spare) if task.settings.model == "own" else {}
    classes = list(task.classes.names or ()) if task.classes.is_open else []
    return Snapshot(
        settings, step, join.dated_ms, dict(task.undated), join.stream_ms, classes, learner,
        _entries(join.pending), _entries(join.orphans),
        (*_entries(join.retained), join.settled.times_ms()), _entries(join.deferred), _entries(join.shown),
        _entries_of_lists(join.more), _entries(join.answers),
    )  # fmt: skip


def take_model(replica: Replica, spare: Spare | None = None) -> ModelSnapshot:
    """Copy a shared model's state; see `take`."""
    assert not replica.is_overlaid
    settings = stored_settings(replica.settings)
    return ModelSnapshot(
        settings, replica.version, replica.updates, replica.offset, replica.control,
        dict(replica.places), list(replica.names),
        _copied(replica.learner, settings, spare),
        _changes_of(replica.history),
    )  # fmt: skip


def _changes_of(history: History) -> list[tuple[int, dict[str, Replaced]]]:
    """Return the offset of the earlier settings and the settings that differ, for each change, oldest first."""
    chain = [*history.earlier, Earlier(history.control, history.settings)]
    return [(before.control, differences(before.settings, after.settings)) for before, after in pairwise(chain)]


def _history_of(snapshot: ModelSnapshot) -> History:
    """Return the settings in a snapshot; the inverse of `_changes_of`."""
    stored, earlier = dict(snapshot.settings), list[Earlier]()
    for control, changes in reversed(snapshot.changes):
        stored |= {name: one.old for name, one in changes.items()}
        gone = [name for name in stored if name.startswith(PARAMETER) and stored[name] is None]
        for name in gone:  # a parameter of a later learner
            del stored[name]
        earlier.insert(0, Earlier(control, restored_settings(stored)))
    return History(restored_settings(snapshot.settings), snapshot.control, earlier)


def _entries(kept: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Return the keys and values from a dict of join entries, oldest first.

    A dict's methods are four times as fast as an OrderedDict's. The order is the same, because the join never
    moves an entry.
    """
    return list(dict.keys(kept)), list(dict.values(kept))


def _entries_of_lists(kept: dict[str, list[Orphan]]) -> tuple[list[str], list[Orphan]]:
    """Return the keys and values from a dict of lists, with a key for each value."""
    return [event_id for event_id, found in kept.items() for _ in found], list(chain.from_iterable(kept.values()))


def restoring(snapshot: Snapshot, settings: TaskSettings, contexts_topic: str, place: str) -> Parts[Task]:
    """Restore a task from a snapshot. The retained ids are restored block by block.

    Raises:
        JournalError: the learner's state does not fit the settings.
    """
    task = Task(settings, contexts_topic)
    try:
        if settings.model == "own":
            task.learner.load(snapshot.learner)
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"the state does not fit {settings.learner}: {error}", place) from error
    if settings.open_classes:
        task.classes.add(snapshot.classes)
    task.model.version = snapshot.step.updates
    task.undated = dict(snapshot.undated)
    join = task.join
    join.dated_ms, join.stream_ms = snapshot.dated_ms, snapshot.stream_ms
    join.pending.update(zip(*snapshot.pending, strict=True))
    join.deferred.update(zip(*snapshot.deferred, strict=True))
    join.shown.update(zip(*snapshot.shown, strict=True))
    join.orphans.update(zip(*snapshot.orphans, strict=True))
    join.answers.update(zip(*snapshot.answers, strict=True))
    for event_id, orphan in zip(*snapshot.more, strict=True):
        join.keep_more(event_id, orphan)
    retained = zip(*snapshot.retained, strict=True)
    while block := list(islice(retained, RESTORED_ENTRIES)):
        for event_id, entry, settled_ms in block:
            join.settled.append(event_id, entry, settled_ms)
        yield True
    join.restore_counts(snapshot.step.ledger)
    return task


def restored_replica(
    settings: TaskSettings,
    snapshot: ModelSnapshot | None = None,
    settings_after: SettingsAfter = unchanged,
    models: Models = no_models,
) -> Replica:
    """Return a new replica with an untrained model or, if given, the model from a snapshot or an import.

    Args:
        settings: the settings before the first entry in the log. If there is a snapshot of the log, the pipeline's
            settings at any version.
        snapshot: the snapshot or the import.
        settings_after: see `SettingsAfter`.
        models: the models with which new challengers start.

    Raises:
        JournalError: the stored model belongs to a different pipeline or learner.
    """
    if snapshot is None:
        return Replica(settings, settings_after, models=models)
    is_import = not is_of_log(snapshot)
    expected = model_settings(settings) if is_import else _fixed(stored_settings(settings))
    if not expected.items() <= snapshot.settings.items():
        raise JournalError(
            f"the shared model's snapshot at version {snapshot.version}: expected {expected}; got "
            f"{snapshot.settings}. Another pipeline wrote it"
        )
    replica = Replica(settings, settings_after, None if is_import else _history_of(snapshot), models)
    try:
        replica.learner.load(snapshot.learner)
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(
            f"the shared model's snapshot at version {snapshot.version}: the state does not fit its settings: {error}"
        ) from error
    replica.version, replica.updates, replica.offset = snapshot.version, snapshot.updates, snapshot.offset
    replica.places.update(snapshot.places)
    replica.names[:] = snapshot.classes
    return replica


def is_of_log(snapshot: ModelSnapshot) -> bool:
    """Return whether a snapshot was taken in a pipeline or moved with it, and was not imported from a file."""
    return "seed" in snapshot.settings


def _fixed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored settings that cannot change in a running pipeline."""
    return {name: stored[name] for name, row in STORED.items() if row.change is Change.REFUSED and name in stored}


def encode(snapshot: Snapshot | ModelSnapshot) -> Iterator[bytes | memoryview]:
    """Encode a snapshot lazily, in parts."""
    for section in _task_sections(snapshot) if isinstance(snapshot, Snapshot) else _model_sections(snapshot):
        yield from encode_section(section)
    yield from encode_section(Section("end"))


def _task_sections(snapshot: Snapshot) -> Iterator[Section]:
    yield Section("state", {
        "settings": snapshot.settings, "dated_ms": snapshot.dated_ms, "undated": list(snapshot.undated),
        "stream_ms": snapshot.stream_ms, "classes": snapshot.classes, "step": plain_step(snapshot.step),
    })  # fmt: skip
    yield from _learner_sections(snapshot.learner)
    for name in _ROWS:
        entries = zip(*getattr(snapshot, name), strict=True)
        while rows := list(islice(entries, BLOCK_ENTRIES)):
            yield Section(name, arrays={"entries": np.frombuffer(encode_block(name, rows, snapshot.undated), np.uint8)})


def _model_sections(snapshot: ModelSnapshot) -> Iterator[Section]:
    places = [[partition, *place] for partition, place in sorted(snapshot.places.items())]
    changes = [[control, {name: [one.old, one.new] for name, one in of.items()}] for control, of in snapshot.changes]
    values = {
        name: getattr(snapshot, name) for name in ("settings", "version", "updates", "offset", "control", "classes")
    }
    yield Section("model", values | {"places": places, "changes": changes})
    yield from _learner_sections(snapshot.learner)


def _learner_sections(state: State) -> Iterator[Section]:
    for name, value in state.items():
        if isinstance(value, float) and not isinstance(value, np.generic):
            yield Section("learner", {"python": True}, {name: np.array(value)})
        elif isinstance(value, np.ndarray | np.generic):
            yield Section("learner", arrays={name: np.asarray(value)})
        else:
            yield Section("learner", {"values": {name: value}})


def decoding(generation: Generation) -> Parts[Snapshot]:
    """Decode a task's snapshot section by section. Each of the generation's payloads is released once it has been read.

    Raises:
        JournalError: the snapshot cannot be decoded.
    """
    with _refusing(generation):
        values, undated, learner, columns = yield from _reading(generation)
        return Snapshot(
            check_settings(values["settings"]), step_of_plain(values["step"]), values["dated_ms"], undated,
            values["stream_ms"], values["classes"], learner, **columns,
        )  # fmt: skip


decode = at_once(decoding)


def decode_model(generation: Generation) -> ModelSnapshot:
    """Decode a shared model's snapshot; see `decode`."""
    with _refusing(generation):
        values, _, learner, _ = finish(_reading(generation))
        places = {partition: Place(*place) for partition, *place in values["places"]}
        changes = [(control, {name: Replaced(*one) for name, one in of.items()}) for control, of in values["changes"]]
        return ModelSnapshot(
            check_settings(values["settings"]), values["version"], values["updates"], values["offset"],
            values["control"], places, values["classes"], learner, changes,
        )  # fmt: skip


@contextmanager
def _refusing(generation: Generation) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise JournalError(f"generation {generation.number} cannot be read: {error!r}", generation.place) from error


def _reading(
    generation: Generation,
) -> Parts[tuple[Mapping[str, Any], dict[int, DecisionTime], State, dict[str, Any]]]:
    """Return the first section's values, its unknown times by step, the learner's state, and all entries as columns."""
    reader = SectionReader(generation.payloads)
    name, values, _ = reader.section()
    undated = {step: DecisionTime(step) for step in values["undated"]} if name == "state" else {}
    learner: State = {}
    columns: dict[str, Any] = dict.fromkeys(_ROWS, ())
    while (section := reader.section()).name != "end":
        if section.name == "learner":
            python = section.values.get("python", False)
            learner |= section.values.get("values", {})
            learner |= {name: float(array) if python else array for name, array in section.arrays.items()}
        else:
            parts = list(zip(*decode_block(section.name, section.arrays["entries"].data, undated), strict=True))
            columns[section.name] = columns[section.name] or tuple([] for _ in parts)
            for column, part in zip(columns[section.name], parts, strict=True):
                column += part
        yield True
    return values, undated, learner, columns


_ORPHANS = list[tuple[str, Orphan, tuple[tuple[bytes, bytes], ...]]]  # includes the record's headers

_ROWS: Mapping[str, Any] = {
    "pending": list[tuple[str, Pending]],
    "orphans": _ORPHANS,
    "retained": list[tuple[str, Retained, int]],
    "deferred": list[tuple[str, Pending]],
    "shown": list[tuple[str, Pending]],
    "more": _ORPHANS,
    "answers": list[tuple[str, Answer]],
}
"""The type of the entries in each kind of block."""


def encode_block(name: str, rows: Sequence[Any], undated: Collection[int] = ()) -> bytes:
    """Encode the entries in a block.

    Args:
        name: the block's name.
        rows: event ids, entries and, for settled ids, the stream times at which they were settled.
        undated: steps whose ticks had not been applied when the snapshot was taken. The ticks can be applied while the
            snapshot is being written.
    """

    def encode_object(value: Any) -> bytes | int:
        if isinstance(value, DecisionTime):
            return -value.step if value.ms is None or value.step in undated else value.ms
        encoded: bytes = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        return encoded

    if _ROWS[name] is _ORPHANS:
        rows = [(event_id, *_plain_orphan(orphan)) for event_id, orphan in rows]
    elif name == "retained":
        rows = [(event_id, _short(entry), settled_ms) for event_id, entry, settled_ms in rows]
    elif name != "answers":
        rows = [(event_id, _short_pending(entry)) for event_id, entry in rows]
    return msgpack.encode(rows, enc_hook=encode_object)


def _short_pending(pending: Pending) -> tuple[Any, ...]:
    """Return a pending decision without the action's id if it has none, as in a pipeline with classes."""
    return pending if pending.class_name is not None else pending[:-1]


def _short(retained: Retained) -> tuple[Any, ...]:
    """Return a settled decision with `_short_pending`."""
    return retained if retained.pending is None else (*retained[:-1], _short_pending(retained.pending))


def _plain_orphan(orphan: Orphan) -> tuple[Sequence[Any], list[tuple[bytes, bytes]]]:
    """Return an orphan without its headers, and the headers as bytes. Header names are not always UTF-8.

    The fields that only combined feedback has are omitted from other feedback.
    """
    feedback, record, since_ms = orphan
    headers = [(name.encode(errors="surrogateescape"), value) for name, value in record.headers]
    if feedback is not None and feedback.part is None and not feedback.is_final:
        return (feedback[:_FEEDBACK_FIELDS], record._replace(headers=()), since_ms), headers
    return (feedback, record._replace(headers=()), since_ms), headers


_FEEDBACK_FIELDS = Feedback._fields.index("part")
"""Number of the fields that all feedback has."""


def decode_block(name: str, encoded: bytes | memoryview, undated: Mapping[int, DecisionTime]) -> list[Any]:
    """Decode the entries in a block; the inverse of `encode_block`. Equal decision times share one object.

    Args:
        name: the block's name.
        encoded: the encoded block.
        undated: the unknown decision times, keyed by step. Entries in all blocks share these objects.

    Raises:
        ValueError, TypeError, KeyError: the bytes are not a block with this name.
    """
    times: dict[int, DecisionTime] = {}

    def decode_object(kind: Any, value: Any) -> Any:
        if kind is DecisionTime:
            return undated[-value] if value < 0 else times.setdefault(value, DecisionTime(0, value))
        empty = _EMPTY[kind]
        if len(value) == 0:  # all entries share an empty array, because most decisions have no logged numbers
            return empty
        return np.frombuffer(value, empty.dtype.newbyteorder("<")).astype(empty.dtype)

    rows: list[Any] = msgpack.decode(encoded, type=_ROWS[name], dec_hook=decode_object)
    if _ROWS[name] is not _ORPHANS:
        return rows
    return [(event_id, _with_headers(orphan, headers)) for event_id, orphan, headers in rows]


def _with_headers(orphan: Orphan, stored: Iterable[tuple[bytes, bytes]]) -> Orphan:
    headers = tuple((name.decode(errors="surrogateescape"), value) for name, value in stored)
    return orphan._replace(record=orphan.record._replace(headers=headers))


_EMPTY: Mapping[Any, NDArray[Any]] = {IndexArray: np.zeros(0, np.int32), FloatArray: NOTHING_LOGGED}
"""An empty array for each type."""


def state_digest(states: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 digest of learners' states in a canonical byte format."""
    digest = sha256()
    for state in states:
        for name in sorted(state):
            array = np.asarray(state[name])
            if array.dtype.kind == "U":
                content, kind = str(array).encode(), "text"
            else:
                array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
                content, kind = array.tobytes(), array.dtype.str
            digest.update(f"{name} {kind} {array.shape} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def task_digest(task: Task) -> str:
    """Return the SHA-256 digest of a task's learner, join and counts, excluding offsets."""
    digest = sha256()
    for part in encode(take(task, JournalStep(0, (0, 0), (0, 0), task.version, task.join.ledger()))):
        digest.update(part)
    return digest.hexdigest()
