"""Ticks: records that the learner appends to the feedback topic so that time moves and decisions have a date.

A tick has no key and no value, and the header `onebit-tick` with the number of the step that wrote it. It is no
feedback: every reader of the topic skips it by the header, and no equation of the ledger counts it.
"""

from stream.wire.codec import VERSION_HEADER, header_number
from stream.wire.records import Headers, Record

TICK_HEADER = "onebit-tick"


def tick_headers(step: int) -> Headers:
    """The headers of the tick that a step writes."""
    return (VERSION_HEADER, (TICK_HEADER, b"%d" % step))


def is_tick(record: Record) -> bool:
    """Whether a record of the feedback topic is a tick."""
    return record.value is None and record.key is None and any(name == TICK_HEADER for name, _ in record.headers)


def tick_step(record: Record) -> int | None:
    """The number of the step that wrote a tick; None if the record is no tick or its header is no number."""
    return header_number(dict(record.headers)[TICK_HEADER]) if is_tick(record) else None
