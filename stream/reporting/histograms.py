"""How time spans are spread: counts in bins that are the same for every run, so that runs can be laid side by side."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS_PER_DECADE = 10


class Histogram(NamedTuple):
    """Counts of time spans, in bins of equal width on a logarithmic axis.

    >>> histogram([1, 9.5, 10, 12]).counts[-2:]
    (1, 2)
    """

    first: int  # bin i reaches from 10 ** ((first + i) / BINS_PER_DECADE) ms on
    counts: tuple[int, ...]

    @property
    def edges_ms(self) -> tuple[float, ...]:
        """Where the bins begin, and where the last one ends: one more than there are counts."""
        return tuple(10 ** ((self.first + i) / BINS_PER_DECADE) for i in range(len(self.counts) + 1))

    @property
    def total(self) -> int:
        """How many were counted."""
        return sum(self.counts)


SHORTEST_MS = 0.001
"""Shorter spans, those that take no time at all among them, are counted as this."""


def histogram(spans_ms: Sequence[float] | NDArray[Any]) -> Histogram | None:
    """Count time spans; None without any."""
    if len(spans_ms) == 0:
        return None
    spans = np.maximum(np.asarray(spans_ms, dtype=np.float64), SHORTEST_MS)
    bins = np.floor(np.log10(spans) * BINS_PER_DECADE).astype(np.int64)
    first = int(bins.min())
    return Histogram(first, tuple(np.bincount(bins - first).tolist()))


def quantile_ms(found: Histogram, share: float) -> float:
    """The end of the bin in which the quantile lies: at least this share of the spans is not longer.

    >>> round(quantile_ms(Histogram(0, (5, 4, 1)), 0.9), 2)
    1.58
    """
    counted = np.cumsum(found.counts)
    return found.edges_ms[int(np.searchsorted(counted, share * found.total)) + 1]
