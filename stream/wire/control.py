"""Encodes and decodes requests in the control topic, which change a running pipeline's settings.

A request's key is its id, and its value is JSON:

    {"id": "7f3a", "by": "ann@ops1", "changes": {"window_ms": {"from": 300000, "to": 120000}}}

Settings have the names and values of `stream.task.stored_settings`. A task applies the request only if each setting has
the value in `from`, so that of two simultaneous requests for one setting, all tasks apply the same one.

`onebit move` writes a record to both pipelines, which changes no settings. In the old pipeline, it ends the learners:

    {"id": "9c01", "by": "ann@ops1", "changes": {}, "moved_to": {"bootstrap": "localhost:9092", "prefix": "shop2.",
     "partitions": 12, "balance": {"pending": 14, "deferred": 0, "orphans_waiting": 3}}}

A request can add challengers that start with a trained model. The model file precedes the request in the topic, in
parts of at most `PART_BYTES`. The key of a part is the file's SHA-256 digest, and its header `onebit-model` is
`INDEX/COUNT`.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Any, NamedTuple

import orjson
from msgspec import DecodeError, Meta, Struct, ValidationError, to_builtins
from msgspec.json import Decoder

from stream.parsing import shown
from stream.wire.codec import HEADERS, VERSION, VERSION_HEADER, MalformedError
from stream.wire.records import ID_BYTES_MAX, ID_LIMITS, Headers, Record


class Replaced(Struct, frozen=True, rename={"old": "from", "new": "to"}):
    """Two values of a setting: the earlier one and the one that replaces it, or the stored and the requested one."""

    old: Any
    new: Any


class Balance(Struct, frozen=True):
    """The number of unsettled entries in all tasks of a pipeline, by field of the ledger."""

    pending: int
    deferred: int
    orphans_waiting: int


class Moved(Struct, frozen=True):
    """The other pipeline of a move."""

    bootstrap: str
    prefix: str
    partitions: int
    balance: Annotated[Balance, Meta(description="What the move carries over.")]

    def __str__(self) -> str:
        return f"{self.prefix}* on {self.bootstrap}"


RequestId = Annotated[str, Meta(description="The request's id.", extra_json_schema=ID_LIMITS)]


class Request(Struct, frozen=True):
    """A request to change settings, or the record of a move."""

    id: RequestId
    by: Annotated[str, Meta(description="The user who sent the request.")]
    changes: Annotated[
        dict[str, Replaced], Meta(description="Changes by the setting's name; empty in the record of a move.")
    ]
    moved_to: Annotated[Moved | None, Meta(description="In the old pipeline: the new one.")] = None
    moved_from: Annotated[Moved | None, Meta(description="In the new pipeline: the old one.")] = None

    @property
    def moves(self) -> bool:
        """Whether this is the record of a move."""
        return self.moved_to is not None or self.moved_from is not None


class Requested(NamedTuple):
    """A record in the control topic."""

    offset: int
    append_ms: int
    request: Request | None  # None if the record cannot be read
    refusal: str = ""  # why tasks ignore the record, whatever their settings are


REQUEST_BYTES_MAX = 1_000_000
"""Limit on a request's size, so that it fits in a record."""

STARTED_FROM = "started_from"
"""The setting with the digests of the model files with which challengers started, by the challenger's name."""

MODEL_HEADER = "onebit-model"
PART_BYTES = 500_000
"""Size of a part of a model file. It is much smaller than 1 MB, Kafka's default limit for a record."""

_decoder = Decoder(Request)


class Part(NamedTuple):
    """The position of a record in a model file."""

    digest: str
    number: int  # from 0
    parts: int  # number of parts of the file


def model_digest(content: bytes) -> str:
    """Return the digest by which requests name a model file."""
    return sha256(content).hexdigest()


def encode_model(content: bytes) -> Iterator[tuple[bytes, bytes, Headers]]:
    """Yield the keys, values and headers of the records that contain a model file."""
    key, count = model_digest(content).encode(), -(-len(content) // PART_BYTES)
    for index in range(count):
        headers = (*HEADERS, (MODEL_HEADER, f"{index}/{count}".encode()))
        yield key, content[index * PART_BYTES : (index + 1) * PART_BYTES], headers


def part_of(record: Record) -> Part | None:
    """Return a record's position in a model file, or None if the record is a request.

    Raises:
        MalformedError: the position or the digest cannot be read.
    """
    header = dict(record.headers).get(MODEL_HEADER)
    if header is None:
        return None
    index, _, count = header.partition(b"/")
    if not (index.isdigit() and count.isdigit() and record.key):
        raise MalformedError(f"{MODEL_HEADER}: expected INDEX/COUNT and a digest as key; got {shown(header)}")
    return Part(record.key.decode(errors="replace"), int(index), int(count))


def models_of(request: Request) -> list[object]:
    """Return the digests of the model files with which a request adds challengers. The values can have any type."""
    change = request.changes.get(STARTED_FROM)
    old, new = (None, None) if change is None else (change.old, change.new)
    earlier = old if isinstance(old, dict) else {}
    return [one for name, one in new.items() if earlier.get(name) != one] if isinstance(new, dict) else []


def encode_request(request: Request) -> bytes:
    """Encode a request as a record's value."""
    changes = {name: {"from": change.old, "to": change.new} for name, change in request.changes.items()}
    moves = {"moved_to": request.moved_to, "moved_from": request.moved_from}
    others = {name: to_builtins(one) for name, one in moves.items() if one is not None}
    return orjson.dumps({"id": request.id, "by": request.by, "changes": changes, **others})


def decode_request(record: Record) -> Request:
    """Decode a record of the control topic.

    Raises:
        MalformedError: the record is not a request of this version.
    """
    version = dict(record.headers).get(VERSION_HEADER[0])
    if version != VERSION_HEADER[1]:
        raise MalformedError(f"version: expected {VERSION}; got {shown(version)}")
    try:
        request = _decoder.decode(record.value or b"")
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"value: expected a request; {error}") from error
    if not 0 < len(request.id.encode()) <= ID_BYTES_MAX:
        raise MalformedError(f"id: expected 1 to {ID_BYTES_MAX} bytes; got {shown(request.id)}")
    return request
