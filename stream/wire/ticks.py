"""Ticks: records that the learner appends to the feedback topic to advance stream time and to date decisions.

A tick has no key and no value. The header `onebit-tick` contains the number of the step that wrote it. Readers of
the topic recognise ticks by the header and skip them, and the ledger does not count them.
"""

from stream.wire.codec import VERSION_HEADER, header_number
from stream.wire.records import Headers, Record

TICK_HEADER = "onebit-tick"


def tick_headers(step: int) -> Headers:
    """The headers of a step's tick."""
    return (VERSION_HEADER, (TICK_HEADER, b"%d" % step))


def is_tick(record: Record) -> bool:
    """Whether a record of the feedback topic is a tick."""
    return record.value is None and record.key is None and any(name == TICK_HEADER for name, _ in record.headers)


def tick_step(record: Record) -> int | None:
    """The number of the step that wrote a tick; None if the record is not a tick or its header is not a number."""
    return header_number(dict(record.headers)[TICK_HEADER]) if is_tick(record) else None
