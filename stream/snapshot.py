"""Snapshots: a task's whole state as chunks of bytes, and back. No pickle, no topic, no clock.

**The records of a snapshot.** The snapshots topic is compacted; a record's key is `PARTITION/SLOT/INDEX`. Generations
alternate between the slots `a` and `b`, so that the one before the newest stays whole while that is being written. What
`onebit model import` wrote stands in the slot `import` for good. A generation's number is that of the journal step
after which it was taken. A value, the *chunk*, is

    length of the head, u32 | head, JSON | payload, at most CHUNK_BYTES

    head    {"format": 3, "generation": 4211, "index": 3, "sha256": of the payload}, and in the last chunk besides
            {"count": 4, "whole": sha256 over the chunks' sha256 (32 bytes each, in order)}

A generation whose last chunk is not there, or of which a chunk is missing or does not have its checksum, is *torn*: it
is as if it had never been written.

**The state.** The payloads of a generation, one after the other, are *sections*; all numbers are little-endian:

    length of the head, u32 | head, JSON | the arrays' bytes, one after the other, rows first

    head    {"name": "learner", "values": {...}, "arrays": [["W", "<f8", [3, 400]], ...]}

    state     values: the task's settings, its place in its topics, its counts (see `_state_values`); comes first
    learner   arrays and scalars of `Learner.state()`; as many sections as it has arrays
    pending   a block of decisions that wait, oldest first: one array for each column; as many sections as needed
    orphans   a block of feedback that waits
    retained  a block of settled ids
    end       nothing; comes last

A column of texts or bytes is two arrays: `NAME.lengths` (-1: none) and `NAME.bytes`, all of them joined.

**Formats.** 3 is the current one. 2 did not have the column `logged` of decisions: they logged nothing of their own. 1
did not have `taken_ms`, nor `overflows`: `_from_1` supplies them. A chunk of a later format is refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from stream.engine import Task, TaskSettings
from stream.events import Decision, Features, Feedback, Outcome
from stream.join import Orphan, Overflows, Pending, Retained
from stream.learners import State
from stream.ledger import Ledger
from stream.records import Record

FORMAT = 3

CHUNK_BYTES = 500_000
"""Of a chunk's payload: well under the 1 MB that Kafka lets a record have by default."""

BLOCK_ENTRIES = 2_000
"""Entries of the join in one section: what is encoded at once, 5 ms or so."""

ROTATING_SLOTS = ("a", "b")
IMPORT_SLOT = "import"


class SnapshotError(ValueError):
    """A snapshot that cannot be used; the message says what to do."""


class Position(NamedTuple):
    """Where a task stands in its topics."""

    number: int  # of the last step applied; 0: none
    journal_offset: int  # the next step stands here or later in the journal
    contexts_offset: int  # of the first record that is not applied
    feedback_offset: int
    taken_ms: int  # the broker's time when the snapshot was taken


class Snapshot(NamedTuple):
    """A task's whole state at one position."""

    settings: Mapping[str, Any]  # of the task, as its journal has them; of an import only those that it depends on
    position: Position
    updates: int
    decided_at_ms: int
    watermark_ms: int
    ledger: Ledger
    overflows: Overflows
    learner: State
    pending: tuple[Sequence[str], Sequence[Pending]]  # ids, and what is kept for each
    orphans: tuple[Sequence[str], Sequence[Orphan]]
    retained: tuple[Sequence[str], Sequence[Retained]]


Entry = TypeVar("Entry", Pending, Orphan, Retained)


class Message(NamedTuple):
    """A record of the snapshots topic, to be written."""

    key: bytes
    value: bytes | None  # None: a chunk of an earlier, longer generation is taken away


def take(task: Task, position: Position, spare: State | None = None) -> Snapshot:
    """The state of a task, with no part that a later step changes.

    Args:
        task: the task, between two steps.
        position: where it stands.
        spare: a state of a learner with the same settings, whose arrays are overwritten. Memory that a process has not
            touched yet can cost ten times as much as the copy itself: 250 ms against 10 ms for 100 MB, measured.
    """
    join = task.join
    return Snapshot(
        asdict(task.settings),
        position,
        task.updates,
        task.decided_at_ms,
        join.watermark_ms,
        join.ledger(),
        join.overflows(),
        task.learner.state() if spare is None else task.learner.state_into(spare),
        _entries(join.pending),
        _entries(join.orphans),
        _entries(join.retained),
    )


def restore(snapshot: Snapshot, settings: TaskSettings, contexts_topic: str) -> Task:
    """The task that a snapshot was taken of.

    Raises:
        SnapshotError: the learner's state does not fit the settings.
    """
    task = Task(settings, contexts_topic)
    try:
        task.learner.load(snapshot.learner)
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"the state in the snapshot does not fit {settings.learner}: {error}") from error
    task.updates = snapshot.updates
    task.decided_at_ms = snapshot.decided_at_ms
    join = task.join
    join.watermark_ms = snapshot.watermark_ms
    join.pending.update(zip(*snapshot.pending, strict=True))
    join.orphans.update(zip(*snapshot.orphans, strict=True))
    join.retained.update(zip(*snapshot.retained, strict=True))
    join.restore_counts(snapshot.ledger, snapshot.overflows)
    return task


def task_digest(task: Task) -> str:
    """SHA-256 of all that a task's future depends on, wherever it stands: learner, join, counts."""
    digest = sha256()
    for part in _encoded(take(task, Position(0, 0, 0, 0, 0))):
        digest.update(part)
    return digest.hexdigest()


def _entries(kept: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """Keys and values of one of the join's maps, oldest first.

    By the methods of dict, which are four times as fast as OrderedDict's own; the order is the same, because the join
    moves no entry that it has.
    """
    assert isinstance(kept, dict)
    return list(dict.keys(kept)), list(dict.values(kept))


class Writer:
    """Writes one generation, a portion at a time. What it holds is as it was when the snapshot was taken."""

    def __init__(
        self, snapshot: Snapshot, partition: int, slot: str, chunks_before: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """Write a snapshot over what a slot holds, `chunks_before` chunks of an earlier generation."""
        self.position = snapshot.position
        self.ledger = snapshot.ledger
        self.slot = slot
        self.count = 0  # chunks given out so far
        self.done = False  # whether all have been
        self._partition = partition
        self._chunks_before = chunks_before
        self._chunks = encode(snapshot, chunk_bytes)

    def portion(self, bytes_max: int) -> list[Message]:
        """The next messages, about so many bytes; at the end all that is left to do."""
        messages: list[Message] = []
        size = 0
        while size < bytes_max:
            chunk = next(self._chunks, None)
            if chunk is None:
                gone = range(self.count, self._chunks_before)
                self.done = True
                return messages + [Message(message_key(self._partition, self.slot, index), None) for index in gone]
            messages.append(Message(message_key(self._partition, self.slot, self.count), chunk))
            self.count += 1
            size += len(chunk)
        return messages


def other_slot(slot: str) -> str:
    """The slot that generations alternate with."""
    return ROTATING_SLOTS[1 - ROTATING_SLOTS.index(slot)]


def message_key(partition: int, slot: str, index: int) -> bytes:
    """The key of a chunk's record."""
    return f"{partition}/{slot}/{index}".encode()


def encode(snapshot: Snapshot, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The chunks of a snapshot, each made when it is asked for."""
    digests = []
    payloads = _cut(_encoded(snapshot), chunk_bytes)
    payload = next(payloads)
    for following in payloads:
        digests.append(sha256(payload).digest())
        yield _chunk(snapshot.position.number, len(digests) - 1, digests[-1], payload, {})
        payload = following
    digests.append(sha256(payload).digest())
    last = {"count": len(digests), "whole": sha256(b"".join(digests)).hexdigest()}
    yield _chunk(snapshot.position.number, len(digests) - 1, digests[-1], payload, last)


def _chunk(generation: int, index: int, digest: bytes, payload: bytes, last: Mapping[str, Any]) -> bytes:
    head = {"format": FORMAT, "generation": generation, "index": index, "sha256": digest.hex(), **last}
    return b"".join((_headed(head), payload))


def _headed(head: Mapping[str, Any]) -> bytes:
    encoded = orjson.dumps(head)
    return len(encoded).to_bytes(4, "little") + encoded


def _cut(parts: Iterable[bytes | memoryview], chunk_bytes: int) -> Iterator[bytes]:
    """The same bytes in pieces of one size; the last may be shorter."""
    waiting: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        view = memoryview(part)
        while size + len(view) >= chunk_bytes:
            room = chunk_bytes - size
            yield b"".join((*waiting, view[:room]))
            view = view[room:]
            waiting, size = [], 0
        waiting.append(view)
        size += len(view)
    if size:
        yield b"".join(waiting)


def _encoded(snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    for section in _sections(snapshot):
        arrays = [
            (name, np.ascontiguousarray(array, array.dtype.newbyteorder("<"))) for name, array in section.arrays.items()
        ]
        described = [(name, array.dtype.str, array.shape) for name, array in arrays]
        yield _headed({"name": section.name, "values": dict(section.values), "arrays": described})
        for _, array in arrays:
            if array.size:
                yield array.reshape(-1).view(np.uint8).data


class _Section(NamedTuple):
    name: str
    values: Mapping[str, Any] = MappingProxyType({})
    arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})


def _sections(snapshot: Snapshot) -> Iterator[_Section]:
    yield _Section("state", _state_values(snapshot))
    for name, value in snapshot.learner.items():
        if isinstance(value, np.ndarray | np.generic):
            shaped = value.reshape(1) if value.ndim == 0 else value
            yield _Section("learner", {"scalar": value.ndim == 0}, {name: shaped})
        elif isinstance(value, float):
            yield _Section("learner", {"scalar": True, "python": True}, {name: np.array([value])})
        else:
            yield _Section("learner", {"values": {name: value}})
    yield from _blocks("pending", snapshot.pending, _pending_columns)
    yield from _blocks("orphans", snapshot.orphans, _orphan_columns)
    yield from _blocks("retained", snapshot.retained, _retained_columns)
    yield _Section("end")


def _blocks(
    name: str,
    kept: tuple[Sequence[str], Sequence[Entry]],
    columns_of: Callable[[Sequence[Entry]], dict[str, NDArray[Any]]],
) -> Iterator[_Section]:
    ids, entries = kept
    for start in range(0, len(ids), BLOCK_ENTRIES):
        part = slice(start, start + BLOCK_ENTRIES)
        yield _Section(name, arrays={**_texts("id", ids[part]), **columns_of(entries[part])})


def _state_values(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "settings": snapshot.settings,
        **snapshot.position._asdict(),
        "updates": snapshot.updates,
        "decided_at_ms": snapshot.decided_at_ms,
        "watermark_ms": snapshot.watermark_ms,
        "ledger": snapshot.ledger._asdict(),
        "overflows": snapshot.overflows._asdict(),
    }


def _from_1(values: dict[str, Any]) -> dict[str, Any]:
    """Format 1 had no time, for which the feedback watermark stands in, and did not keep the overflows' counts."""
    return {**values, "taken_ms": values["watermark_ms"], "overflows": Overflows()._asdict()}


def _from_2(values: dict[str, Any]) -> dict[str, Any]:
    """Format 2 had the same values; its decisions lack a column, see `_pending_entries`."""
    return values


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2}
"""For each earlier format, what makes the values of its `state` section those of the next one."""


def _pending_columns(entries: Sequence[Pending]) -> dict[str, NDArray[Any]]:
    xs, decisions, decided_at_ms = zip(*entries, strict=True)
    indices, values = zip(*xs, strict=True)
    actions, greedies, propensities, scores, logged = zip(*decisions, strict=True)
    return {
        "decided_at_ms": np.array(decided_at_ms, np.int64),
        "action": np.array(actions, np.int32),
        "greedy": np.array(greedies, np.int32),
        "propensity": np.array(propensities, np.float64),
        "scores": np.concatenate(scores).reshape(len(entries), -1),
        "logged": np.concatenate(logged).reshape(len(entries), logged[0].size),
        "nnz": np.array([array.size for array in indices], np.int32),
        "x.indices": np.concatenate(indices),
        "x.values": np.concatenate(values),
    }


def _pending_entries(columns: Mapping[str, NDArray[Any]]) -> list[Pending]:
    ends = np.cumsum(columns["nnz"])[:-1]
    xs = map(Features, np.split(columns["x.indices"], ends), np.split(columns["x.values"], ends))
    decisions = map(
        Decision,
        columns["action"].tolist(),
        columns["greedy"].tolist(),
        columns["propensity"].tolist(),
        list(columns["scores"]),
        list(columns.get("logged", np.zeros((columns["action"].size, 0)))),
    )
    return list(map(Pending, xs, decisions, columns["decided_at_ms"].tolist()))


def _orphan_columns(entries: Sequence[Orphan]) -> dict[str, NDArray[Any]]:
    feedback, records, kept_at_ms = zip(*entries, strict=True)
    return {
        "reward": np.array([event.reward for event in feedback], np.int8),
        "label": np.array([-1 if event.label is None else event.label for event in feedback], np.int64),
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
    return orjson.dumps([(name, value.hex()) for name, value in record.headers])


def _orphan_entries(ids: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> list[Orphan]:
    records = [
        Record(topic, partition, offset, append_ms, key, value, headers)
        for topic, partition, offset, append_ms, key, value, headers in zip(
            _texts_of("topic", columns),
            columns["partition"].tolist(),
            columns["offset"].tolist(),
            columns["append_ms"].tolist(),
            _blobs_of("key", columns),
            _blobs_of("value", columns),
            [tuple((n, bytes.fromhex(v)) for n, v in orjson.loads(h or b"")) for h in _blobs_of("headers", columns)],
            strict=True,
        )
    ]
    labels = [None if label < 0 else label for label in columns["label"].tolist()]
    feedback = map(Feedback, ids, columns["reward"].tolist(), labels)
    return list(map(Orphan, feedback, records, columns["kept_at_ms"].tolist()))


_OUTCOMES = tuple(Outcome)


def _retained_columns(entries: Sequence[Retained]) -> dict[str, NDArray[Any]]:
    outcomes, rewards, settled_at_ms, kept = zip(*entries, strict=True)
    pending = [entry for entry in kept if entry is not None]
    columns: dict[str, NDArray[Any]] = {
        "outcome": np.array([_OUTCOMES.index(outcome) for outcome in outcomes], np.int8),
        "reward": np.array([-1 if reward is None else reward for reward in rewards], np.int8),
        "settled_at_ms": np.array(settled_at_ms, np.int64),
    }
    if pending:
        columns["kept"] = np.array([entry is not None for entry in kept], np.int8)
        columns |= _pending_columns(pending)
    return columns


def _retained_entries(columns: Mapping[str, NDArray[Any]]) -> list[Retained]:
    outcomes = [_OUTCOMES[index] for index in columns["outcome"].tolist()]
    rewards = [None if reward < 0 else reward for reward in columns["reward"].tolist()]
    kept: list[Pending | None] = [None] * len(outcomes)
    if "kept" in columns:
        for index, pending in zip(np.flatnonzero(columns["kept"]).tolist(), _pending_entries(columns), strict=True):
            kept[index] = pending
    return list(map(Retained, outcomes, rewards, columns["settled_at_ms"].tolist(), kept))


def _blobs(name: str, blobs: Sequence[bytes | None]) -> dict[str, NDArray[Any]]:
    lengths = np.array([-1 if blob is None else len(blob) for blob in blobs], np.int32)
    return {
        f"{name}.lengths": lengths,
        f"{name}.bytes": np.frombuffer(b"".join(blob for blob in blobs if blob is not None), np.uint8),
    }


def _blobs_of(name: str, columns: Mapping[str, NDArray[Any]]) -> list[bytes | None]:
    lengths = columns[f"{name}.lengths"].tolist()
    joined = columns[f"{name}.bytes"].tobytes()
    ends = accumulate(max(length, 0) for length in lengths)
    return [None if length < 0 else joined[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def _texts(name: str, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    return _blobs(name, [text.encode() for text in texts])


def _texts_of(name: str, columns: Mapping[str, NDArray[Any]]) -> list[str]:
    return [(blob or b"").decode() for blob in _blobs_of(name, columns)]


class ChunkHead(NamedTuple):
    """What stands at the beginning of a chunk."""

    format: int
    generation: int
    position: int  # `index` in JSON
    digest: str  # `sha256`
    chunks: int | None  # `count`: in the last chunk, how many there are
    whole: str | None


def decode_chunk(chunk: bytes) -> tuple[ChunkHead, memoryview] | None:
    """Head and payload of a chunk; None when it is not one, or not as it was written.

    Raises:
        SnapshotError: it is of a later format.
    """
    try:
        fields, start = _head_at(memoryview(chunk), 0)
        head = ChunkHead(
            fields["format"], fields["generation"], fields["index"], fields["sha256"],
            fields.get("count"), fields.get("whole"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None
    if head.format > FORMAT:
        raise SnapshotError(
            f"generation {head.generation} is of format {head.format}; this version of Onebit reads up to {FORMAT}: "
            "start the later version that wrote it"
        )
    payload = memoryview(chunk)[start:]
    return (head, payload) if sha256(payload).hexdigest() == head.digest else None


def _head_at(data: memoryview, start: int) -> tuple[dict[str, Any], int]:
    """A JSON object and its length before it; and where what follows begins."""
    end = start + 4 + int.from_bytes(data[start : start + 4], "little")
    if end > len(data):
        raise ValueError(f"a head of {end - start} bytes in {len(data)}")
    return dict(orjson.loads(data[start + 4 : end])), end


class Generation(NamedTuple):
    """A whole generation, as it is stored."""

    number: int
    slot: str
    format: int
    payloads: list[memoryview]
    whole: str = ""  # SHA-256 over the chunks' checksums: a name for what is in it


class Stored:
    """What the snapshots topic of a task holds: fed with its records in order, it keeps the newest whole generation."""

    def __init__(self, number_max: int | None = None) -> None:
        """Look for the newest generation, or for the newest up to a number."""
        self.newest: Generation | None = None
        self.imported: Generation | None = None
        self._number_max = number_max
        self._keys: dict[str, set[int]] = {}
        self._begun: dict[str, tuple[Generation, list[bytes]]] = {}  # and the digests of its chunks

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Take in the next record; what is no chunk is passed over.

        Raises:
            SnapshotError: it is of a later format.
        """
        try:
            _, slot, index = (key or b"").decode().split("/")
            key_index = int(index)
        except ValueError:
            return
        if value is None:
            self._keys.get(slot, set()).discard(key_index)
            return
        self._keys.setdefault(slot, set()).add(key_index)
        decoded = decode_chunk(value)
        if decoded is None or decoded[0].position != key_index:
            self._begun.pop(slot, None)
            return
        head, payload = decoded
        begun = self._begun.get(slot)
        if head.position == 0:
            begun = self._begun[slot] = Generation(head.generation, slot, head.format, []), []
        elif begun is None or (begun[0].number, len(begun[1])) != (head.generation, head.position):
            self._begun.pop(slot, None)
            return
        generation, digests = begun
        digests.append(bytes.fromhex(head.digest))
        generation.payloads.append(payload)
        if head.chunks is not None:
            self._finish(generation, digests, head)

    def _finish(self, generation: Generation, digests: list[bytes], last: ChunkHead) -> None:
        del self._begun[generation.slot]
        if (last.chunks, last.whole) != (len(digests), sha256(b"".join(digests)).hexdigest()):
            return
        generation = generation._replace(whole=last.whole or "")
        if generation.slot == IMPORT_SLOT:
            self.imported = generation
        elif self._number_max is not None and generation.number > self._number_max:
            return
        elif self.newest is None or generation.number > self.newest.number:
            self.newest = generation

    def chunks_in(self, slot: str) -> int:
        """How many chunks of a slot must be written over or taken away."""
        return max(self._keys.get(slot, ()), default=-1) + 1

    def next_slot(self) -> str:
        """Where the next generation goes: not where the newest whole one stands."""
        return ROTATING_SLOTS[0] if self.newest is None else other_slot(self.newest.slot)


def decode(generation: Generation) -> Snapshot:
    """The snapshot in a whole generation; its payloads are let go as they are read.

    Raises:
        SnapshotError: the checksums are right, and yet it cannot be read.
    """
    try:
        return _decode(_Reader(generation.payloads), generation.format)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SnapshotError(
            f"generation {generation.number}, format {generation.format}, cannot be read: {error!r}"
        ) from error


def _decode(reader: "_Reader", written_format: int) -> Snapshot:
    opening = reader.section()
    values = dict(opening.values)
    for older in range(written_format, FORMAT):
        values = MIGRATIONS[older](values)
    learner: State = {}
    ids: dict[str, list[str]] = {"pending": [], "orphans": [], "retained": []}
    entries: dict[str, list[Any]] = {"pending": [], "orphans": [], "retained": []}
    while (section := reader.section()).name != "end":
        if section.name == "learner":
            learner |= section.values.get("values", {})
            for name, array in section.arrays.items():
                if section.values.get("python"):
                    learner[name] = float(array[0])
                else:
                    learner[name] = array.reshape(()) if section.values["scalar"] else array
            continue
        block_ids = _texts_of("id", section.arrays)
        ids[section.name] += block_ids
        if section.name == "pending":
            entries["pending"] += _pending_entries(section.arrays)
        elif section.name == "orphans":
            entries["orphans"] += _orphan_entries(block_ids, section.arrays)
        else:
            entries["retained"] += _retained_entries(section.arrays)
    return Snapshot(
        values["settings"],
        Position(*(values[name] for name in Position._fields)),
        values["updates"],
        values["decided_at_ms"],
        values["watermark_ms"],
        Ledger(**values["ledger"]),
        Overflows(**values["overflows"]),
        learner,
        (ids["pending"], entries["pending"]),
        (ids["orphans"], entries["orphans"]),
        (ids["retained"], entries["retained"]),
    )


class _Reader:
    """Reads sections off payloads, and lets each payload go when it has been read."""

    def __init__(self, payloads: list[memoryview]) -> None:
        self._payloads = payloads
        self._payloads.reverse()
        self._start = 0  # in the next payload

    def section(self) -> _Section:
        head = orjson.loads(self._bytes(int.from_bytes(self._bytes(4), "little")))
        arrays = {}
        for name, dtype, shape in head["arrays"]:
            # Memory of its own: the kernels were compiled for arrays that are aligned and may be written to.
            array = np.empty(shape, dtype)
            if array.size:
                self._fill(array.reshape(-1).view(np.uint8).data)
            arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
        return _Section(head["name"], head["values"], arrays)

    def _bytes(self, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            payload = self._payloads[-1]
            count = min(len(target) - done, len(payload) - self._start)
            target[done : done + count] = payload[self._start : self._start + count]
            done += count
            self._start += count
            if self._start == len(payload):
                self._payloads.pop()
                self._start = 0
