"""A decision log as a data set, either complete or restricted to a time range or a number of rows."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from producers.datasets.base import Block, Dataset, DatasetError, Known, Row, UnknownEventError
from producers.datasets.log import LoggedOutcome, LogRows
from stream.wire.records import Logged


@dataclass(frozen=True, slots=True)
class LogDataset(Dataset):
    """The decisions in a log as a data set. Rows have their own ids and outcomes, and may have labels."""

    log: LogRows  # the same object as `source`, with its exact type

    def event_id(self, row: int, epoch: int = 0) -> str:
        """Return the id of the row in the log. From the second epoch on, the id has the epoch as a suffix."""
        event_id = self.log.event_id(row)
        return f"{event_id}~{epoch}" if epoch else event_id

    def parse_event_id(self, event_id: str) -> tuple[int, int]:
        """Return the epoch and the row of an event. Raise UnknownEventError if it does not belong to this log."""
        row = self.log.row_of(event_id)
        if row is not None:
            return 0, row
        own, _, epoch = event_id.rpartition("~")
        row = self.log.row_of(own) if _EPOCH.fullmatch(epoch) else None
        if row is None:
            message = f"event {event_id[:100]!r} does not belong to {self.name}; use the log of the replay"
            raise UnknownEventError(message)
        return int(epoch), row

    def known_of(self, event_id: str) -> Known:
        """Return the known outcome of an event."""
        outcome = self.log.outcome(self.parse_event_id(event_id)[1])
        return Known(outcome.label, outcome.action, outcome.reward, outcome.delay_ms)

    def eligible(self, row: int) -> Sequence[str | int] | None:
        """Return the names of the eligible classes, or their indices if the classes have no names."""
        classes = self.log.outcome(row).eligible
        if classes is None:
            return None
        listed: list[int] = classes.tolist()
        return listed if class_names_of(self) is None else [self.class_names[k] for k in listed]

    def logged(self, row: int) -> Logged | None:
        """Return the logged decision of a row."""
        outcome = self.log.outcome(row)
        return None if outcome.action is None else Logged(outcome.action, outcome.propensity)


def class_names_of(dataset: Dataset) -> tuple[str, ...] | None:
    """Return the class names of a log, or None if the data set is not a log or its classes have no names."""
    names = dataset.class_names
    return names if isinstance(dataset, LogDataset) and not _are_numbers(names) else None


@lru_cache(maxsize=8)  # called for each context of a replay
def _are_numbers(names: tuple[str, ...]) -> bool:
    return names == tuple(map(str, range(len(names))))


_EPOCH = re.compile("[1-9][0-9]{0,17}")


def log_dataset(
    source: LogRows,
    rows: int,
    n_features: int,
    class_names: tuple[str, ...],
    name: str,
    terms: str = "unknown",
    *,
    uneven: str = "",
) -> LogDataset:
    """Return a stored log as a data set."""
    return LogDataset(name, name, rows, n_features, len(class_names), class_names, terms, source, source, uneven=uneven)


@dataclass(frozen=True, slots=True)
class _Part:
    """The `count` rows of a log that start at `first`."""

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

    def row_of(self, event_id: str) -> int | None:
        row = self.source.row_of(event_id)
        return None if row is None or not 0 <= row - self.first < self.count else row - self.first


def part_of(dataset: Dataset, from_ms: int | None, to_ms: int | None, limit: int | None) -> Dataset:
    """Return the rows of a log with a decision time in a range, at most `limit` rows.

    The log must be in time order.

    Raises:
        DatasetError: the data set is not a log, has no times, or has no rows in the range.
    """
    if from_ms is None and to_ms is None and limit is None:
        return dataset
    if not isinstance(dataset, LogDataset):
        raise DatasetError(f"{dataset.name} is not a log of decisions; a time range requires a log")
    first, stop = 0, dataset.rows
    if from_ms is not None or to_ms is not None:
        begun_ms = decided_at_ms(dataset, 0)
        first = 0 if from_ms is None else _row_at(dataset, from_ms)
        stop = dataset.rows if to_ms is None else _row_at(dataset, to_ms)
        if first >= stop:
            last_ms = decided_at_ms(dataset, dataset.rows - 1)
            raise DatasetError(f"{dataset.name}: no decisions in the range; the log covers {begun_ms} to {last_ms} ms")
    count = stop - first if limit is None else min(limit, stop - first)
    part = _Part(dataset.log, first, count)
    return replace(dataset, rows=count, source=part, log=part)


def decided_at_ms(dataset: Dataset, row: int) -> int:
    """Return the decision time of a row.

    Raises:
        DatasetError: the log has no time for this row.
    """
    found = time_of(dataset, row)
    if found is None:
        raise DatasetError(
            f"{dataset.name}, row {row}: no decision time; a replay at a given speed requires decision times"
        )
    return found


def time_of(dataset: Dataset, row: int) -> int | None:
    """Return the decision time of a row. Return None if the time is missing or the data set is not a log."""
    return dataset.log.outcome(row).decided_at_ms if isinstance(dataset, LogDataset) else None


def has_times(dataset: Dataset) -> bool:
    """Return whether the data set is a log with a decision time in its first row."""
    return time_of(dataset, 0) is not None


def _row_at(dataset: Dataset, at_ms: int) -> int:
    """Return the first row decided at this time or later."""
    return bisect_left(range(dataset.rows), at_ms, key=lambda row: decided_at_ms(dataset, row))


SAMPLED = 1_000
"""Number of rows that are read to determine which columns have values."""


def has_labels(dataset: Dataset) -> bool:
    """Return whether the true classes are known. For a log, only the first rows are checked."""
    if not isinstance(dataset, LogDataset):
        return True
    return any(dataset.log.outcome(row).label is not None for row in range(min(SAMPLED, dataset.rows)))


def has_eligible(dataset: Dataset) -> bool:
    """Return whether a log has eligible classes. Only the first rows are checked."""
    return any(dataset.eligible(row) is not None for row in range(min(SAMPLED, dataset.rows)))


def logged_delays_ms(dataset: Dataset) -> list[int]:
    """Return the logged feedback delays of the first rows."""
    if not isinstance(dataset, LogDataset):
        return []
    outcomes = (dataset.log.outcome(row) for row in range(min(SAMPLED, dataset.rows)))
    return [outcome.delay_ms for outcome in outcomes if outcome.delay_ms is not None]
