"""A reader of what Onebit stores, written from docs/formats.md alone. Nothing of Onebit is used, and no numpy.

It is here to hold that page true, and shows what a reader in another language has to do.
"""

import ast
import json
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

LEDGER = (
    "contexts", "decided", "context_duplicates", "context_malformed",
    "feedback", "matched", "expired", "pending", "late", "feedback_duplicates", "conflicts",
    "orphans_waiting", "orphans_dropped", "feedback_malformed",
)  # fmt: skip
"""The places of the counts in a journal record."""

CODES = {"<f8": "d", "<i8": "q", "<i4": "i", "|i1": "b", "|u1": "B", "|b1": "?"}
"""Types of entries, and how Python's struct calls them."""


class Array(NamedTuple):
    """An array as it is stored."""

    type: str
    shape: tuple[int, ...]
    content: bytes

    def entries(self) -> list[Any]:
        """All entries, rows first."""
        code = CODES[self.type]
        return list(struct.unpack(f"<{len(self.content) // struct.calcsize('<' + code)}{code}", self.content))

    def rows(self) -> list[list[Any]]:
        """The rows of a matrix."""
        entries, width = self.entries(), self.shape[1]
        return [entries[start : start + width] for start in range(0, len(entries), width)]


Part = Array | float | int | str
"""A part of a learner's state."""


class Section(NamedTuple):
    """A part of a snapshot."""

    name: str
    values: dict[str, Any]
    arrays: dict[str, Array]


class Generation(NamedTuple):
    """A whole snapshot."""

    number: int
    slot: str
    format: int
    whole: str
    sections: list[Section]

    @property
    def state(self) -> dict[str, Any]:
        """Settings, place and counts."""
        return self.sections[0].values

    def learner(self) -> dict[str, Part]:
        """The learner's state."""
        parts: dict[str, Part] = {}
        for section in self.of("learner"):
            parts |= section.values.get("values", {})
            for name, array in section.arrays.items():
                if section.values.get("python"):
                    parts[name] = array.entries()[0]
                else:
                    parts[name] = array._replace(shape=()) if section.values["scalar"] else array
        return parts

    def of(self, name: str) -> list[Section]:
        """The sections of a name."""
        return [section for section in self.sections if section.name == name]


def headed(data: bytes, start: int = 0) -> tuple[dict[str, Any], int]:
    """A JSON object with its length before it, and where it ends."""
    (length,) = struct.unpack_from("<I", data, start)
    return json.loads(data[start + 4 : start + 4 + length]), start + 4 + length


def whole_generations(records: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[Generation]:
    """The whole generations in keys and values of the snapshots topic, as they are finished."""
    begun: dict[str, list[tuple[dict[str, Any], bytes]]] = {}
    for key, value in records:
        if key is None or value is None:
            continue
        _, slot, index = key.decode().split("/")
        head, end = headed(value)
        chunk = (head, value[end:])
        if int(index) == 0:
            begun[slot] = []
        chunks = begun.get(slot, [])
        chunks.append(chunk)
        digests = [sha256(payload).digest() for _, payload in chunks]
        fits = [
            (each["index"], each["generation"], each["sha256"]) == (place, chunks[0][0]["generation"], digest.hex())
            for place, ((each, _), digest) in enumerate(zip(chunks, digests, strict=True))
        ]
        if not all(fits) or int(index) != head["index"]:
            begun.pop(slot, None)
        elif "count" in head:
            if (head["count"], head["whole"]) == (len(chunks), sha256(b"".join(digests)).hexdigest()):
                payload = b"".join(payload for _, payload in chunks)
                yield Generation(head["generation"], slot, head["format"], head["whole"], list(sections(payload)))
            del begun[slot]


def sections(payload: bytes) -> Iterator[Section]:
    """The sections in a generation's payloads."""
    start = 0
    while start < len(payload):
        head, start = headed(payload, start)
        arrays = {}
        for name, kind, shape in head["arrays"]:
            size = int(kind[2:])
            for length in shape:
                size *= length
            arrays[name] = Array(kind, tuple(shape), payload[start : start + size])
            start += size
        yield Section(head["name"], head["values"], arrays)


def blobs(section: Section, name: str) -> list[bytes | None]:
    """A column of bytes."""
    found: list[bytes | None] = []
    start = 0
    for length in section.arrays[f"{name}.lengths"].entries():
        found.append(None if length < 0 else section.arrays[f"{name}.bytes"].content[start : start + length])
        start += max(length, 0)
    assert start == len(section.arrays[f"{name}.bytes"].content)
    return found


def texts(section: Section, name: str) -> list[str]:
    """A column of texts."""
    return [(blob or b"").decode() for blob in blobs(section, name)]


class Waiting(NamedTuple):
    """A decision that waits."""

    decided_at_ms: int
    action: int
    greedy: int
    propensity: float
    scores: list[float]
    x: dict[int, float]


def decisions(section: Section) -> list[Waiting]:
    """The decisions of a section of `pending`, or of one of `retained` that keeps some."""
    columns = {name: array.entries() for name, array in section.arrays.items()}
    found, start = [], 0
    for place, nnz in enumerate(columns["nnz"]):
        x = dict(zip(columns["x.indices"][start : start + nnz], columns["x.values"][start : start + nnz], strict=True))
        start += nnz
        found.append(
            Waiting(
                columns["decided_at_ms"][place],
                columns["action"][place],
                columns["greedy"][place],
                columns["propensity"][place],
                section.arrays["scores"].rows()[place],
                x,
            )
        )
    return found


def kept_decisions(section: Section) -> list[Waiting | None]:
    """Of each entry of a section of `retained` the decision that it still has."""
    if "kept" not in section.arrays:
        return [None] * len(texts(section, "id"))
    found = iter(decisions(section))
    return [next(found) if kept else None for kept in section.arrays["kept"].entries()]


class SettledId(NamedTuple):
    """An entry of `retained`."""

    id: str
    outcome: str
    reward: int | None
    settled_at_ms: int
    kept: Waiting | None


def settled_ids(section: Section) -> list[SettledId]:
    """The entries of a section of `retained`."""
    columns = {name: section.arrays[name].entries() for name in ("outcome", "reward", "settled_at_ms")}
    outcomes = [("matched", "expired")[outcome] for outcome in columns["outcome"]]
    rewards = [None if reward < 0 else reward for reward in columns["reward"]]
    kept = kept_decisions(section)
    return list(map(SettledId, texts(section, "id"), outcomes, rewards, columns["settled_at_ms"], kept))


def state_digest(parts: Mapping[str, Part]) -> str:
    """The digest of a learner's state."""
    digest = sha256()
    for name in sorted(parts):
        part = parts[name]
        if isinstance(part, str):
            kind, shape, content = "text", "()", part.encode()
        elif isinstance(part, Array):
            kind, content = part.type, part.content
            shape = f"({part.shape[0]},)" if len(part.shape) == 1 else "(" + ", ".join(map(str, part.shape)) + ")"
        else:
            kind, shape = ("<f8" if isinstance(part, float) else "<i8"), "()"
            content = struct.pack("<" + CODES[kind], part)
        digest.update(f"{name} {kind} {shape} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def model_file(path: Path) -> tuple[dict[str, Any], dict[str, Part]]:
    """`meta` and the state in a model file."""
    with zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    meta = json.loads(_text(members.pop("meta")))
    state: dict[str, Part] = {}
    for member, data in members.items():
        name = member.removeprefix("state.")
        scalar = meta["scalars"].get(name)
        state[name] = _text(data) if scalar == "str" else _array(data)
        if scalar in ("float", "int"):
            state[name] = _array(data).entries()[0]
    return meta, state


def _head(data: bytes) -> tuple[dict[str, Any], bytes]:
    assert data[:8] == b"\x93NUMPY\x01\x00"
    (length,) = struct.unpack_from("<H", data, 6 + 2)
    return ast.literal_eval(data[10 : 10 + length].decode()), data[10 + length :]


def _text(data: bytes) -> str:
    head, content = _head(data)
    assert head["descr"].startswith("<U")
    return content.decode("utf-32-le")


def _array(data: bytes) -> Array:
    head, content = _head(data)
    array = Array(head["descr"], head["shape"], content)
    return _by_rows(array) if head["fortran_order"] and len(array.shape) > 1 else array


def _by_rows(array: Array) -> Array:
    """An array whose first index runs fastest as one whose last does."""
    size = int(array.type[2:])
    entries = [array.content[start : start + size] for start in range(0, len(array.content), size)]
    return array._replace(content=b"".join(entries[place] for place in _places(array.shape)))


def _places(shape: Sequence[int]) -> list[int]:
    """Where the entries of an array stand whose first index runs fastest, in the order in which the last does."""
    if not shape:
        return [0]
    return [index + shape[0] * place for index in range(shape[0]) for place in _places(shape[1:])]


def partition_of(key: bytes, partitions: int) -> int:
    """Murmur2 with Kafka's seed, without the sign bit, modulo the number of partitions."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    for start in range(0, len(key) - 3, 4):
        word = int.from_bytes(key[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = value * multiplier & mask ^ word
    rest = key[len(key) & ~3 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return ((value ^ value >> 15) & 0x7FFFFFFF) % partitions
