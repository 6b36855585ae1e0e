"""Records as lines of text or JSON.

Record content is printed as JSON or escaped, so that it cannot send control characters to a terminal.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from stream.parsing import repr_of
from stream.wire.codec import MalformedError, step_of
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.records import Record
from stream.wire.topics import Topics

TEXT_MAX = 120
"""Maximum length of a JSON member, or of a non-JSON value."""


def record_line(record: Record, topics: Topics) -> str:
    """Format a record's time, position, event id and content.

    >>> topics = Topics.with_prefix("my.")
    >>> record_line(Record("my.feedback", 0, 7, 1_700_000_000_250, b"a", b'{"id":"a","reward":1}', ()), topics)
    '2023-11-14T22:13:20.250Z feedback/0@7 a reward=1'
    """
    time = datetime.fromtimestamp(record.append_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    place = f"{short_name(record.topic, topics)}/{record.partition}@{record.offset}"
    words = [time.replace("+00:00", "Z"), place, *_content(record, topics)]
    if step := step_of(record):
        words.append(f"step={step}")
    return " ".join(words)


def short_name(topic: str, topics: Topics) -> str:
    """Return a topic's name without the pipeline's prefix."""
    return topic.removeprefix(topics.contexts.removesuffix("contexts"))


def _content(record: Record, topics: Topics) -> list[str]:
    if record.topic == topics.snapshots:
        return [_text(record.key), f"{len(record.value or b''):,} bytes" if record.value is not None else "deleted"]
    if record.topic == topics.dead_letter:
        return [_id_or_key(record), *_letter(record, topics), _text(record.value)]
    fields = _fields(record)
    if fields is None:
        return [_text(record.key), _text(record.value)]
    shown = [f"{quoted(name)}={quoted(_json(value))}" for name, value in fields.items() if name != "id"]
    return [*([_id_or_key(record)] if record.topic != topics.journal else []), *shown]


def _letter(record: Record, topics: Topics) -> list[str]:
    """Format a dead letter's reason and the position of its record."""
    try:
        topic, partition, offset, kind, *_ = decode_dead_letter(record)
    except MalformedError:
        return ["not written by Onebit:"]
    reason = dict(record.headers).get("onebit-reason", b"")
    return [f"{quoted(kind)} {quoted(short_name(topic, topics))}/{partition}@{offset}: {_text(reason)}:"]


def event_id_of(record: Record) -> str | None:
    """Return a record's event id from its value or key, or None if neither has one."""
    fields = _fields(record)
    if fields is not None and isinstance(fields.get("id"), str):
        return str(fields["id"])
    return None if record.key is None else record.key.decode(errors="backslashreplace")


def record_json(record: Record) -> bytes:
    """Format a record as one line of JSON. Bytes are written as text if valid UTF-8, otherwise as `{"base64": ...}`."""
    fields = record._asdict() | {
        "key": _encoded(record.key),
        "value": _encoded(record.value),
        "headers": [
            [name.encode(errors="surrogateescape").decode(errors="backslashreplace"), _encoded(content)]
            for name, content in record.headers
        ],
    }
    return orjson.dumps(fields)


def _encoded(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _fields(record: Record) -> Mapping[str, Any] | None:
    try:
        fields = orjson.loads(record.value or b"")
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _id_or_key(record: Record) -> str:
    event_id = event_id_of(record)
    return "-" if event_id is None else _text(event_id.encode())


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # orjson can parse deeper nesting than it can write
        return repr_of(value, TEXT_MAX)


def _text(data: bytes | None) -> str:
    return "-" if data is None else quoted(data[: 8 * TEXT_MAX].decode(errors="backslashreplace"))


def quoted(text: str) -> str:
    """Escape control characters in untrusted text, and truncate it."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown if len(shown) <= TEXT_MAX else f"{shown[:TEXT_MAX]}…"
