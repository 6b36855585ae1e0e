"""Rows of a log as their format gives them: columns of plain values, and what is wrong with which row."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.logs.texts import Texts
from stream.wire.events import FloatArray
from stream.wire.named_features import Kind
from stream.wire.shown import repr_of


class Problem(NamedTuple):
    """Why a row cannot be used."""

    row: int  # its place in the batch
    reason: str  # field and expectation, the same for all rows with this problem
    got: str


class FeatureEntries(NamedTuple):
    """The entries that one name has in a batch; a row may have several."""

    name: str
    kind: Kind
    rows: NDArray[np.int64]  # [m], places in the batch
    numbers: FloatArray | None  # [m], the values; None: ones
    texts: Texts | None  # [m], none missing: categories, or texts of words


class ParsedBatch(NamedTuple):
    """n rows, before anything is known of the rows around them. Rows with a problem hold anything."""

    n: int
    first_row: int  # the number of its first row in the file, from 0
    where: Callable[[int], str]  # how people find a row in the file: "line 12"
    features: tuple[FeatureEntries, ...]
    problems: tuple[Problem, ...] = ()
    ids: Texts | None = None  # None: they have none of their own
    decided_at_ms: NDArray[np.int64] | None = None
    labels: Texts | None = None
    actions: Texts | None = None
    propensities: FloatArray | None = None
    rewards: FloatArray | None = None  # as in the file, perhaps not one bit; NaN: no outcome
    delays_ms: NDArray[np.int64] | None = None
    left_out: tuple[Problem, ...] = ()  # rows that are no decisions, and not wrong either
    other_classes: frozenset[str] = frozenset()  # classes that could have been played


def problem(row: int, field: str, expected: str, got: object) -> Problem:
    """A problem with one field."""
    return Problem(row, f"{field}: expected {expected}", repr(got[:60]) if type(got) is str else repr_of(got, 60))
