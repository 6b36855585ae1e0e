"""Dead letters as they are read: why a record could not be used, and the record as it was."""

from typing import NamedTuple

from stream.wire.codec import RESERVED_NAME, decode_dead_letter
from stream.wire.records import Headers, Record


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
