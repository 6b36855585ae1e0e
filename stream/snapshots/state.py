"""The content of snapshots: encodes and decodes the state of a task or of a shared model.

A state is a sequence of sections, see `stream.wire.sections`:

    state     values: the task's settings, its last step and its times; `model` for a shared model
    learner   one part of `Learner.state()`; one section for each part
    pending   a block of pending decisions, oldest first; as many sections as needed
    orphans   a block of feedback that waits for its context
    retained  a block of settled ids
    kept      a block of decisions of settled ids, for late feedback to correct
    end       empty; comes last

A *block* has up to BLOCK_ENTRIES entries, with one column for each of their fields. `BLOCKS` lists the columns.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.journal.format import JournalError, JournalStep, plain_step, step_of_plain
from stream.journal.stored_settings import check_settings, model_settings, stored_settings
from stream.learners import State
from stream.shared.replica import Place, Replica
from stream.snapshots.chunks import Generation, Pulse, SnapshotError
from stream.task.join import Orphan, Overflows, Pending, Retained
from stream.task.settings import TaskSettings
from stream.task.task import Task
from stream.wire.events import Decision, DecisionTime, Features, Feedback, Outcome
from stream.wire.records import Record
from stream.wire.sections import Section, SectionReader, encode_section

BLOCK_ENTRIES = 2_000
"""Entries of the join in one section: encoding one takes about 5 ms."""


class Snapshot(NamedTuple):
    """A task's state after a step."""

    settings: Mapping[str, Any]  # as stored; for an imported model only those of the model
    step: JournalStep  # number 0 for an imported model
    dated_ms: int  # time of the newest dated decisions
    undated: Sequence[int]  # steps whose ticks were not applied; their decisions can be settled already
    stream_ms: int
    overflows: Overflows
    learner: State  # empty with a shared model
    pending: tuple[Sequence[str], Sequence[Pending]]  # with their ids
    orphans: tuple[Sequence[str], Sequence[Orphan]]
    retained: tuple[Sequence[str], Sequence[Retained], Sequence[int]]  # with the stream times of settlement


class ModelSnapshot(NamedTuple):
    """A shared model at a version."""

    settings: Mapping[str, Any]  # of the model
    version: int
    updates: int
    offset: int
    places: Mapping[int, Place]
    learner: State


def take(task: Task, step: JournalStep, spare: State | None = None) -> Snapshot:
    """Copy the state of a task. Later steps change only unknown decision times, which are not encoded.

    Args:
        task: the task.
        step: its last step.
        spare: an earlier state of a learner with the same settings, whose arrays are overwritten. Copying 100 MB takes
            10 ms into used memory and 250 ms into new memory (measured).
    """
    join = task.join
    learner = {} if task.settings.model == "shared" else _copy(task.learner, spare)
    return Snapshot(
        stored_settings(task.settings), step, join.dated_ms, list(task.undated), join.stream_ms, join.overflows(),
        learner, _entries(join.pending), _entries(join.orphans), (*_entries(join.retained), join.settled_ms()),
    )  # fmt: skip


def take_model(replica: Replica, settings: TaskSettings, spare: State | None = None) -> ModelSnapshot:
    """Copy the state of a shared model; see `take`."""
    assert not replica.is_overlaid
    return ModelSnapshot(
        model_settings(settings), replica.version, replica.updates, replica.offset, dict(replica.places),
        _copy(replica.learner, spare),
    )  # fmt: skip


def _copy(learner: Any, spare: State | None) -> State:
    state: State = learner.state() if spare is None else learner.state_into(spare)
    return state


def _entries(kept: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Keys and values of one of the join's maps, oldest first.

    The methods of dict are four times as fast as those of OrderedDict. The order is the same, because the join never
    moves an entry.
    """
    return list(dict.keys(kept)), list(dict.values(kept))


def restore(snapshot: Snapshot, settings: TaskSettings, contexts_topic: str, place: str = "snapshot") -> Task:
    """Restore a task from a snapshot.

    Raises:
        SnapshotError: the learner's state does not fit the settings.
    """
    task = Task(settings, contexts_topic)
    try:
        if settings.model == "own":
            task.learner.load(snapshot.learner)
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{place}: the state does not fit {settings.learner}: {error}") from error
    task.model.version = snapshot.step.updates
    task.undated = {step: DecisionTime(step) for step in snapshot.undated}
    times = task.undated

    def dated(pending: Pending) -> Pending:
        """Share the DecisionTime of the step if its tick was not applied: the tick dates all decisions of the step."""
        time = pending.time
        return pending if time.ms is not None else pending._replace(time=times.setdefault(time.step, time))

    join = task.join
    join.dated_ms, join.stream_ms = snapshot.dated_ms, snapshot.stream_ms
    ids, retained, settled_ms = snapshot.retained
    join.restore(
        zip(snapshot.pending[0], map(dated, snapshot.pending[1]), strict=True),
        zip(*snapshot.orphans, strict=True),
        zip(
            ids,
            (one if one.pending is None else one._replace(pending=dated(one.pending)) for one in retained),
            settled_ms,
            strict=True,
        ),
    )
    join.restore_counts(snapshot.step.ledger, snapshot.overflows)
    return task


def restore_model(snapshot: ModelSnapshot, replica: Replica, settings: TaskSettings) -> None:
    """Restore a snapshot into a fresh replica.

    Raises:
        JournalError: the snapshot belongs to another model.
    """
    if (expected := model_settings(settings)) != snapshot.settings:
        raise JournalError(
            f"the snapshot of the shared model at version {snapshot.version} is of {snapshot.settings}; expected "
            f"{expected}. Another pipeline wrote it"
        )
    replica.learner.load(snapshot.learner)
    replica.version, replica.updates, replica.offset = snapshot.version, snapshot.updates, snapshot.offset
    replica.places.update(snapshot.places)


def encode(snapshot: Snapshot | ModelSnapshot) -> Iterator[bytes | memoryview]:
    """Encode a snapshot lazily, in parts."""
    for section in _task_sections(snapshot) if isinstance(snapshot, Snapshot) else _model_sections(snapshot):
        yield from encode_section(section)
    yield from encode_section(Section("end"))


def _task_sections(snapshot: Snapshot) -> Iterator[Section]:
    values = {name: getattr(snapshot, name) for name in ("settings", "dated_ms", "undated", "stream_ms")}
    yield Section("state", values | {"step": plain_step(snapshot.step), "overflows": snapshot.overflows._asdict()})
    yield from _learner_sections(snapshot.learner)
    undated = frozenset(snapshot.undated)
    for name in ("pending", "orphans", "retained"):
        kept = getattr(snapshot, name)
        for start in range(0, len(kept[0]), BLOCK_ENTRIES):
            entries = [each[start : start + BLOCK_ENTRIES] for each in kept]
            yield Section(name, arrays=encode_block(name, *entries, undated=undated))
            if name == "retained":
                ids, retained, _ = entries
                if corrected := [(i, one.pending) for i, one in zip(ids, retained, strict=True) if one.pending]:
                    yield Section("kept", arrays=encode_block("kept", *zip(*corrected, strict=True), undated=undated))


def _model_sections(snapshot: ModelSnapshot) -> Iterator[Section]:
    places = [[partition, *place] for partition, place in sorted(snapshot.places.items())]
    values = {name: getattr(snapshot, name) for name in ("settings", "version", "updates", "offset")}
    yield Section("model", values | {"places": places})
    yield from _learner_sections(snapshot.learner)


def _learner_sections(state: State) -> Iterator[Section]:
    for name, value in state.items():
        if isinstance(value, float) and not isinstance(value, np.generic):
            yield Section("learner", {"python": True}, {name: np.array(value)})
        elif isinstance(value, np.ndarray | np.generic):
            yield Section("learner", arrays={name: np.asarray(value)})
        else:
            yield Section("learner", {"values": {name: value}})


def decode(generation: Generation, pulse: Pulse = lambda: None) -> Snapshot:
    """Decode the snapshot of a task, and release the generation's payloads as they are read.

    The pulse is called between sections.

    Raises:
        SnapshotError: the snapshot cannot be decoded.
    """
    with _refusing(generation):
        values, learner, blocks = _read(generation, pulse)
        ids, retained, settled_ms = blocks["retained"]
        if kept := dict(zip(*blocks["kept"], strict=True)):
            retained = [one._replace(pending=kept.get(event_id)) for event_id, one in zip(ids, retained, strict=True)]
        pending, orphans = ((blocks[name][0], blocks[name][1]) for name in ("pending", "orphans"))
        return Snapshot(
            check_settings(values["settings"]), step_of_plain(values["step"]), values["dated_ms"], values["undated"],
            values["stream_ms"], Overflows(**values["overflows"]), learner, pending, orphans,
            (ids, retained, settled_ms),
        )  # fmt: skip


def decode_model(generation: Generation) -> ModelSnapshot:
    """Decode the snapshot of a shared model; see `decode`."""
    with _refusing(generation):
        values, learner, _ = _read(generation, lambda: None)
        places = {partition: Place(*place) for partition, *place in values["places"]}
        return ModelSnapshot(
            check_settings(values["settings"]), values["version"], values["updates"], values["offset"], places, learner
        )


@contextmanager
def _refusing(generation: Generation) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SnapshotError(f"{generation.place}: generation {generation.number} cannot be read: {error!r}") from error


def _read(generation: Generation, pulse: Pulse) -> tuple[Mapping[str, Any], State, dict[str, list[list[Any]]]]:
    """The values of the first section, the learner's state, and the entries of all blocks by name."""
    reader = SectionReader(generation.payloads)
    values = reader.section().values
    learner: State = {}
    blocks: dict[str, list[list[Any]]] = {name: [[] for _ in range(block.lists)] for name, block in BLOCKS.items()}
    while (section := reader.section()).name != "end":
        pulse()
        if section.name == "learner":
            python = section.values.get("python", False)
            learner |= section.values.get("values", {})
            learner |= {name: float(array) if python else array for name, array in section.arrays.items()}
        else:
            for all_, entries in zip(blocks[section.name], decode_block(section.name, section.arrays), strict=True):
                all_ += entries
    return values, learner, blocks


Columns = Mapping[str, NDArray[Any]]


class Kind(NamedTuple):
    """A kind of column: converts its values to arrays, and back."""

    arrays: tuple[str, ...]  # suffixes of the arrays' names
    encode: Callable[[Sequence[Any]], Iterable[NDArray[Any]]]
    decode: Callable[..., Sequence[Any]]
    ndim: int = 1

    def of(self, to_stored: Callable[[Any], Any], from_stored: Callable[[Any], Any]) -> "Kind":
        """A column of this kind whose values are converted."""
        return self._replace(
            encode=lambda values: self.encode(list(map(to_stored, values))),
            decode=lambda *arrays: list(map(from_stored, self.decode(*arrays))),
        )

    def or_none(self) -> "Kind":
        """A column of this kind whose values are at least 0, or None, which is stored as -1."""
        return self.of(lambda value: -1 if value is None else value, lambda value: None if value < 0 else value)


def _numbers(dtype: str) -> Kind:
    return Kind(("",), lambda values: (np.array(values, dtype),), lambda array: array.tolist())


def _ragged(dtype: str) -> Kind:
    """Arrays of different lengths."""

    def decode(lengths: NDArray[Any], items: NDArray[Any]) -> list[NDArray[Any]]:
        if lengths.min(initial=0) < 0 or lengths.sum() != len(items):
            raise ValueError(f"lengths: expected a sum of {len(items)}; got {lengths.sum()}")
        return np.split(items, np.cumsum(lengths)[:-1])

    return Kind(
        (".lengths", ".items"),
        lambda values: (
            np.array([value.size for value in values], "<i4"),
            np.concatenate(values).astype(dtype, copy=False),
        ),
        decode,
    )


def _encode_blobs(blobs: Sequence[bytes | None]) -> tuple[NDArray[Any], ...]:
    lengths = np.array([-1 if blob is None else len(blob) for blob in blobs], "<i4")
    return lengths, np.frombuffer(b"".join(filter(None, blobs)), "|u1")


def _decode_blobs(lengths: NDArray[Any], items: NDArray[Any]) -> list[bytes | None]:
    joined, sizes = items.tobytes(), lengths.tolist()
    ends = list(accumulate(max(size, 0) for size in sizes))
    if len(joined) != (ends[-1] if ends else 0):
        raise ValueError(f"lengths: expected a sum of {len(joined)}; got {ends[-1:]}")
    return [None if size < 0 else joined[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _headers_json(headers: Any) -> bytes:
    # Not orjson, which rejects the lone surrogates of a name that is not UTF-8.
    return json.dumps([(name, value.hex()) for name, value in headers], separators=(",", ":")).encode()


def _headers_of(stored: bytes) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, bytes.fromhex(value)) for name, value in json.loads(stored))


I1, I4, I8, F8 = map(_numbers, ("|i1", "<i4", "<i8", "<f8"))
ROWS = Kind(("",), lambda values: (np.concatenate(values).reshape(len(values), values[0].size),), list, ndim=2)
BLOBS = Kind((".lengths", ".items"), _encode_blobs, _decode_blobs)
TEXTS = BLOBS.of(str.encode, bytes.decode)
HEADERS = BLOBS.of(_headers_json, _headers_of)
OUTCOMES = I1.of((*Outcome,).index, (*Outcome,).__getitem__)


class Block(NamedTuple):
    """The columns of a block, and the conversion between its entries and their values."""

    columns: Mapping[str, Kind]
    split: Callable[..., Iterable[Sequence[Any]]]  # arguments: entries, and steps without a time
    join: Callable[..., list[list[Any]]]
    lists: int = 2  # number of lists that `join` returns: ids, entries and, for settled ids, the times


def _split_pending(ids: Sequence[str], entries: Sequence[Pending], undated: Collection[int]) -> Iterable[Sequence[Any]]:
    xs, decisions, times = zip(*entries, strict=True)
    decided_ms = [-time.step if time.ms is None or time.step in undated else time.ms for time in times]
    return ids, decided_ms, *zip(*decisions, strict=True), *zip(*xs, strict=True)


def _join_pending(ids: list[str], decided_ms: list[int], *parts: Sequence[Any]) -> list[list[Any]]:
    times = {ms: DecisionTime(-ms) if ms < 0 else DecisionTime(0, ms) for ms in decided_ms}
    decisions, xs = map(Decision, *parts[:5]), map(Features, *parts[5:])
    return [ids, list(map(Pending, xs, decisions, map(times.__getitem__, decided_ms)))]


def _split_orphans(ids: Sequence[str], entries: Sequence[Orphan], undated: Collection[int]) -> Iterable[Sequence[Any]]:
    feedback, records, kept_at_ms = zip(*entries, strict=True)
    _, *bits = zip(*feedback, strict=True)
    return ids, *bits, kept_at_ms, *zip(*records, strict=True)


def _join_orphans(
    ids: list[str], rewards: list[int], labels: list[Any], actions: list[Any], kept_at_ms: list[int], *parts: Any
) -> list[list[Any]]:
    feedback = map(Feedback, ids, rewards, labels, actions)
    return [ids, list(map(Orphan, feedback, map(Record, *parts), kept_at_ms))]


def _split_retained(
    ids: Sequence[str], entries: Sequence[Retained], settled_ms: Sequence[int], undated: Collection[int]
) -> Iterable[Sequence[Any]]:
    *parts, _ = zip(*entries, strict=True)
    return ids, *parts, settled_ms


def _join_retained(ids: list[str], *parts: Any) -> list[list[Any]]:
    return [ids, list(map(Retained, *parts[:3])), parts[3]]


_PENDING = Block(
    {
        "id": TEXTS, "decided_ms": I8, "action": I4, "greedy": I4, "propensity": F8, "scores": ROWS, "logged": ROWS,
        "indices": _ragged("<i4"), "values": _ragged("<f8"),
    },
    _split_pending,
    _join_pending,
)  # fmt: skip
BLOCKS: dict[str, Block] = {
    "pending": _PENDING,
    "orphans": Block(
        {
            "id": TEXTS, "reward": I1, "label": I8.or_none(), "feedback_action": I8.or_none(), "kept_at_ms": I8,
            "topic": TEXTS, "partition": I4, "offset": I8, "append_ms": I8, "key": BLOBS, "value": BLOBS,
            "headers": HEADERS,
        },
        _split_orphans,
        _join_orphans,
    ),
    "retained": Block(
        {"id": TEXTS, "outcome": OUTCOMES, "reward": I1.or_none(), "decided_action": I8, "settled_at_ms": I8},
        _split_retained,
        _join_retained,
        lists=3,
    ),
    "kept": _PENDING,
}  # fmt: skip


def encode_block(name: str, *entries: Sequence[Any], undated: Collection[int] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of a block.

    Args:
        name: name of the block.
        entries: event ids, entries and, for settled ids, the times at which they were settled.
        undated: steps without a time when the snapshot was taken. Their ticks can be applied while it is written.
    """
    block = BLOCKS[name]
    arrays: dict[str, NDArray[Any]] = {}
    for (column, kind), values in zip(block.columns.items(), block.split(*entries, undated), strict=True):
        arrays |= zip((column + suffix for suffix in kind.arrays), kind.encode(values), strict=True)
    return arrays


def decode_block(name: str, arrays: Columns) -> list[list[Any]]:
    """Decode the entries of a block; the inverse of `encode_block`.

    Raises:
        ValueError, TypeError, KeyError, IndexError: the arrays are not those of such a block, or their lengths differ.
    """
    block = BLOCKS[name]
    expected = {column + suffix: kind for column, kind in block.columns.items() for suffix in kind.arrays}
    if arrays.keys() != expected.keys():
        raise ValueError(f"columns: expected {sorted(expected)}; got {sorted(arrays)}")
    for column, kind in expected.items():
        if arrays[column].ndim != kind.ndim:
            raise ValueError(f"{column}: expected {kind.ndim} dimensions; got {arrays[column].shape}")
    firsts = {column: len(arrays[column + kind.arrays[0]]) for column, kind in block.columns.items()}
    if len(set(firsts.values())) != 1:  # checked first: a wrong length could decode to any number of rows
        raise ValueError(f"columns: expected one length; got {firsts}")
    return block.join(
        *(kind.decode(*(arrays[column + suffix] for suffix in kind.arrays)) for column, kind in block.columns.items())
    )
