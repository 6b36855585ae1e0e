"""A log of decisions as a data set: as a whole, or a part of it by time or by number."""

import re
from bisect import bisect_left
from dataclasses import dataclass, replace

from producers.datasets.base import Block, Dataset, DatasetError, Known, Row, UnknownEventError
from producers.datasets.log import LoggedOutcome, LogRows
from stream.wire.events import Logged


@dataclass(frozen=True, slots=True)
class LogDataset(Dataset):
    """The decisions of a log: its rows have ids of their own, and outcomes, but not all a label."""

    log: LogRows  # the source

    def event_id(self, row: int, epoch: int = 0) -> str:
        """The id of the row in the log; that of a later epoch has its number behind it."""
        event_id = self.log.event_id(row)
        return f"{event_id}~{epoch}" if epoch else event_id

    def parse_event_id(self, event_id: str) -> tuple[int, int]:
        """Return the epoch and the row of an event, or raise UnknownEventError when it is not one of this log."""
        row = self.log.row_of(event_id)
        if row is not None:
            return 0, row
        own, _, epoch = event_id.rpartition("~")
        row = self.log.row_of(own) if _EPOCH.fullmatch(epoch) else None
        if row is None:
            message = f"event {event_id[:100]!r} is not one of {self.name}; give the log that was replayed"
            raise UnknownEventError(message)
        return int(epoch), row

    def known_of(self, event_id: str) -> Known:
        """What is known of the outcome of an event, from its id alone."""
        outcome = self.log.outcome(self.parse_event_id(event_id)[1])
        return Known(outcome.label, outcome.action, outcome.reward, outcome.delay_ms)

    def logged(self, row: int) -> Logged | None:
        """The decision of a row."""
        outcome = self.log.outcome(row)
        return None if outcome.action is None else Logged(outcome.action, outcome.propensity)


_EPOCH = re.compile("[1-9][0-9]{0,17}")


def log_dataset(
    source: LogRows, rows: int, n_features: int, class_names: tuple[str, ...], name: str, terms: str = "unknown"
) -> LogDataset:
    """The data set of a log whose rows are stored."""
    return LogDataset(name, name, rows, n_features, len(class_names), class_names, terms, source, source)


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a log from `first` on, `count` of them; the others are none of its."""

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
    """The rows of a log that were decided from one time on and before another, and of those the first ones.

    A log is taken to be in the order of its times.

    Raises:
        DatasetError: it is no log, has no times, or no row is left.
    """
    if from_ms is None and to_ms is None and limit is None:
        return dataset
    if not isinstance(dataset, LogDataset):
        raise DatasetError(f"{dataset.name} is no log of decisions, of which a part can be replayed")
    first, stop = 0, dataset.rows
    if from_ms is not None or to_ms is not None:
        begun_ms = decided_at_ms(dataset, 0)
        first = 0 if from_ms is None else _row_at(dataset, from_ms)
        stop = dataset.rows if to_ms is None else _row_at(dataset, to_ms)
        if first >= stop:
            last_ms = decided_at_ms(dataset, dataset.rows - 1)
            raise DatasetError(f"{dataset.name} has its decisions from {begun_ms} to {last_ms} ms: none is left")
    count = stop - first if limit is None else min(limit, stop - first)
    part = _Part(dataset.log, first, count)
    return replace(dataset, rows=count, source=part, log=part)


def decided_at_ms(dataset: Dataset, row: int) -> int:
    """When a log decided a row.

    Raises:
        DatasetError: it does not say.
    """
    found = time_of(dataset, row)
    if found is None:
        raise DatasetError(
            f"{dataset.name}, row {row}: expected the time of its decision, by which it is replayed; got none"
        )
    return found


def time_of(dataset: Dataset, row: int) -> int | None:
    """When a log decided a row; None: it does not say, or this is no log."""
    return dataset.log.outcome(row).decided_at_ms if isinstance(dataset, LogDataset) else None


def has_times(dataset: Dataset) -> bool:
    """Whether it is a log that says when it decided: its first row does."""
    return time_of(dataset, 0) is not None


def _row_at(dataset: Dataset, at_ms: int) -> int:
    """The first row that was decided at a time or later."""
    return bisect_left(range(dataset.rows), at_ms, key=lambda row: decided_at_ms(dataset, row))


SAMPLED = 1_000
"""Rows that are looked at to tell what a log has."""


def has_labels(dataset: Dataset) -> bool:
    """Whether the true classes are known: of a log, of any of its first rows."""
    if not isinstance(dataset, LogDataset):
        return True
    return any(dataset.log.outcome(row).label is not None for row in range(min(SAMPLED, dataset.rows)))


def logged_delays_ms(dataset: Dataset) -> list[int]:
    """The delays that a log has, among its first rows with an outcome."""
    if not isinstance(dataset, LogDataset):
        return []
    outcomes = (dataset.log.outcome(row) for row in range(min(SAMPLED, dataset.rows)))
    return [outcome.delay_ms for outcome in outcomes if outcome.delay_ms is not None]
