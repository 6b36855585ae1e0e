"""Dead letters: records that could not be used, as they were, with the place and the reason in headers."""

import re
from typing import NamedTuple

from stream.wire.codec import VERSION_HEADER, MalformedError
from stream.wire.records import Headers, Record

DEAD_LETTER_MALFORMED = "malformed"
DEAD_LETTER_ORPHAN = "orphan"
DEAD_LETTER_MISMATCHED = "mismatched"


def dead_letter_headers(topic: str, partition: int, offset: int, kind: str, reason: str) -> Headers:
    """The headers of a dead letter: where the record stood, and why it is here."""
    return (
        VERSION_HEADER,
        ("onebit-topic", topic.encode()),
        ("onebit-partition", b"%d" % partition),
        ("onebit-offset", b"%d" % offset),
        ("onebit-kind", kind.encode()),
        ("onebit-reason", reason[:_REASON_CHARACTERS_MAX].encode()),
    )


DEAD_LETTER_BYTES_MAX = 500_000
"""Of the key, and of the value. A topic may hold larger records than a producer may send (compressed ones count as they
are stored): their dead letters are cut, and say so in a header, for else they could never be written."""

_DEAD_LETTER_CONTENT_MAX = 1_020_000
"""Bytes of key, value and the record's own headers together. Kafka's default limit is 1 MiB for a whole record: what is
left is for our headers. So there is room for 20,000 bytes of its own at least, and mostly for all of them."""

_REASON_CHARACTERS_MAX = 2_000  # some have names in them that the record's sender chose

_HEADER_OVERHEAD_BYTES = 10  # of two lengths, at most

RESERVED_NAME = re.compile(r"(original-)*onebit-")
"""How names of headers begin that get `original-` before them in a dead letter."""


def encode_dead_letter(record: Record, kind: str, reason: str) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers of a record's dead letter: ours first, then the record's own.

    Names of ours among its own get `original-` before them, so that a reader finds only ours under our names.
    """
    headers = dead_letter_headers(record.topic, record.partition, record.offset, kind, reason)
    key, value = record.key, record.value
    if key is not None and len(key) > DEAD_LETTER_BYTES_MAX:
        key, headers = key[:DEAD_LETTER_BYTES_MAX], (*headers, ("onebit-key-bytes", b"%d" % len(key)))
    if value is not None and len(value) > DEAD_LETTER_BYTES_MAX:
        value, headers = value[:DEAD_LETTER_BYTES_MAX], (*headers, ("onebit-value-bytes", b"%d" % len(value)))
    own = _own_headers(record.headers, _DEAD_LETTER_CONTENT_MAX - len(key or b"") - len(value or b""))
    if len(own) < len(record.headers):
        headers = (*headers, ("onebit-headers", b"%d" % len(record.headers)))
    return key, value, (*headers, *own)


def _own_headers(headers: Headers, bytes_max: int) -> Headers:
    """The headers of a record under the names that they have in its dead letter; those that fit, each of them whole."""
    kept, left = [], bytes_max
    for name, content in headers:
        kept_name = f"original-{name}" if RESERVED_NAME.match(name) else name
        size = len(kept_name.encode(errors="surrogateescape")) + len(content) + _HEADER_OVERHEAD_BYTES
        if size <= left:
            kept.append((kept_name, content))
            left -= size
    return tuple(kept)


def decode_dead_letter(record: Record) -> tuple[str, int, int, str]:
    """Topic, partition and offset of the record that a dead letter holds, and of what kind it is.

    Raises:
        MalformedError: the headers are not those of a dead letter.
    """
    headers = dict(record.headers)
    try:
        return (
            headers["onebit-topic"].decode(),
            int(headers["onebit-partition"]),
            int(headers["onebit-offset"]),
            headers["onebit-kind"].decode(),
        )
    except (KeyError, ValueError) as error:
        raise MalformedError(f"a dead letter without a usable header: {error}") from error


class DeadLetter(NamedTuple):
    """A record that could not be used."""

    topic: str
    partition: int
    offset: int
    kind: str
    reason: str
    key: bytes | None
    value: bytes | None
    headers: Headers  # the record's own, under the names that they had
    is_whole: bool  # nothing of it was cut off or left out


def read_dead_letter(record: Record) -> DeadLetter:
    """Read a record of the dead letters.

    Raises:
        MalformedError: the headers are not those of a dead letter.
    """
    topic, partition, offset, kind = decode_dead_letter(record)
    ours = [(name, content) for name, content in record.headers if name.startswith("onebit-")]
    own = [
        (name.removeprefix("original-") if RESERVED_NAME.match(name) else name, content)
        for name, content in record.headers
        if not name.startswith("onebit-")
    ]
    names = dict(ours)
    return DeadLetter(
        topic,
        partition,
        offset,
        kind,
        names.get("onebit-reason", b"").decode(errors="backslashreplace"),
        record.key,
        record.value,
        tuple(own),
        is_whole=not names.keys() & {"onebit-key-bytes", "onebit-value-bytes", "onebit-headers"},
    )
