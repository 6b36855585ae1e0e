"""A bootstrap in one pass: every row counts Poisson(1) times in every resample.

Oza, Russell, "Online bagging and boosting", AISTATS 2001; Chamandy, Muralidharan, Najmi, Naidu, "Estimating uncertainty
for massive data streams", 2012. How often a row counts is a function of the seed, its event id and the resample, so the
same log gives the same intervals, however it is cut into batches. Of each resample only sums are kept; an estimate is a
function of the sums, and its interval lies between percentiles of the resamples (Efron, Tibshirani 1993, chapter 13).

What it needs: many rows, none of which outweighs the others. It holds approximately, not for certain.
"""

from math import exp, factorial

import numpy as np
from numpy.typing import NDArray

from stream.estimating.intervals import Interval
from stream.estimating.rows import RESAMPLE_WORD, Chunk
from stream.wire.events import FloatArray

RESAMPLES = 500

DRAWS_PER_WORD = 4
"""A draw takes 16 bits: the probabilities of the counts are off by 2⁻¹⁷ at most, far below what 500 resamples show."""

SPREAD_MIN = 1e-12
"""Less is rounding."""

COUNT_MAX = 7
"""Of a Poisson(1) count, 10⁻⁶ lie above: less than what 16 bits tell apart."""


def _poisson_table() -> NDArray[np.float32]:
    """The count for each of 2¹⁶ numbers."""
    cumulative = np.cumsum([exp(-1.0) / factorial(count) for count in range(COUNT_MAX)])
    table: NDArray[np.float32] = np.searchsorted(cumulative, (np.arange(2**16) + 0.5) / 2**16).astype(np.float32)
    return table


_POISSON = _poisson_table()


def poisson_counts(chunk: Chunk, resamples: int) -> NDArray[np.float32]:
    """How often each row counts in each resample, float32[n, resamples]."""
    words = chunk.words(RESAMPLE_WORD, -(-resamples // DRAWS_PER_WORD))
    halves = np.ascontiguousarray(words).astype("<u8").view("<u2")  # the same on every machine
    counts: NDArray[np.float32] = _POISSON[halves[:, :resamples]]
    return counts


class ResampledSums:
    """Sums of the columns of terms over all rows, float64[columns], and over each resample of them."""

    def __init__(self, columns: int, resamples: int = RESAMPLES) -> None:
        self.sums: FloatArray = np.zeros(columns)
        self.resampled: FloatArray = np.zeros((resamples, columns))

    def add(self, terms: FloatArray, counts: NDArray[np.float32]) -> None:
        """Take in rows: terms [n, columns], and how often each counts [n, resamples]."""
        self.sums += terms.sum(axis=0)
        self.resampled += counts.T @ terms


def percentile_interval(values: FloatArray, confidence: float) -> Interval | None:
    """Between the percentiles of the resamples' values; None when some resample has none, or all have the same.

    Rows that are all alike, such as no reward among the few that count, say nothing of how others may differ.
    """
    if values.size == 0 or not np.isfinite(values).all() or np.ptp(values) <= SPREAD_MIN:
        return None
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return Interval(float(low), float(high))
