"""Logs of contexts with known outcomes, in decision order, and data sets that consist of a log or part of one.

A log is read as a stream of column batches, in constant memory. Missing values are `MISSING` in integer columns and NaN
in propensities. A data set needs random access, so its log is stored on disk first.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

from producers.datasets.base import (
    SAMPLED,
    Block,
    Dataset,
    DatasetError,
    Known,
    Row,
    Rows,
    UnknownEventError,
)
from stream.wire.actions import ActionBlocks
from stream.wire.records import ID_BYTES_MAX, IndexArray, Logged

MISSING = -1

Column = Literal["labels", "actions", "eligible", "delays_ms"]
"""The columns of a log that can be empty in all rows."""


class LoggedOutcome(NamedTuple):
    """A row's logged values, without its context. Missing values are None."""

    decided_at_ms: int | None
    label: int | None
    action: int | None
    propensity: float | None
    reward: float | None
    delay_ms: int | None
    eligible: IndexArray | None = None  # the eligible classes, in increasing order; None means all classes
    baseline: int | None = None  # the class that the service's own rule plays


class LogRows(Rows, Protocol):
    """A log's rows, stored as columns on disk, with random access in constant memory.

    A row without a label has the label MISSING.
    """

    def outcome(self, row: int) -> LoggedOutcome:
        """Return a row's logged values."""
        ...

    def event_id(self, row: int) -> str:
        """Return a row's id."""
        ...

    def offered(self, row: int) -> list[str]:
        """Return the ids of a row's actions, by place; an empty list if the decisions are among classes."""
        ...

    def row_of(self, event_id: str) -> int | None:
        """Return the row with this id, or None."""
        ...

    def tildes(self) -> int:
        """Return the greatest number of consecutive tildes at the end of an id, or before the digits at its end."""
        ...

    def has(self, column: Column, rows: slice) -> bool:
        """Return whether any of these rows has a value in a column."""
        ...


@dataclass(frozen=True, slots=True)
class LogDataset(Dataset):
    """The decisions in a log as a data set. Rows have their own ids and outcomes, and may have labels."""

    log: LogRows  # the same object as `source`, with its exact type
    mark: str  # separates an id from its epoch; longer than the tildes in any id
    first: int = 0  # number of the first row in the log

    def event_id(self, row: int, epoch: int = 0) -> str:
        """Return the row's id in the log. From the second epoch on, the id has the epoch as a suffix.

        If the id would become too long, its row number replaces it, with two marks. No id in the log has as many
        tildes before the digits at its end, so ids of later epochs are neither ids in the log nor equal to each other.

        Raises:
            DatasetError: the log's ids contain too many tildes, so ids for a later epoch would exceed the length limit.
        """
        event_id = self.log.event_id(row)
        if not epoch:
            return event_id
        for later in (f"{event_id}{self.mark}{epoch}", f"{self.first + row}{self.mark * 2}{epoch}"):
            if len(later.encode()) <= ID_BYTES_MAX:
                return later
        raise DatasetError(
            f"{self.name}: expected ids with at most 100 consecutive tildes before the digits at their end; got "
            f"{len(self.mark) - 1}. Rename the ids, or replay one epoch"
        )

    def parse_event_id(self, event_id: str) -> tuple[int, int]:
        """Return an event's epoch and row. Raise UnknownEventError if the event does not belong to this log."""
        row = self.log.row_of(event_id)
        if row is not None:
            return 0, row
        own, mark, epoch = event_id.rpartition(self.mark)
        if mark and _EPOCH.fullmatch(epoch):
            number = own.removesuffix(self.mark)
            row = self.log.row_of(own)
            if row is None and number != own and _ROW.fullmatch(number):
                row = int(number) - self.first
            if row is not None and 0 <= row < self.rows and self.event_id(row, int(epoch)) == event_id:
                return int(epoch), row
        message = f"event {event_id[:100]!r} does not belong to {self.name}; use the replay's log"
        raise UnknownEventError(message)

    def known_of(self, event_id: str) -> Known:
        """Return an event's known outcome."""
        outcome = self.log.outcome(self.parse_event_id(event_id)[1])
        return Known(outcome.label, outcome.action, outcome.reward, outcome.delay_ms)

    def actions(self, row: int) -> Sequence[str] | None:
        """Return the ids of a row's actions by place, or None if the decisions are among classes."""
        return None if self.blocks is None else self.log.offered(row)

    def eligible(self, row: int) -> Sequence[str | int] | None:
        """Return the names of the eligible classes, or their indices if the classes have no names.

        With actions, return the ids of the eligible ones, or None if they are all eligible.
        """
        classes = self.log.outcome(row).eligible
        if classes is None:
            return None
        listed: list[int] = classes.tolist()
        if (ids := self.actions(row)) is not None:
            return None if len(listed) == len(ids) else [ids[place] for place in listed]
        return listed if self.named_classes() is None else [self.class_names[k] for k in listed]

    def baseline(self, row: int) -> str | int | None:
        """Return the class that the service's own rule plays: its name, or its index if the classes have no names.

        With actions, return the id of the action.
        """
        k = self.log.outcome(row).baseline
        if k is not None and (ids := self.actions(row)) is not None:
            return ids[k]
        return k if k is None or self.named_classes() is None else self.class_names[k]

    def logged(self, row: int) -> Logged | None:
        """Return a row's logged decision."""
        outcome = self.log.outcome(row)
        return None if outcome.action is None else Logged(outcome.action, outcome.propensity)

    def time_of(self, row: int) -> int | None:
        """Return a row's decision time, or None if it is missing."""
        return self.log.outcome(row).decided_at_ms

    def named_classes(self) -> tuple[str, ...] | None:
        """Return the class names, or None if the classes have no names."""
        return None if _are_numbers(self.class_names) else self.class_names

    def has_labels(self) -> bool:
        """Return whether any row has a label."""
        return self.log.has("labels", slice(self.rows))

    def has_logged(self) -> bool:
        """Return whether any row has an action."""
        return self.log.has("actions", slice(self.rows))

    def has_eligible(self) -> bool:
        """Return whether any row lists its eligible classes. With actions, every row does."""
        return self.log.has("eligible", slice(self.rows))

    def has_delays(self) -> bool:
        """Return whether any row has a feedback delay."""
        return self.log.has("delays_ms", slice(self.rows))

    def logged_delays_ms(self) -> list[int]:
        """Return the feedback delays for the first rows."""
        return [outcome.delay_ms for outcome in self._first_outcomes() if outcome.delay_ms is not None]

    def part(self, from_ms: int | None, to_ms: int | None, limit: int | None) -> "LogDataset":
        """See `Dataset.part`."""
        first, stop = 0, self.rows
        if from_ms is not None or to_ms is not None:
            begun_ms = self.decided_at_ms(0)
            first = 0 if from_ms is None else self._row_at(from_ms)
            stop = self.rows if to_ms is None else self._row_at(to_ms)
            if first >= stop:
                last_ms = self.decided_at_ms(self.rows - 1)
                raise DatasetError(f"{self.name}: no decisions in the range; the log covers {begun_ms} to {last_ms} ms")
        count = stop - first if limit is None else min(limit, stop - first)
        part = _Part(self.log, first, count)
        return replace(self, rows=count, source=part, log=part, first=self.first + first)

    def _first_outcomes(self) -> Iterator[LoggedOutcome]:
        return (self.log.outcome(row) for row in range(min(SAMPLED, self.rows)))

    def _row_at(self, at_ms: int) -> int:
        """Return the first row decided at this time or later."""
        return bisect_left(range(self.rows), at_ms, key=self.decided_at_ms)


def log_dataset(
    source: LogRows,
    rows: int,
    n_features: int,
    class_names: tuple[str, ...],
    name: str,
    terms: str = "unknown",
    *,
    uneven: str = "",
    blocks: ActionBlocks | None = None,
) -> LogDataset:
    """Return a stored log as a data set."""
    mark = "~" * (source.tildes() + 1)
    n_classes = len(class_names)
    return LogDataset(
        name, name, rows, n_features, n_classes, class_names, terms, source, source, mark, uneven=uneven, blocks=blocks
    )


@lru_cache(maxsize=8)  # called for each context in a replay
def _are_numbers(names: tuple[str, ...]) -> bool:
    return names == tuple(map(str, range(len(names))))


_EPOCH = re.compile("[1-9][0-9]{0,17}")
_ROW = re.compile("0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of a log: `count` rows, starting at `first`."""

    source: LogRows
    first: int
    count: int

    def row(self, row: int) -> Row:
        return self.source.row(self.first + row)

    def label(self, row: int) -> int:
        return self.source.label(self.first + row)

    def block(self, start: int, stop: int) -> Block:
        return self.source.block(self.first + start, self.first + stop)

    def outcome(self, row: int) -> LoggedOutcome:
        return self.source.outcome(self.first + row)

    def event_id(self, row: int) -> str:
        return self.source.event_id(self.first + row)

    def offered(self, row: int) -> list[str]:
        return self.source.offered(self.first + row)

    def row_of(self, event_id: str) -> int | None:
        row = self.source.row_of(event_id)
        return None if row is None or not 0 <= row - self.first < self.count else row - self.first

    def tildes(self) -> int:
        return self.source.tildes()

    def has(self, column: Column, rows: slice) -> bool:
        start, stop, _ = rows.indices(self.count)
        return self.source.has(column, slice(self.first + start, self.first + stop))
