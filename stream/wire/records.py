"""A record in a topic: bytes with position and time."""

from typing import NamedTuple

Headers = tuple[tuple[str, bytes], ...]
"""Header names and contents. A byte of a name that is not UTF-8 becomes a lone surrogate (`surrogateescape`). Null
contents are read as empty."""


make = tuple.__new__
"""`make(Record, (topic, ...))` equals `Record(topic, ...)` with every field given, in 0.08 µs instead of 0.21. Each
event creates about twenty NamedTuples, and the constructor would take an eighth of its processing time."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """A record read from a topic."""

    topic: str
    partition: int
    offset: int
    append_ms: int  # the broker's time at which the record was appended
    key: bytes | None
    value: bytes | None
    headers: Headers


def place_of(record: Record) -> str:
    """A record's topic, partition and offset, for messages."""
    return f"{record.topic}/{record.partition} offset {record.offset}"


class Foreign(NamedTuple):
    """The number of skipped records that other programs wrote to an Onebit topic."""

    records: int = 0
    first: str = ""  # position of the first one

    def and_also(self, record: Record) -> "Foreign":
        """Count one more record."""
        return Foreign(self.records + 1, self.first or place_of(record))

    def describe(self, where: str) -> str:
        """A message about these records."""
        return (
            f"skipped {self.records:,} records in {where} that are not Onebit's; the first is {self.first}. "
            "Check which other program writes there"
        )
