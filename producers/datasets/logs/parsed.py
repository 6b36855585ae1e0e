"""Parsed batches of a log, with columns of plain values and problems by row."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.logs.texts import Lists, Texts
from stream.parsing import repr_of
from stream.wire.named_features import Kind
from stream.wire.records import FloatArray


class Problem(NamedTuple):
    """The reason why a row cannot be used."""

    row: int  # index of the row in the batch
    reason: str  # the field and its expected value, the same for all rows with this problem
    got: str


class FeatureEntries(NamedTuple):
    """The entries of one feature name in a batch. A row may have several entries."""

    name: str
    kind: Kind
    rows: NDArray[np.int64]  # [m], indices in the batch
    numbers: FloatArray | None  # [m], the values; None if all are 1
    texts: Texts | None  # [m], categories or words, without missing values
    empty: NDArray[np.bool_] | None = None  # [n], rows with an empty cell; None if the log is not a table


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
    left_out: tuple[Problem, ...] = ()  # valid rows that are not decisions
    other_classes: frozenset[str] = frozenset()  # other classes that could have been played


def problem(row: int, field: str, expected: str, got: object) -> Problem:
    """Create a problem from a field, its expected value and its actual value."""
    return Problem(row, f"{field}: expected {expected}", repr(got[:60]) if type(got) is str else repr_of(got, 60))
