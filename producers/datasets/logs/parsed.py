"""Parsed batches from a log: columns of plain values or dictionary-encoded strings, and the problems in rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import DatasetError
from stream.parsing import repr_of
from stream.wire.codec import NUMBERS_MAX
from stream.wire.named_features import Kind
from stream.wire.records import FloatArray

_MISSING = -1

ACTION_MAX = NUMBERS_MAX
"""Largest action number in a Vowpal Wabbit log. Every number up to the largest one in the log is a class, and a record
cannot hold the scores of more classes than this."""


def is_action(number: object) -> bool:
    """Return whether a value is an action number in a Vowpal Wabbit log."""
    return type(number) is int and 1 <= number <= ACTION_MAX


@dataclass(frozen=True, slots=True)
class Texts:
    """A sequence of n strings that stores each distinct string once. An empty string represents a missing value."""

    distinct: list[str]  # in order of first occurrence
    codes: NDArray[np.int64]  # [n], indices in `distinct`, -1 if missing

    @classmethod
    def of(cls, values: Sequence[str | None]) -> "Texts":
        """Create a sequence from values. None represents a missing value."""
        return cls(*distinct_of(values))

    @classmethod
    def by_code(cls, values: Sequence[str | None], codes: NDArray[np.int64]) -> "Texts":
        """Create a sequence from values and codes. A code of -1 represents a missing value."""
        known = cls.of(values)
        return cls(known.distinct, np.append(known.codes, _MISSING)[codes])

    def __len__(self) -> int:
        return self.codes.size

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code == _MISSING else self.distinct[code]

    def missing(self) -> NDArray[np.bool_]:
        """Return a mask of the missing strings."""
        missing: NDArray[np.bool_] = self.codes == _MISSING
        return missing

    def present(self) -> "Texts":
        """Return the strings that are not missing."""
        return Texts(self.distinct, self.codes[self.codes != _MISSING])

    def where(self, mask: NDArray[np.bool_]) -> "Texts":
        """Return the strings selected by a mask."""
        if mask.all():
            return self
        codes = self.codes[mask]
        used = [code for code in dict.fromkeys(codes.tolist()) if code != _MISSING]
        new = np.full(len(self.distinct) + 1, _MISSING, np.int64)  # the last place is for the code of missing values
        new[used] = np.arange(len(used))
        return Texts([self.distinct[code] for code in used], new[codes])

    def to_list(self) -> list[str | None]:
        """Return the strings, with None for missing values."""
        return [None if code == _MISSING else self.distinct[code] for code in self.codes.tolist()]


class Lists(NamedTuple):
    """A sequence of n lists of strings. Each distinct list is stored once."""

    distinct: list[tuple[str, ...]]
    codes: NDArray[np.int64]  # [n], indices in `distinct`, -1 if missing

    def to_list(self) -> list[tuple[str, ...]]:
        """Return the lists, with empty ones for missing values."""
        return [() if code == _MISSING else self.distinct[code] for code in self.codes.tolist()]

    def names(self, mask: NDArray[np.bool_]) -> set[str]:
        """Return all strings in the lists that a mask selects."""
        return {name for code in set(self.codes[mask].tolist()) - {_MISSING} for name in self.distinct[code]}


class Problem(NamedTuple):
    """The reason why a row cannot be used."""

    row: int  # index of the row in the batch
    reason: str  # the field and its expected value, the same for all rows with this problem
    got: str


class FeatureEntries(NamedTuple):
    """The entries for one feature name in a batch. A row may have several entries."""

    name: str
    kind: Kind
    rows: NDArray[np.int64]  # [m], indices in the batch
    numbers: FloatArray | None  # [m], the values; None if all are 1
    texts: Texts | None  # [m], categories or words, without missing values
    empty: NDArray[np.bool_] | None = None  # [n], rows with an empty cell; None if the log is not a table
    given: Sequence[object] | None = None  # [m], the numbers as in the file, if the feature can also have strings

    def where(self, kept: NDArray[np.bool_]) -> "FeatureEntries":
        """Return the entries of the rows selected by a mask."""
        used = kept[self.rows]
        if used.all():
            return self
        return self._replace(
            rows=self.rows[used],
            numbers=None if self.numbers is None else self.numbers[used],
            texts=None if self.texts is None else self.texts.where(used),
            given=None if self.given is None else [self.given[place] for place in np.flatnonzero(used).tolist()],
        )


class Offered(NamedTuple):
    """The actions that n decisions offer, m in all, in the order of the decisions and of their places."""

    counts: NDArray[np.int64]  # [n], the number of actions of each decision
    ids: Texts  # [m]
    features: tuple[FeatureEntries, ...]  # their rows are actions, 0 to m - 1
    played: NDArray[np.int64]  # [n], the place of the played action; -1 if missing
    baselines: NDArray[np.int64]  # [n], the place of the action of the service's own rule; -1 if missing
    eligible: Sequence[Sequence[int]]  # n lists of places in increasing order; an empty list means all actions

    @property
    def decisions(self) -> NDArray[np.int64]:
        """The decision of each action, [m]."""
        return np.repeat(np.arange(self.counts.size), self.counts)


class ParsedBatch(NamedTuple):
    """n parsed rows, before any checks across rows. Rows with a problem contain arbitrary values."""

    n: int
    first_row: int  # number of the first row in the file, from 0
    where: Callable[[int], str]  # returns the position of a row in the file, such as "line 12"
    features: tuple[FeatureEntries, ...]
    problems: tuple[Problem, ...] = ()
    ids: Texts | None = None  # None if the log has no ids
    decided_at_ms: NDArray[np.int64] | None = None
    labels: Texts | None = None
    actions: Texts | None = None
    propensities: FloatArray | None = None
    rewards: FloatArray | None = None  # as in the file, possibly not binary; NaN if there is no outcome
    delays_ms: NDArray[np.int64] | None = None
    eligible: Lists | None = None  # names of the eligible classes; a missing list means all classes
    baselines: Texts | None = None  # the class that the service's own rule plays
    left_out: tuple[Problem, ...] = ()  # valid rows that are not decisions
    offered: Offered | None = None  # actions with features; None if the decisions are among classes


def problem(row: int, field: str, expected: str, got: object) -> Problem:
    """Create a problem from a field, its expected value and its actual value.

    >>> problem(7, "p", "a probability", "x" * 100).got[-3:], problem(7, "p", "a probability", None).got
    ("xx'", 'nothing')
    """
    shown = "nothing" if got is None else repr(got[:60]) if type(got) is str else repr_of(got, 60)
    return Problem(row, f"{field}: expected {expected}", shown)


def no_usable_rows(name: str, skipped: Mapping[str, int]) -> DatasetError:
    """Create the error for a log without a usable row.

    >>> str(no_usable_rows("week.csv", {"p: expected a probability": 7}))
    'week.csv contains no usable rows; 7 skipped: p: expected a probability'

    Args:
        name: The log's name.
        skipped: The number of skipped rows by reason.
    """
    counts = "".join(f"; {count} skipped: {reason}" for reason, count in skipped.items())
    return DatasetError(f"{name} contains no usable rows{counts}")


def distinct_of(values: Sequence[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the distinct values in order of first occurrence, and the index of each value (-1 for None and "")."""
    places = dict.fromkeys(values, _MISSING)
    distinct = [value for value in places if value is not None and value != ""]
    places.update(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.fromiter(map(places.__getitem__, values), np.int64, len(values))
