"""A one-pass bootstrap: every row has a Poisson(1) count in every resample.

Oza, Russell, "Online bagging and boosting", AISTATS 2001; Chamandy, Muralidharan, Najmi, Naidu, "Estimating uncertainty
for massive data streams", 2012. A row's count in a resample depends only on the seed, the event id and the resample's
index. The same log therefore gives the same intervals for any batch size. Each resample stores only sums. An estimate
is a function of the sums, and the limits of its interval are percentiles over the resamples (Efron, Tibshirani 1993,
chapter 13).

The method assumes that there are many rows, none of which dominates. The coverage is approximate.
"""

from math import exp, factorial

import numpy as np
from numpy.typing import NDArray

from stream.estimating.intervals import Interval
from stream.estimating.rows import RESAMPLE_WORD, Chunk
from stream.wire.records import FloatArray

RESAMPLES = 500

DRAWS_PER_WORD = 4
"""Number of draws from a 64-bit word. With 16 bits per draw, the probabilities of the counts are exact to 2⁻¹⁷, far
below the resolution of 500 resamples."""

SPREAD_MIN = 1e-12
"""Resampled values whose spread is below this limit differ only by rounding errors, and are treated as equal."""

COUNT_MAX = 7
"""Maximum Poisson(1) count. Larger counts have a probability of 10⁻⁵, which is below the resolution of 16 bits."""


def _poisson_table() -> NDArray[np.float32]:
    """Return the Poisson(1) count for each of the 2¹⁶ possible draws."""
    cumulative = np.cumsum([exp(-1.0) / factorial(count) for count in range(COUNT_MAX)])
    table: NDArray[np.float32] = np.searchsorted(cumulative, (np.arange(2**16) + 0.5) / 2**16).astype(np.float32)
    return table


_POISSON = _poisson_table()


def poisson_counts(chunk: Chunk, resamples: int) -> NDArray[np.float32]:
    """Return the count of each row in each resample, float32[n, resamples]."""
    words = chunk.words(RESAMPLE_WORD, -(-resamples // DRAWS_PER_WORD))
    halves = np.ascontiguousarray(words).astype("<u8").view("<u2")  # little-endian on every machine
    counts: NDArray[np.float32] = _POISSON[halves[:, :resamples]]
    return counts


class ResampledSums:
    """Column sums of the terms, both over all rows (float64[columns]) and over the rows in each resample."""

    def __init__(self, columns: int, resamples: int = RESAMPLES) -> None:
        self.sums: FloatArray = np.zeros(columns)
        self.resampled: FloatArray = np.zeros((resamples, columns))

    def add(self, terms: FloatArray, counts: NDArray[np.float32]) -> None:
        """Add rows with terms [n, columns] and counts [n, resamples]."""
        self.sums += terms.sum(axis=0)
        self.resampled += counts.T @ terms


def percentile_interval(values: FloatArray, confidence: float) -> Interval | None:
    """Return the interval between percentiles of the resampled values, or None.

    The interval is None if any value is undefined, or if all values are equal. Equal values, such as those from a few
    rows without any reward, contain no information about the variance.
    """
    if values.size == 0 or not np.isfinite(values).all() or np.ptp(values) <= SPREAD_MIN:
        return None
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return Interval(float(low), float(high))
