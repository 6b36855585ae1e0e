"""Headers of records, and their names, which confluent-kafka cannot always tell.

Kafka does not look at the name of a header, and other clients send any bytes. For a name that is not UTF-8
`Message.headers` ends in a SystemError, and can send none, nor one with a zero byte. Such a header is left out and
named in the log, and all else of the record is there.
"""

import gc
import logging
from operator import methodcaller
from typing import Any

from stream.wire.records import Headers

_logger = logging.getLogger(__name__)

_headers_of = methodcaller("headers")
"""`Message.headers`, called so that its error is seen: where Python calls a method of C by a short cut, as it does once
a line has run some times, it trusts that there is either a result or an error. Here there are both, and it crashes."""


def headers_read(message: Any) -> Headers:
    """The headers of a record that was read, as the port has them: null is an empty value."""
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
    """Headers as confluent-kafka takes them."""
    taken = [(name, value) for name, value in headers if _is_sendable(name)]
    for name, _ in headers if len(taken) < len(headers) else ():
        if not _is_sendable(name):
            _logger.warning("a header named %r cannot be sent by this client: left out of a record for %s", name, topic)
    return taken


def _is_sendable(name: str) -> bool:
    if name.isascii():
        return "\0" not in name
    return not any("\ud800" <= letter <= "\udfff" for letter in name) and "\0" not in name


def _lenient(message: Any, error: SystemError) -> Headers:
    """The headers whose names are UTF-8.

    Asked a second time the client hands out the list that it could not fill: of a header whose name is none the tuple
    has an empty first place, which must not be looked at. The garbage collector's view of a tuple leaves it out.
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
        "%s/%d, offset %d: %d of its headers, one of them %r, left out: a name that is not UTF-8",
        message.topic(), message.partition(), message.offset(), left_out, name,
    )  # fmt: skip
    return tuple(kept)
