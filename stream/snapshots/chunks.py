"""Snapshots as records of the snapshots topic: chunks in slots, and the newest whole generation among them.

The topic is compacted; a record's key is `PARTITION/SLOT/INDEX`. Generations alternate between the slots `a` and `b`,
so that the one before the newest stays whole while that is being written. What `onebit model import` wrote stands in
the slot `import` for good. A generation's number is that of the journal step after which it was taken. A value, the
*chunk*, is

    length of the head, u32 | head, JSON | payload, at most CHUNK_BYTES

    head    {"format": 1, "generation": 4211, "index": 3, "sha256": of the payload}, and in the last chunk besides
            {"count": 4, "whole": sha256 over the chunks' sha256 (32 bytes each, in order)}

The payloads of a generation, one after the other, are the state: see `stream.snapshots.state`. A generation
whose last chunk is not there, or of which a chunk is missing or does not have its checksum, is *torn*: it is as if it
had never been written.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from stream.snapshots.state import FORMAT, Snapshot, SnapshotError, encode_state
from stream.wire.records import Record, place_of
from stream.wire.sections import headed

CHUNK_BYTES = 500_000
"""Of a chunk's payload: well under the 1 MB that Kafka lets a record have by default."""

ROTATING_SLOTS = ("a", "b")
IMPORT_SLOT = "import"

MODEL_KEYS = "0/model"
"""What the keys of snapshots of a shared model begin with."""


class Message(NamedTuple):
    """A record of the snapshots topic, to be written."""

    key: bytes
    value: bytes | None  # None: a chunk of an earlier, longer generation is taken away


class ChunkWriter:
    """Writes the chunks of one generation, a portion at a time."""

    def __init__(self, chunks: Iterator[bytes], place: str, slot: str, chunks_before: int = 0) -> None:
        """Write chunks over what a slot of a place holds, `chunks_before` of an earlier generation."""
        self.slot = slot
        self.count = 0  # chunks given out so far
        self.done = False  # whether all have been
        self._place = place
        self._chunks_before = chunks_before
        self._chunks = chunks

    def portion(self, bytes_max: int) -> list[Message]:
        """The next messages, about so many bytes; at the end all that is left to do."""
        messages: list[Message] = []
        size = 0
        while size < bytes_max:
            chunk = next(self._chunks, None)
            if chunk is None:
                gone = range(self.count, self._chunks_before)
                self.done = True
                return messages + [Message(message_key(self._place, self.slot, index), None) for index in gone]
            messages.append(Message(message_key(self._place, self.slot, self.count), chunk))
            self.count += 1
            size += len(chunk)
        return messages


class Writer(ChunkWriter):
    """Writes the snapshot of a task. What it holds is as it was when the snapshot was taken."""

    def __init__(
        self, snapshot: Snapshot, partition: int, slot: str, chunks_before: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """Write a snapshot over what a slot holds, `chunks_before` chunks of an earlier generation."""
        chunks = chunks_of(snapshot.position.number, encode_state(snapshot), chunk_bytes)
        super().__init__(chunks, str(partition), slot, chunks_before)
        self.position = snapshot.position
        self.ledger = snapshot.ledger


def other_slot(slot: str) -> str:
    """The slot that generations alternate with."""
    return ROTATING_SLOTS[1 - ROTATING_SLOTS.index(slot)]


def message_key(place: str, slot: str, index: int) -> bytes:
    """The key of a chunk's record; the place is the task's partition, or that of a shared model."""
    return f"{place}/{slot}/{index}".encode()


def chunks_of(number: int, parts: Iterable[bytes | memoryview], chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The chunks of a generation of this number, each made when it is asked for."""
    digests = []
    payloads = _cut(parts, chunk_bytes)
    payload = next(payloads)
    for following in payloads:
        digests.append(sha256(payload).digest())
        yield _chunk(number, len(digests) - 1, digests[-1], payload, {})
        payload = following
    digests.append(sha256(payload).digest())
    last = {"count": len(digests), "whole": sha256(b"".join(digests)).hexdigest()}
    yield _chunk(number, len(digests) - 1, digests[-1], payload, last)


def _chunk(generation: int, index: int, digest: bytes, payload: bytes, last: Mapping[str, Any]) -> bytes:
    head = {"format": FORMAT, "generation": generation, "index": index, "sha256": digest.hex(), **last}
    return b"".join((headed(head), payload))


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


class ChunkHead(NamedTuple):
    """What stands at the beginning of a chunk."""

    format: int
    generation: int
    position: int  # `index` in JSON
    digest: str  # `sha256`
    chunks: int | None  # `count`: in the last chunk, how many there are
    whole: str | None


_HEAD_TYPES = (int, int, int, str, int | None, str | None)


def decode_chunk(chunk: bytes) -> tuple[ChunkHead, memoryview] | None:
    """Head and payload of a chunk; None when it is not one, or not as it was written."""
    try:
        fields, start = _head_at(memoryview(chunk), 0)
        head = ChunkHead(
            fields["format"], fields["generation"], fields["index"], fields["sha256"],
            fields.get("count"), fields.get("whole"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None
    if not all(map(isinstance, head, _HEAD_TYPES)):
        return None
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
    place: str  # of its first record
    payloads: list[memoryview]
    whole: str = ""  # SHA-256 over the chunks' checksums: a name for what is in it


class Stored:
    """The snapshots of a task, or of a shared model, in a topic: the newest whole generation among its records."""

    def __init__(self, keys: str, number_max: int | None = None) -> None:
        """Look for the newest generation, or for the newest up to a number.

        Args:
            keys: what keys begin with: the task's partition, or MODEL_KEYS.
            number_max: of a generation; None: the newest one is looked for.
        """
        self._keys_prefix = keys
        self.newest: Generation | None = None
        self.imported: Generation | None = None
        self._number_max = number_max
        self._keys: dict[str, set[int]] = {}
        self._begun: dict[str, tuple[Generation, list[bytes]]] = {}  # and the digests of its chunks

    def add(self, record: Record) -> None:
        """Take in the next record; what is no chunk of these snapshots is passed over.

        Raises:
            SnapshotError: it is of another format.
        """
        try:
            keys, slot, index = (record.key or b"").decode().rsplit("/", 2)
            key_index = int(index)
        except ValueError:
            return
        if keys != self._keys_prefix:
            return
        if record.value is None:
            self._keys.get(slot, set()).discard(key_index)
            return
        decoded = decode_chunk(record.value)
        if decoded is None or decoded[0].position != key_index:
            self._begun.pop(slot, None)
            return
        self._keys.setdefault(slot, set()).add(key_index)
        head, payload = decoded
        if head.format != FORMAT:
            raise SnapshotError(
                f"{place_of(record)}: generation {head.generation}: expected format {FORMAT}; got {head.format}"
            )
        begun = self._begun.get(slot)
        if head.position == 0:
            begun = self._begun[slot] = Generation(head.generation, slot, place_of(record), []), []
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
        """How many chunks of a slot must be written over or taken away.

        They follow on each other. A key far behind them is another program's, and would be an endless number of chunks.
        """
        found = self._keys.get(slot, set())
        return next(index for index in itertools.count() if index not in found)

    def next_slot(self) -> str:
        """Where the next generation goes: not where the newest whole one stands."""
        return ROTATING_SLOTS[0] if self.newest is None else other_slot(self.newest.slot)
