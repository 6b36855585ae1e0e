"""A snapshot: what it holds of a task, its bytes, and the task again. No pickle, no topic, no clock.

The state is a row of sections, see `stream.wire.sections`:

    state     values: the task's settings, its place in its topics, its counts (see `_state_values`); comes first
    learner   arrays and scalars of `Learner.state()`; as many sections as it has arrays
    pending   a block of decisions that wait, oldest first; as many sections as needed
    orphans   a block of feedback that waits
    retained  a block of settled ids
    end       nothing; comes last

A *block* is up to some thousand entries as one array for each column. A column of texts or bytes is two arrays:
`NAME.lengths` (-1: none) and `NAME.bytes`, all of them joined. Beside its own columns each block has the ids, `id`.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from stream.journal.format import JournalError
from stream.journal.stored_settings import stored_settings
from stream.learners import State
from stream.task.join import Orphan, Overflows, Pending, Retained
from stream.task.settings import TaskSettings
from stream.task.task import Task
from stream.wire.events import Decision, DecisionTime, Features, Feedback, Outcome
from stream.wire.ledger import Ledger
from stream.wire.records import Record
from stream.wire.sections import Section, SectionReader, encode_section

Columns = Mapping[str, NDArray[Any]]

FORMAT = 1

BLOCK_ENTRIES = 2_000
"""Entries of the join in one section: what is encoded at once, 5 ms or so."""


Pulse = Callable[[], None]
"""Is called again and again during long work; what it raises ends the work."""


class SnapshotError(JournalError):
    """A snapshot that cannot be used."""


class Position(NamedTuple):
    """Where a task stands in its topics."""

    number: int  # of the last step applied; 0: none
    journal_offset: int  # the next step stands here or later in the journal
    contexts_offset: int  # of the first record that is not applied
    feedback_offset: int
    taken_ms: int  # the broker's time when the snapshot was taken
    settings_from: int = 0  # the first step that was made under the task's settings, as its journal says
    predictions_offset: int = 0  # with a shared model: predictions of the next step stand here or later


class Snapshot(NamedTuple):
    """A task's whole state at one position."""

    settings: Mapping[str, Any]  # of the task, as `stored_settings` has them; of an import only those of its model
    position: Position
    updates: int
    dated_ms: int  # the time of the newest decisions that have one
    undated: Sequence[int]  # steps whose ticks were not applied; their decisions may be settled already
    stream_ms: int
    ledger: Ledger
    overflows: Overflows
    learner: State
    pending: tuple[Sequence[str], Sequence[Pending]]  # ids, and what is kept for each
    orphans: tuple[Sequence[str], Sequence[Orphan]]
    retained: tuple[Sequence[str], Sequence[Retained], Sequence[int]]  # with the times at which they were settled


def take(task: Task, position: Position, spare: State | None = None) -> Snapshot:
    """The state of a task. Of its parts a later step changes only unknown decision times, which are not encoded.

    Args:
        task: the task, between two steps.
        position: where it stands.
        spare: a state of a learner with the same settings, whose arrays are overwritten. Memory that a process has not
            touched yet can cost ten times as much as the copy itself: 250 ms against 10 ms for 100 MB, measured.
    """
    join = task.join
    return Snapshot(
        stored_settings(task.settings),
        position,
        task.updates,
        join.dated_ms,
        list(task.undated),
        join.stream_ms,
        join.ledger(),
        join.overflows(),
        _model(task, spare),
        _entries(join.pending),
        _entries(join.orphans),
        (*_entries(join.retained), join.settled_ms()),
    )


def restore(snapshot: Snapshot, settings: TaskSettings, contexts_topic: str, place: str = "snapshot") -> Task:
    """The task that a snapshot was taken of.

    Raises:
        SnapshotError: the learner's state does not fit the settings.
    """
    task = Task(settings, contexts_topic)
    try:
        if settings.model == "own":
            task.learner.load(snapshot.learner)
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{place}: the state does not fit {settings.learner}: {error}") from error
    task.model.version = snapshot.updates
    join = task.join
    join.dated_ms = snapshot.dated_ms
    join.stream_ms = snapshot.stream_ms
    task.undated = {step: DecisionTime(step) for step in snapshot.undated}
    share = partial(_with_shared_time, task)
    retained_ids, retained, settled_ms = snapshot.retained
    join.restore(
        zip(snapshot.pending[0], map(share, snapshot.pending[1]), strict=True),
        zip(*snapshot.orphans, strict=True),
        zip(
            retained_ids,
            (entry if entry.pending is None else entry._replace(pending=share(entry.pending)) for entry in retained),
            settled_ms,
            strict=True,
        ),
    )
    join.restore_counts(snapshot.ledger, snapshot.overflows)
    return task


def _with_shared_time(task: Task, pending: Pending) -> Pending:
    """A decision with its step's time if that is not known yet: the step's tick dates all of its decisions."""
    time = pending.time
    return pending if time.ms is not None else pending._replace(time=task.undated.setdefault(time.step, time))


def _model(task: Task, spare: State | None) -> State:
    """The state of a task's own model; a shared one is no part of it."""
    if task.settings.model == "shared":
        return {}
    return task.learner.state() if spare is None else task.learner.state_into(spare)


def _entries(kept: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """Keys and values of one of the join's maps, oldest first.

    The methods of dict are four times as fast as those of OrderedDict; the order is the same, because the join moves no
    entry.
    """
    if not isinstance(kept, dict):
        raise TypeError(f"expected a dict; got {type(kept).__name__}")
    return list(dict.keys(kept)), list(dict.values(kept))


def encode_state(snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """The bytes of a snapshot, in parts that are made when they are asked for."""
    for section in _sections(snapshot):
        yield from encode_section(section)


def _sections(snapshot: Snapshot) -> Iterator[Section]:
    yield Section("state", _state_values(snapshot))
    yield from learner_sections(snapshot.learner)
    undated = frozenset(snapshot.undated)
    yield from _blocks("pending", snapshot.pending, partial(pending_block, undated=undated))
    yield from _blocks("orphans", snapshot.orphans, orphan_block)
    yield from _blocks("retained", snapshot.retained, partial(retained_block, undated=undated))
    yield Section("end")


def learner_sections(state: State) -> Iterator[Section]:
    """The state of a learner, a section for each of its parts."""
    for name, value in state.items():
        if isinstance(value, np.ndarray | np.generic):
            shaped = value.reshape(1) if value.ndim == 0 else value
            yield Section("learner", {"scalar": value.ndim == 0}, {name: shaped})
        elif isinstance(value, float):
            yield Section("learner", {"scalar": True, "python": True}, {name: np.array([value])})
        else:
            yield Section("learner", {"values": {name: value}})


def learner_part(section: Section) -> State:
    """The part of a learner's state in a section; the inverse of `learner_sections`."""
    part: State = dict(section.values.get("values", {}))
    for name, array in section.arrays.items():
        if section.values.get("python"):
            part[name] = float(array[0])
        else:
            part[name] = array.reshape(()) if section.values["scalar"] else array
    return part


def _blocks(
    name: str,
    kept: tuple[Sequence[Any], ...],
    block_of: Callable[..., Columns],
) -> Iterator[Section]:
    for start in range(0, len(kept[0]), BLOCK_ENTRIES):
        yield Section(name, arrays=block_of(*(each[start : start + BLOCK_ENTRIES] for each in kept)))


def _state_values(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "settings": snapshot.settings,
        **snapshot.position._asdict(),
        "updates": snapshot.updates,
        "dated_ms": snapshot.dated_ms,
        "undated": snapshot.undated,
        "stream_ms": snapshot.stream_ms,
        "ledger": snapshot.ledger._asdict(),
        "overflows": snapshot.overflows._asdict(),
    }


def decode_state(payloads: list[memoryview], pulse: Pulse = lambda: None) -> Snapshot:
    """The snapshot whose bytes these are, in any number of pieces; each is released when it has been read.

    The pulse is called between two sections.

    Raises:
        ValueError, TypeError, KeyError, IndexError, AttributeError: the bytes are none.
    """
    reader = SectionReader(payloads)
    values = reader.section().values
    learner: State = {}
    kept: dict[str, tuple[list[Any], ...]] = {"pending": ([], []), "orphans": ([], []), "retained": ([], [], [])}
    while (section := reader.section()).name != "end":
        pulse()
        if section.name == "learner":
            learner |= learner_part(section)
            continue
        for entries, read in zip(kept[section.name], _READERS[section.name](section.arrays), strict=True):
            entries += read
    return Snapshot(
        values["settings"],
        Position(*(values[name] for name in Position._fields)),
        values["updates"],
        values["dated_ms"],
        values["undated"],
        values["stream_ms"],
        Ledger(**values["ledger"]),
        Overflows(**values["overflows"]),
        learner,
        (kept["pending"][0], kept["pending"][1]),
        (kept["orphans"][0], kept["orphans"][1]),
        (kept["retained"][0], kept["retained"][1], kept["retained"][2]),
    )


_ROWS = ("scores", "logged")
"""The columns that have a row of numbers for each entry."""

PENDING_COLUMNS = frozenset(
    ("decided_ms", "action", "greedy", "propensity", "scores", "logged", "nnz", "x.indices", "x.values")
)
ORPHAN_COLUMNS = frozenset((
    "reward", "label", "feedback_action", "kept_at_ms", "topic.lengths", "topic.bytes", "partition", "offset",
    "append_ms", "key.lengths", "key.bytes", "value.lengths", "value.bytes", "headers.lengths", "headers.bytes",
))  # fmt: skip
RETAINED_COLUMNS = frozenset(("outcome", "reward", "settled_at_ms", "decided_action"))
"""The columns of a block beside the ids.

Where retained entries still have their decisions, for a correction, the block has the column `kept` and the columns of
these decisions as pending ones, too.
"""

_ID_COLUMNS = ("id.lengths", "id.bytes")

_OUTCOME_CODES = {Outcome.MATCHED: 0, Outcome.EXPIRED: 1, Outcome.UNMATCHED: 2}
_OUTCOMES = {code: outcome for outcome, code in _OUTCOME_CODES.items()}


def pending_block(ids: Sequence[str], entries: Sequence[Pending], undated: Collection[int] = ()) -> Columns:
    """A block of decisions that wait.

    Args:
        ids: their event ids.
        entries: the decisions.
        undated: the steps without a time when the snapshot was taken. Their ticks may be applied while it is written.
    """
    return {**_texts("id", ids), **_pending_columns(entries, undated)}


def read_pending_block(columns: Columns) -> tuple[list[str], list[Pending]]:
    """Ids and entries of a block; the inverse of `pending_block`.

    Raises:
        ValueError: the columns are not those of such a block, or of different lengths.
    """
    ids = _checked_ids(columns, PENDING_COLUMNS)
    return ids, _pending_entries(columns, len(ids))


def orphan_block(ids: Sequence[str], entries: Sequence[Orphan]) -> Columns:
    """A block of feedback that waits for its context."""
    return {**_texts("id", ids), **_orphan_columns(entries)}


def read_orphan_block(columns: Columns) -> tuple[list[str], list[Orphan]]:
    """Ids and entries of a block; see `read_pending_block`."""
    ids = _checked_ids(columns, ORPHAN_COLUMNS)
    return ids, _orphan_entries(ids, columns)


def retained_block(
    ids: Sequence[str], entries: Sequence[Retained], settled_ms: Sequence[int], undated: Collection[int] = ()
) -> Columns:
    """A block of settled ids; see `pending_block`."""
    return {
        **_texts("id", ids),
        **_retained_columns(entries, undated),
        "settled_at_ms": np.array(settled_ms, np.int64),
    }


def read_retained_block(columns: Columns) -> tuple[list[str], list[Retained], list[int]]:
    """Ids, entries and times of a block; see `read_pending_block`."""
    with_decisions = {"kept", *PENDING_COLUMNS} if "kept" in columns else ()
    ids = _checked_ids(columns, {*RETAINED_COLUMNS, *with_decisions})
    return ids, _retained_entries(columns, len(ids)), columns["settled_at_ms"].tolist()


def _checked_ids(columns: Columns, expected: Collection[str]) -> list[str]:
    """The ids of a block that has the expected columns."""
    if columns.keys() != {*_ID_COLUMNS, *expected}:
        raise ValueError(f"columns: expected {sorted({*_ID_COLUMNS, *expected})}; got {sorted(columns)}")
    for name, column in columns.items():
        if column.ndim != (2 if name in _ROWS else 1):
            raise ValueError(f"{name}: expected {'rows of ' if name in _ROWS else ''}numbers; got {column.shape}")
    return _texts_of("id", columns)


def _check_lengths(columns: Columns, names: Collection[str], count: int) -> None:
    for name in names:
        if len(columns[name]) != count:
            raise ValueError(f"{name}: expected {count} entries; got {len(columns[name])}")


def _pending_columns(entries: Sequence[Pending], undated: Collection[int]) -> dict[str, NDArray[Any]]:
    xs, decisions, times = zip(*entries, strict=True)
    indices, values = zip(*xs, strict=True)
    actions, greedies, propensities, scores, logged = zip(*decisions, strict=True)
    return {
        "decided_ms": np.array(
            [-time.step if time.ms is None or time.step in undated else time.ms for time in times], np.int64
        ),
        "action": np.array(actions, np.int32),
        "greedy": np.array(greedies, np.int32),
        "propensity": np.array(propensities, np.float64),
        "scores": np.concatenate(scores).reshape(len(entries), -1),
        "logged": np.concatenate(logged).reshape(len(entries), logged[0].size),
        "nnz": np.array([array.size for array in indices], np.int32),
        "x.indices": np.concatenate(indices),
        "x.values": np.concatenate(values),
    }


def _pending_entries(columns: Columns, count: int) -> list[Pending]:
    _check_lengths(columns, PENDING_COLUMNS - {"x.indices", "x.values"}, count)
    if columns["nnz"].min(initial=0) < 0:
        raise ValueError("nnz: expected numbers from 0 on")
    _check_lengths(columns, ("x.indices", "x.values"), columns["nnz"].sum())
    ends = np.cumsum(columns["nnz"])[:-1]
    xs = map(Features, np.split(columns["x.indices"], ends), np.split(columns["x.values"], ends))
    decisions = map(
        Decision,
        columns["action"].tolist(),
        columns["greedy"].tolist(),
        columns["propensity"].tolist(),
        list(columns["scores"]),
        list(columns["logged"]),
    )
    decided_ms = columns["decided_ms"].tolist()
    times = {ms: DecisionTime(-ms) if ms < 0 else DecisionTime(0, ms) for ms in decided_ms}
    return list(map(Pending, xs, decisions, map(times.__getitem__, decided_ms)))


def _orphan_columns(entries: Sequence[Orphan]) -> dict[str, NDArray[Any]]:
    feedback, records, kept_at_ms = zip(*entries, strict=True)
    return {
        "reward": np.array([event.reward for event in feedback], np.int8),
        "label": _numbers([event.label for event in feedback]),
        "feedback_action": _numbers([event.action for event in feedback]),
        "kept_at_ms": np.array(kept_at_ms, np.int64),
        **_texts("topic", [record.topic for record in records]),
        "partition": np.array([record.partition for record in records], np.int32),
        "offset": np.array([record.offset for record in records], np.int64),
        "append_ms": np.array([record.append_ms for record in records], np.int64),
        **_blobs("key", [record.key for record in records]),
        **_blobs("value", [record.value for record in records]),
        **_blobs("headers", [_headers(record) for record in records]),
    }


def _headers(record: Record) -> bytes:
    headers = [(name, value.hex()) for name, value in record.headers]
    try:
        return orjson.dumps(headers)
    except TypeError:  # a name that is not UTF-8 has lone surrogates, which the library escapes and orjson refuses
        return json.dumps(headers).encode()


def _orphan_entries(ids: Sequence[str], columns: Columns) -> list[Orphan]:
    _check_lengths(columns, [name for name in ORPHAN_COLUMNS if not name.endswith(".bytes")], len(ids))
    records = [
        Record(topic, partition, offset, append_ms, key, value, headers)
        for topic, partition, offset, append_ms, key, value, headers in zip(
            _texts_of("topic", columns),
            columns["partition"].tolist(),
            columns["offset"].tolist(),
            columns["append_ms"].tolist(),
            _blobs_of("key", columns),
            _blobs_of("value", columns),
            [tuple((n, bytes.fromhex(v)) for n, v in json.loads(h or b"")) for h in _blobs_of("headers", columns)],
            strict=True,
        )
    ]
    labels, actions = _numbers_of(columns["label"]), _numbers_of(columns["feedback_action"])
    feedback = map(Feedback, ids, columns["reward"].tolist(), labels, actions)
    return list(map(Orphan, feedback, records, columns["kept_at_ms"].tolist()))


def _retained_columns(entries: Sequence[Retained], undated: Collection[int]) -> dict[str, NDArray[Any]]:
    outcomes, rewards, actions, kept = zip(*entries, strict=True)
    pending = [entry for entry in kept if entry is not None]
    columns: dict[str, NDArray[Any]] = {
        "outcome": np.array([_OUTCOME_CODES[outcome] for outcome in outcomes], np.int8),
        "reward": np.array([-1 if reward is None else reward for reward in rewards], np.int8),
        "decided_action": np.array(actions, np.int64),
    }
    if pending:
        columns["kept"] = np.array([entry is not None for entry in kept], np.int8)
        columns |= _pending_columns(pending, undated)
    return columns


def _retained_entries(columns: Columns, count: int) -> list[Retained]:
    _check_lengths(columns, RETAINED_COLUMNS, count)
    outcomes = [_OUTCOMES[index] for index in columns["outcome"].tolist()]
    rewards = [None if reward < 0 else reward for reward in columns["reward"].tolist()]
    kept: list[Pending | None] = [None] * count
    if "kept" in columns:
        _check_lengths(columns, ("kept",), count)
        places = np.flatnonzero(columns["kept"]).tolist()
        for place, pending in zip(places, _pending_entries(columns, len(places)), strict=True):
            kept[place] = pending
    return list(map(Retained, outcomes, rewards, columns["decided_action"].tolist(), kept))


def _numbers(numbers: Sequence[int | None]) -> NDArray[np.int64]:
    """Numbers from 0 on, of which some are not known: -1."""
    return np.array([-1 if number is None else number for number in numbers], np.int64)


def _numbers_of(column: NDArray[Any]) -> list[int | None]:
    return [None if number < 0 else number for number in column.tolist()]


def _blobs(name: str, blobs: Sequence[bytes | None]) -> dict[str, NDArray[Any]]:
    lengths = np.array([-1 if blob is None else len(blob) for blob in blobs], np.int32)
    return {
        f"{name}.lengths": lengths,
        f"{name}.bytes": np.frombuffer(b"".join(blob for blob in blobs if blob is not None), np.uint8),
    }


def _blobs_of(name: str, columns: Columns) -> list[bytes | None]:
    lengths = columns[f"{name}.lengths"].tolist()
    joined = columns[f"{name}.bytes"].tobytes()
    ends = list(accumulate(max(length, 0) for length in lengths))
    if len(joined) != (ends[-1] if ends else 0):
        raise ValueError(f"{name}.bytes: expected as many as {name}.lengths adds up to; got {len(joined)}")
    return [None if length < 0 else joined[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def _texts(name: str, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    return _blobs(name, [text.encode() for text in texts])


def _texts_of(name: str, columns: Columns) -> list[str]:
    return [(blob or b"").decode() for blob in _blobs_of(name, columns)]


_READERS: Mapping[str, Callable[[Columns], tuple[list[Any], ...]]] = {
    "pending": read_pending_block,
    "orphans": read_orphan_block,
    "retained": read_retained_block,
}
