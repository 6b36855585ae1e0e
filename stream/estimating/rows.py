"""Logged decisions as the estimators take them: in columns, some hundred at a time, each with luck of its own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream.randomness.draws import Draws
from stream.randomness.splitmix import GAMMA, mix_words
from stream.wire.events import Features, FloatArray, IndexArray

ROWS_MAX = 1024
"""So many rows are worked on at a time: their resampling weights are a table of rows by resamples."""

FOLD_WORD, ACCEPT_WORD, RESAMPLE_WORD = 1, 2, 3
"""Which words of a row's sequence are used for what; resampling takes all that follow."""


class LoggedRows(Protocol):
    """n logged decisions, in columns; a negative whole number, or a propensity of NaN, is one the log does not say."""

    @property
    def ids(self) -> Sequence[str]:
        """The event ids, n of them."""
        ...

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64[n + 1]: row j has the entries offsets[j] to offsets[j+1]."""
        ...

    @property
    def indices(self) -> IndexArray:
        """int32[nnz]."""
        ...

    @property
    def values(self) -> FloatArray:
        """float64[nnz]."""
        ...

    @property
    def decided_at_ms(self) -> NDArray[np.int64]:
        """int64[n], since 1970."""
        ...

    @property
    def labels(self) -> NDArray[np.int64]:
        """int64[n], the true class."""
        ...

    @property
    def actions(self) -> NDArray[np.int64]:
        """int64[n], the class that was played."""
        ...

    @property
    def propensities(self) -> FloatArray:
        """float64[n], the probability with which it was played."""
        ...

    @property
    def rewards(self) -> NDArray[np.int64]:
        """int64[n], 1 or 0."""
        ...

    @property
    def delays_ms(self) -> NDArray[np.int64]:
        """int64[n], from the decision to its feedback."""
        ...


class DecisionLog(Protocol):
    """A log of decisions that can be read from its beginning, any number of times."""

    @property
    def name(self) -> str:
        """As people call it."""
        ...

    @property
    def n_features(self) -> int:
        """The dimension d."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class k."""
        ...

    def batches(self) -> Iterable[LoggedRows]:
        """The rows in their order."""
        ...


class Chunk(NamedTuple):
    """Up to ROWS_MAX logged decisions."""

    ids: Sequence[str]  # n
    offsets: NDArray[np.int64]  # [n + 1], from 0
    indices: IndexArray  # [nnz]
    values: FloatArray  # [nnz]
    decided_at_ms: NDArray[np.int64]  # [n]
    labels: NDArray[np.int64]  # [n]
    actions: NDArray[np.int64]  # [n]
    propensities: FloatArray  # [n]
    rewards: NDArray[np.int64]  # [n]
    delays_ms: NDArray[np.int64]  # [n]
    keys: NDArray[np.uint64]  # [n], the state of each row's sequence of words

    def features(self, j: int) -> Features:
        """The x of row j."""
        start, stop = self.offsets[j], self.offsets[j + 1]
        return Features(self.indices[start:stop], self.values[start:stop])

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Which rows say an action and its outcome."""
        return (self.actions >= 0) & (self.rewards >= 0)

    @property
    def weighted(self) -> NDArray[np.bool_]:
        """Which of these have a propensity that a weight can be made of."""
        return self.judged & usable(self.propensities)

    def words(self, first: int, count: int) -> NDArray[np.uint64]:
        """Some words of each row's sequence, uint64[n, count]."""
        steps = np.arange(first, first + count, dtype=np.uint64) * np.uint64(GAMMA)
        return mix_words(self.keys[:, None] + steps[None, :])

    def folds(self, count: int) -> NDArray[np.int64]:
        """Which of so many folds each row is in."""
        return (self.words(FOLD_WORD, 1)[:, 0] % np.uint64(count)).astype(np.int64)

    def accept_uniforms(self) -> FloatArray:
        """A uniform in [0, 1) for each row."""
        return (self.words(ACCEPT_WORD, 1)[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def usable(propensities: FloatArray) -> NDArray[np.bool_]:
    """Which propensities are probabilities above 0."""
    return (propensities > 0.0) & (propensities <= 1.0)  # False for NaN


def chunks(batches: Iterable[LoggedRows], draws: Draws, rows_max: int = ROWS_MAX) -> Iterator[Chunk]:
    """The rows of batches of any size, in their order and in chunks, with the words of their event ids."""
    for batch in batches:
        n = len(batch.ids)
        for start in range(0, n, rows_max):
            stop = min(start + rows_max, n)
            rows = slice(start, stop)
            first, last = int(batch.offsets[start]), int(batch.offsets[stop])
            ids = batch.ids[rows]
            yield Chunk(
                ids=ids,
                offsets=batch.offsets[start : stop + 1] - first,
                indices=batch.indices[first:last],
                values=batch.values[first:last],
                decided_at_ms=batch.decided_at_ms[rows],
                labels=batch.labels[rows],
                actions=batch.actions[rows],
                propensities=batch.propensities[rows],
                rewards=batch.rewards[rows],
                delays_ms=batch.delays_ms[rows],
                keys=np.fromiter((draws.bits(one) for one in ids), np.uint64, len(ids)),
            )
