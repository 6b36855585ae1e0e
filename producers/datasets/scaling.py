"""The spread of numeric columns, and their standardisation to mean 0 and standard deviation 1.

A column is *sparse* if most of its values are 0. A sparse column is not centred, so that its zeros need no entries. Its
spread is the root mean square of its non-zero values, because division by the standard deviation would inflate rare
features. On the text data set r8, the error of stack-igw is 11.7% with the standard deviation, 6.7% with the root
mean square, and 6.9% without scaling. A constant column is not changed.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import Dataset, DatasetError, OffsetArray, SparseRows
from stream.wire.named_features import Scale
from stream.wire.records import FloatArray, IndexArray

CONSTANT = 1e-9
"""A column is considered constant if its standard deviation is at most this fraction of its root mean square."""

UNEVEN = 1_000.0
"""A warning is reported if the ratio of a column's spread to the median spread of the other columns is at least this
value."""


class Moments(NamedTuple):
    """The count, mean and squared deviations of a column's values."""

    n: int = 0
    zeros: int = 0
    mean: float = 0.0
    squares: float = 0.0  # Σ (value - mean)²

    def including(self, values: FloatArray) -> "Moments":
        """Return the moments after adding finite values (Chan, Golub, LeVeque 1983).

        >>> Moments().including(np.array([0.0, 4.0])).including(np.array([2.0]))
        Moments(n=3, zeros=1, mean=2.0, squares=8.0)
        """
        if not values.size:
            return self
        with np.errstate(over="ignore", invalid="ignore"):  # the result may be infinite or NaN; see `spread`
            mean, n = float(values.mean()), self.n + values.size
            gap = mean - self.mean
            squares = float(np.square(values - mean).sum()) + gap * gap * self.n * values.size / n
        zeros = values.size - int(np.count_nonzero(values))
        return Moments(n, self.zeros + zeros, self.mean + gap * values.size / n, self.squares + squares)

    @property
    def is_sparse(self) -> bool:
        """Whether most values are 0."""
        return 2 * self.zeros > self.n

    @property
    def spread(self) -> float:
        """The spread, or 0 if the column is constant or its squares overflow float64."""
        total = self.squares + self.n * self.mean * self.mean
        if not np.isfinite(total) or self.squares <= CONSTANT**2 * total:
            return 0.0
        return math.sqrt(total / (self.n - self.zeros) if self.is_sparse else self.squares / self.n)

    @property
    def scale(self) -> Scale | None:
        """The scale that standardises the column, or None if the spread is 0."""
        return Scale(0.0 if self.is_sparse else self.mean, self.spread) if self.spread > 0.0 else None


def uneven_column(columns: Sequence[tuple[str, float]], others: Sequence[float] = ()) -> str:
    """Return a warning if the largest spread is at least `UNEVEN` times the median of all others; otherwise "".

    Args:
        columns: The name and spread of each numeric column; constant columns, with spread 0, are ignored.
        others: The spreads of columns that are not numeric.

    >>> uneven_column([("age", 10.0), ("income", 40_000.0)])
    'column income varies 4,000 times as much as the other columns (median)'
    >>> uneven_column([("age", 10.0), ("income", 4_000.0)])
    ''
    """
    ordered = sorted(((spread, name) for name, spread in columns if spread > 0.0), reverse=True)
    rest = [spread for spread, _ in ordered[1:]] + list(others)
    if not ordered or not rest or ordered[0][0] < UNEVEN * (median := float(np.median(rest))):
        return ""
    spread, name = ordered[0]
    return f"column {name} varies {spread / median:,.0f} times as much as the other columns (median)"


def uneven_rows(rows: SparseRows) -> str:
    """Return the warning from `uneven_column`. Columns are named by their indices."""
    found = _columns(rows)
    known = np.flatnonzero(found.spread > 0.0)
    if known.size < 2:
        return ""
    largest = known[np.argmax(found.spread[known])]
    rest = float(np.median(found.spread[known[known != largest]]))
    return uneven_column([(f"{found.indices[largest]} (counted from 0)", float(found.spread[largest]))], [rest])


def uneven_of(dataset: Dataset) -> str:
    """Return the warning about uneven columns, computed from rows in memory or stored with a log.

    With actions, x also contains the keys of ids, so the columns of x are not compared.
    """
    rows = dataset.source
    return uneven_rows(rows) if isinstance(rows, SparseRows) and dataset.blocks is None else dataset.uneven


def standardised(dataset: Dataset) -> Dataset:
    """Return a data set with standardised columns (mean 0, standard deviation 1). The rows must be in memory.

    Raises:
        DatasetError: the rows are generated, or come from a plug-in that does not store them.
    """
    rows = dataset.source
    if not isinstance(rows, SparseRows):
        raise DatasetError(
            f"{dataset.name}: expected a file or a log, because standardisation requires the means and deviations "
            "before the first event; got generated rows"
        )
    return replace(dataset, source=_scaled(rows))


class _Columns(NamedTuple):
    """Statistics for the columns that have entries."""

    indices: IndexArray  # [m], increasing
    place: NDArray[np.int64]  # [nnz], the column of each entry
    is_sparse: NDArray[np.bool_]  # [m]
    mean: FloatArray  # [m], over all rows
    spread: FloatArray  # [m]; 0 for a constant column


def _columns(rows: SparseRows) -> _Columns:
    n = rows.labels.size
    indices, place = np.unique(rows.indices, return_inverse=True)
    count = np.bincount(place).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.bincount(place, rows.values) / count  # sums over the entries
        squares: FloatArray = np.bincount(place, np.square(rows.values - mean[place])).astype(np.float64)
        total = squares + count * np.square(mean)
        squares += count * np.square(mean) * (n - count) / n  # statistics over all rows
        is_sparse = 2 * count < n
        spread = np.sqrt(np.where(is_sparse, total / count, squares / n))
        spread[~np.isfinite(total) | (squares <= CONSTANT**2 * total)] = 0.0
    return _Columns(indices.astype(np.int32), place, is_sparse, mean * (count / n), spread)


def _scaled(rows: SparseRows) -> SparseRows:
    found = _columns(rows)
    n, m = rows.labels.size, found.indices.size
    unit = np.where(found.spread > 0.0, found.spread, 1.0)
    is_centred = (found.spread > 0.0) & ~found.is_sparse
    row = np.repeat(np.arange(n), np.diff(rows.offsets))
    kept, placed = rows.values, found.place
    centred = np.flatnonzero(is_centred)
    dense = np.zeros((n, centred.size))  # less than twice the number of entries, because these columns are not sparse
    has_rank = is_centred[placed]
    dense[row[has_rank], np.searchsorted(centred, placed[has_rank])] = kept[has_rank]
    dense = (dense - found.mean[centred]) / unit[centred]
    others = ~has_rank
    key = np.concatenate((row[others] * m + placed[others], (np.arange(n)[:, np.newaxis] * m + centred).ravel()))
    value = np.concatenate((kept[others] / unit[placed[others]], dense.ravel()))
    order = np.argsort(key)
    order = order[value[order] != 0.0]
    key, value = key[order], value[order]
    offsets: OffsetArray = np.searchsorted(key, np.arange(n + 1, dtype=np.int64) * m).astype(np.int64)
    return SparseRows(offsets, found.indices[key % m], value, rows.labels)
