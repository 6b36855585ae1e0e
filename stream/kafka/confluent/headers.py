"""Record headers whose names confluent-kafka cannot read or send.

Kafka does not check header names, so other clients can send any bytes. For a name that is not UTF-8, `Message.headers`
raises SystemError. Names that are not UTF-8 or that contain a zero byte cannot be sent. Such headers are omitted and
logged, and the rest of the record is kept.
"""

import gc
import logging
from operator import methodcaller
from typing import Any

from stream.text import is_utf8
from stream.wire.records import Headers

_logger = logging.getLogger(__name__)

_headers_of = methodcaller("headers")
"""Calls `Message.headers` so that Python checks the result. This C method can return both a result and an error. Python
specializes a direct call that has run several times. The specialized call does not check the result and can crash."""


def headers_read(message: Any) -> Headers:
    """Return the headers of a consumed record. Null values become empty values."""
    try:
        found = _headers_of(message)
    except SystemError as error:
        return _lenient(message, error)
    if not found:
        return ()
    headers = tuple(found)
    for _, value in headers:
        if value is None:
            return tuple([(name, value or b"") for name, value in headers])
    return headers


def headers_to_send(topic: str, headers: Headers) -> list[tuple[str, bytes]]:
    """Return the headers in the format that confluent-kafka expects."""
    taken = []
    for name, value in headers:
        if "\0" not in name and is_utf8(name):
            taken.append((name, value))
        else:
            _logger.warning("omitted header %r from a record for %s: this client cannot send such a name", name, topic)
    return taken


def _lenient(message: Any, error: SystemError) -> Headers:
    """Return the headers whose names are UTF-8.

    After an error, a second call to `headers` returns the client's incomplete list. In the tuple for an unreadable
    header, the first item is a null pointer, and accessing it crashes Python. The garbage collector's list of the
    tuple's references omits that item.
    """
    kept: list[tuple[str, bytes]] = []
    left_out = 0
    for header in _headers_of(message):
        parts = gc.get_referents(header)
        names = [part for part in parts if isinstance(part, str)]
        if names:
            kept.append((names[0], next((part for part in parts if isinstance(part, bytes)), b"")))
        else:
            left_out += 1
    cause = error.__cause__
    name = cause.object if isinstance(cause, UnicodeDecodeError) else b""
    _logger.warning(
        "%s/%d, offset %d: omitted %d of the record's headers, including %r, because their names are not UTF-8",
        message.topic(), message.partition(), message.offset(), left_out, name,
    )  # fmt: skip
    return tuple(kept)
