"""Dead letters, which are unusable records stored unchanged, with their positions and rejection reasons in headers."""

import re
from typing import NamedTuple

from stream.wire.codec import VERSION_HEADER, MalformedError
from stream.wire.records import Headers, Record

DEAD_LETTER_MALFORMED = "malformed"
DEAD_LETTER_ORPHAN = "orphan"
DEAD_LETTER_MISMATCHED = "mismatched"
DEAD_LETTER_EXCESS = "excess"

DEAD_LETTER_BYTES_MAX = 500_000
"""Size limit that applies separately to the key and to the value. A topic can contain larger records than a producer
can send, because Kafka's limit applies to the compressed size. Dead letters for such records are truncated, and a
header records the original size.
"""

_CONTENT_BYTES_MAX = 1_020_000
"""Total size limit for the key, the value and the record's own headers: Kafka's default limit of 1 MiB for a record,
minus space for Onebit's headers. At least 20,000 bytes of the record's headers fit; usually, all of them do."""

_REASON_CHARACTERS_MAX = 2_000  # a reason can contain names from the record, which can be long
_HEADER_OVERHEAD_BYTES = 10  # maximum total size of a header's two length fields

_RESERVED_NAME = re.compile(r"(original-)*onebit-")
"""Matches reserved header names. In a dead letter, the record's headers with such names get the prefix `original-`."""


class DeadLetter(NamedTuple):
    """An unusable record, as read from the dead-letter topic."""

    topic: str
    partition: int
    offset: int
    kind: str
    reason: str
    key: bytes | None
    value: bytes | None
    headers: Headers  # the record's own headers, with their original names
    is_whole: bool  # True if nothing was truncated or omitted


def dead_letter_headers(topic: str, partition: int, offset: int, kind: str, reason: str) -> Headers:
    """Return the headers for a dead letter, which contain the record's position and the reason for its rejection."""
    return (
        VERSION_HEADER,
        ("onebit-topic", topic.encode()),
        ("onebit-partition", b"%d" % partition),
        ("onebit-offset", b"%d" % offset),
        ("onebit-kind", kind.encode()),
        ("onebit-reason", reason[:_REASON_CHARACTERS_MAX].encode()),
    )


def encode_dead_letter(record: Record, kind: str, reason: str) -> tuple[bytes | None, bytes | None, Headers]:
    """Encode a record as a dead letter, in which Onebit's headers precede the record's own headers.

    If one of the record's headers has a reserved name, the name gets the prefix `original-`. Every header with a
    reserved name is therefore Onebit's.
    """
    headers = dead_letter_headers(record.topic, record.partition, record.offset, kind, reason)
    key, value = record.key, record.value
    if key is not None and len(key) > DEAD_LETTER_BYTES_MAX:
        key, headers = key[:DEAD_LETTER_BYTES_MAX], (*headers, ("onebit-key-bytes", b"%d" % len(key)))
    if value is not None and len(value) > DEAD_LETTER_BYTES_MAX:
        value, headers = value[:DEAD_LETTER_BYTES_MAX], (*headers, ("onebit-value-bytes", b"%d" % len(value)))
    own, room = [], _CONTENT_BYTES_MAX - len(key or b"") - len(value or b"")
    for name, content in record.headers:
        kept_name = f"original-{name}" if _RESERVED_NAME.match(name) else name
        size = len(kept_name.encode(errors="surrogateescape")) + len(content) + _HEADER_OVERHEAD_BYTES
        if size <= room:  # headers are kept whole or omitted
            own.append((kept_name, content))
            room -= size
    if len(own) < len(record.headers):
        headers = (*headers, ("onebit-headers", b"%d" % len(record.headers)))
    return key, value, (*headers, *own)


def decode_dead_letter(record: Record) -> DeadLetter:
    """Decode a dead letter.

    Raises:
        MalformedError: the record does not have the headers of a dead letter.
    """
    ours = {name: content for name, content in record.headers if name.startswith("onebit-")}
    own = tuple(
        (name.removeprefix("original-") if _RESERVED_NAME.match(name) else name, content)
        for name, content in record.headers
        if not name.startswith("onebit-")
    )
    try:
        return DeadLetter(
            ours["onebit-topic"].decode(),
            int(ours["onebit-partition"]),
            int(ours["onebit-offset"]),
            ours["onebit-kind"].decode(),
            ours.get("onebit-reason", b"").decode(errors="backslashreplace"),
            record.key,
            record.value,
            own,
            is_whole=not ours.keys() & {"onebit-key-bytes", "onebit-value-bytes", "onebit-headers"},
        )
    except (KeyError, ValueError) as error:
        raise MalformedError(f"dead letter: a header is missing or invalid: {error}") from error
