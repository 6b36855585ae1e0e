"""Writes snapshots to the snapshots topic as records and finds the newest complete generation.

The topic is compacted. A record's key is `KEYS/SLOT/INDEX`. KEYS is a task's partition, or `0/model` for a shared
model. The newest generation's slot is never the next one to be written, so one generation is always complete. With
unlimited retention, generations alternate between the slots `a` and `b`. Otherwise, older generations stay in the slots
up to `f`, so that `onebit verify` and `onebit model export` can start in the past: see `Stored.next_slot`. The slot
`import` contains the model written by `onebit model import`. The slot `opening` contains the state with which a moved
task begins; a learner deletes it when the other snapshots cover the topics' retention. A generation's number is the
task's last step in the snapshot, or the shared model's version. A record's value is a *chunk*:

    length of the head, u32 | head, JSON | payload, at most CHUNK_BYTES

    head    {"format": 1, "generation": 4211, "index": 3, "sha256": of the payload}, and in the last chunk also
            {"count": 4, "whole": sha256 over the chunks' sha256 (32 bytes each, in order)}

A generation's concatenated payloads form the state: see `stream.recovery.state`. A generation with a missing chunk or
a wrong checksum is *torn* and is ignored.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain, count, pairwise
from typing import NamedTuple

import orjson
from msgspec import UNSET, Struct, UnsetType, convert, to_builtins

from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.recovery.slices import Parts, at_once
from stream.recovery.steps import JournalError
from stream.wire.records import Record, TopicPartition, place_of
from stream.wire.sections import headed
from stream.wire.topics import Topics

FORMAT = 1

CHUNK_BYTES = 500_000
"""Size of a chunk's payload. It is much smaller than 1 MB, Kafka's default limit for a record."""

ROTATING_SLOTS = ("a", "b", "c", "d", "e", "f")
IMPORT_SLOT = "import"
OPENING_SLOT = "opening"

RENEWALS_PER_RETENTION = 4
"""Number of snapshots of an idle task within the topics' retention."""

MODEL_PARTITION = 0
"""The partition whose task writes a shared model's snapshots."""

MODEL_KEYS = f"{MODEL_PARTITION}/model"
"""Key prefix for a shared model's snapshots."""


class Message(NamedTuple):
    """A record to write to the snapshots topic."""

    key: bytes
    value: bytes | None  # None deletes a chunk from an earlier, longer generation


class ChunkHead(Struct):
    """A chunk's head."""

    format: int
    generation: int
    index: int
    sha256: str
    count: int | UnsetType = UNSET  # in the last chunk: the number of chunks
    whole: str | UnsetType = UNSET


class Generation(NamedTuple):
    """A complete generation."""

    number: int
    slot: str
    place: str  # topic, partition and offset of its first record
    payloads: list[memoryview]
    whole: str = ""  # SHA-256 over the chunks' checksums; identifies the content


class Complete(NamedTuple):
    """A complete generation's number and the append time of its last chunk."""

    number: int
    append_ms: int


_NONE = Complete(-1, -1)


class ChunkWriter:
    """Produces one generation's chunks in batches."""

    def __init__(
        self, number: int, state: Iterable[bytes | memoryview], keys: str, slot: str, chunks_before: int = 0,
        chunk_bytes: int = CHUNK_BYTES, opening_chunks: int = 0,
    ) -> None:  # fmt: skip
        """Start a generation in a slot whose previous generation has `chunks_before` chunks.

        Afterwards, delete the first `opening_chunks` chunks in the slot `opening`.
        """
        self.number = number
        self.slot = slot
        self.count = 0  # number of chunks returned so far
        self.done = False  # whether all chunks were returned
        self._keys = keys
        self._chunks_before = chunks_before
        self.opening_chunks = opening_chunks
        self._chunks = _chunks(number, state, chunk_bytes)

    def portion(self, bytes_max: int) -> list[Message]:
        """Return the next messages, about `bytes_max` bytes in total. The final call adds tombstones for old chunks."""
        messages: list[Message] = []
        size = 0
        while size < bytes_max:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.done = True
                old = [Message(self._key(index), None) for index in range(self.count, self._chunks_before)]
                opening = [Message(self._key(index, OPENING_SLOT), None) for index in range(self.opening_chunks)]
                return messages + old + opening
            messages.append(Message(self._key(self.count), chunk))
            self.count += 1
            size += len(chunk)
        return messages

    def _key(self, index: int, slot: str = "") -> bytes:
        return f"{self._keys}/{slot or self.slot}/{index}".encode()


def _chunks(number: int, state: Iterable[bytes | memoryview], chunk_bytes: int) -> Iterator[bytes]:
    """Yield a generation's chunks, encoded lazily."""
    digests: list[bytes] = []
    for payload, following in pairwise(chain(_cut(state, chunk_bytes), (None,))):
        assert payload is not None
        digests.append(sha256(payload).digest())
        head = ChunkHead(FORMAT, number, len(digests) - 1, digests[-1].hex())
        if following is None:
            head.count, head.whole = len(digests), sha256(b"".join(digests)).hexdigest()
        yield headed(to_builtins(head)) + payload


def _cut(parts: Iterable[bytes | memoryview], chunk_bytes: int) -> Iterator[bytes]:
    """Split bytes into pieces of equal size. The last piece can be shorter."""
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


def decode_chunk(chunk: bytes) -> tuple[ChunkHead, memoryview] | None:
    """Return a chunk's head and payload, or None if the value is not a chunk or its checksum is wrong."""
    start = 4 + int.from_bytes(chunk[:4], "little")
    try:
        head = convert(orjson.loads(chunk[4:start]), ChunkHead)
    except ValueError:  # msgspec's errors are ValueErrors
        return None
    payload = memoryview(chunk)[start:]
    return (head, payload) if sha256(payload).hexdigest() == head.sha256 else None


class Stored:
    """A task's or a shared model's snapshots: the newest complete generation and the slot for the next one."""

    def __init__(self, keys: str, number_max: int | None = None) -> None:
        """Start a search for the newest generation.

        Args:
            keys: the key prefix, which is the task's partition or MODEL_KEYS.
            number_max: highest generation number to accept; None means no limit. A moved task's opening is always
                accepted.
        """
        self.keys = keys
        self.newest: Generation | None = None
        self.imported: Generation | None = None
        self.complete: dict[str, Complete] = {}  # the complete generations by slot, without the import
        self.spacing_ms = 0  # time between generations that are kept for the past; 0 if none are kept
        self.taken_ms = -1  # stream time of the newest snapshot or, if there is none, at the start; -1 if unknown
        self.taken_of: object = None  # ledger or version in the newest snapshot; no snapshot is due until it changes
        self._number_max = number_max
        self._chunks: dict[str, set[int]] = {slot: set() for slot in (*ROTATING_SLOTS, IMPORT_SLOT, OPENING_SLOT)}
        self._incomplete: dict[str, tuple[Generation, list[bytes]]] = {}  # by slot, with the chunks' digests

    def add(self, record: Record) -> None:
        """Add the next record from the topic. Records that are not chunks of these snapshots are skipped.

        Raises:
            JournalError: the chunk is in a different format.
        """
        try:
            keys, slot, text = (record.key or b"").decode().rsplit("/", 2)
            index = int(text)
        except ValueError:
            return
        if keys != self.keys or slot not in self._chunks:
            return
        if record.value is None:
            self._chunks[slot].discard(index)
            if index == 0:
                self._delete(slot)
            return
        decoded = decode_chunk(record.value)
        if decoded is None or decoded[0].index != index:
            self._incomplete.pop(slot, None)
            self.complete.pop(slot, None)
            return
        self._chunks[slot].add(index)
        head, payload = decoded
        if head.format != FORMAT:
            raise JournalError(
                f"generation {head.generation}: expected format {FORMAT}; got {head.format}", place_of(record)
            )
        if index == 0:
            self.complete.pop(slot, None)
            self._incomplete[slot] = Generation(head.generation, slot, place_of(record), []), []
        incomplete = self._incomplete.pop(slot, None)
        if incomplete is None or (incomplete[0].number, len(incomplete[1])) != (head.generation, index):
            return
        generation, digests = incomplete
        digests.append(bytes.fromhex(head.sha256))
        generation.payloads.append(payload)
        if head.count is UNSET:
            self._incomplete[slot] = incomplete
        elif (head.count, head.whole) == (len(digests), sha256(b"".join(digests)).hexdigest()):
            self._add_whole(generation._replace(whole=str(head.whole)), record.append_ms)

    def _delete(self, slot: str) -> None:
        """Forget the generation in a slot whose first chunk was deleted."""
        self._incomplete.pop(slot, None)
        self.complete.pop(slot, None)
        if self.newest is not None and self.newest.slot == slot:
            self.newest = None

    def _add_whole(self, generation: Generation, append_ms: int) -> None:
        if generation.slot == IMPORT_SLOT:
            self.imported = generation
            return
        self.complete[generation.slot] = Complete(generation.number, append_ms)
        is_opening = generation.slot == OPENING_SLOT
        if self._number_max is not None and generation.number > self._number_max and not is_opening:
            return
        if self.newest is None or generation.number >= self.newest.number:
            self.newest = generation

    @property
    def newest_number(self) -> int:
        """The number of the newest complete generation, or -1 if there is none."""
        return max(self.complete.values(), default=_NONE).number

    @property
    def newest_ms(self) -> int:
        """The append time of the newest complete generation, or -1 if there is none."""
        return max(self.complete.values(), default=_NONE).append_ms

    @property
    def next_slot(self) -> str:
        """The slot for the next generation.

        The second newest generation is overwritten, unless it is kept for the past: if it was written at least
        `spacing_ms` after the third newest one, a free slot or the oldest generation's slot is used.

            age in spacings   0.0  0.1  0.9  1.9  2.9  3.9      next: the slot of 0.1
                              0.0  1.0  1.9  2.9  3.9  4.9      next: the slot of 4.9
        """
        slots = sorted(self.complete.keys() - {OPENING_SLOT}, key=self.complete.__getitem__, reverse=True)
        times_ms = [self.complete[slot].append_ms for slot in slots]
        if len(slots) > 1 and (not self.spacing_ms or (len(slots) > 2 and times_ms[1] - times_ms[2] < self.spacing_ms)):
            return slots[1]
        return next((slot for slot in ROTATING_SLOTS if slot not in self.complete), slots[-1] if slots else "")

    def chunks_in(self, slot: str) -> int:
        """Return the number of chunks in a slot. The next generation overwrites or deletes them.

        Only consecutive chunks count. If another program has written a chunk with a huge index, deleting all chunks up
        to that index would take too long.
        """
        return next(index for index in count() if index not in self._chunks[slot])

    def writer(self, number: int, state: Iterable[bytes | memoryview], chunk_bytes: int) -> ChunkWriter:
        """Return a writer for the next generation."""
        slot = self.next_slot
        self.complete.pop(slot, None)
        opening_chunks = self.chunks_in(OPENING_SLOT) if self._outlives_opening else 0
        return ChunkWriter(number, state, self.keys, slot, self.chunks_in(slot), chunk_bytes, opening_chunks)

    @property
    def _outlives_opening(self) -> bool:
        """Whether the topics' retention is limited, and the newest snapshot is later than the opening by as much."""
        opening, keep_ms = self.complete.get(OPENING_SLOT), RENEWALS_PER_RETENTION * self.spacing_ms
        return opening is not None and 0 < keep_ms <= self.newest_ms - opening.append_ms

    def wrote(self, writer: ChunkWriter, append_ms: int) -> None:
        """Mark a generation as committed at this append time."""
        self._chunks[writer.slot] = set(range(writer.count))
        self.complete[writer.slot] = Complete(writer.number, append_ms)
        if writer.opening_chunks:
            self._chunks[OPENING_SLOT].clear()
            del self.complete[OPENING_SLOT]

    def release(self) -> None:
        """Free all generations' payloads."""
        for generation in filter(None, (self.newest, self.imported)):
            generation.payloads.clear()


def reading_snapshots(
    broker: Broker, topics: Topics, partition: int | None, number_max: int | None = None
) -> Parts[Stored]:
    """Read a task's or a shared model's snapshots, record by record.

    Args:
        broker: the broker.
        topics: the pipeline's topics.
        partition: the task's partition; None means the shared model.
        number_max: highest generation number; None means no limit.

    Raises:
        JournalError: a chunk is in a different format.
    """
    keys, partition = (MODEL_KEYS, MODEL_PARTITION) if partition is None else (str(partition), partition)
    stored = Stored(keys, number_max)
    for record in read_partition(broker, TopicPartition(topics.snapshots, partition)):
        stored.add(record)
        yield True
    return stored


read_snapshots = at_once(reading_snapshots)
