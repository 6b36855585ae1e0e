"""Logged decisions as input for the estimators: chunks of up to 1024 rows in columns, with random draws per row."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream.randomness.draws import GAMMA, Draws, mix_words
from stream.wire.actions import ActionBlocks
from stream.wire.records import Features, FloatArray, IndexArray
from stream.wire.rewards import BITS, RewardRange

ROWS_MAX = 1024
"""Maximum number of rows per chunk. It limits the size of the bootstrap counts, a table with a row for each decision
and a column for each resample."""

FOLD_WORD, ACCEPT_WORD, RESAMPLE_WORD = 1, 2, 3
"""Positions in a row's sequence of random words, by purpose. Resampling uses all words from its position onwards."""


class Eligible(NamedTuple):
    """The eligible classes for n decisions, in compressed form. If there are no entries, all classes are eligible."""

    offsets: NDArray[np.int64]  # [n + 1]: decision j has classes[offsets[j] : offsets[j + 1]]
    classes: IndexArray  # int32, in increasing order for each decision

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[int]]) -> "Eligible":
        """Create eligible classes from one list per decision. An empty list means that all classes are eligible."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(offsets, np.fromiter(chain.from_iterable(lists), np.int32, int(offsets[-1])))

    def where(self, kept: NDArray[np.bool_]) -> "Eligible":
        """Return the eligible classes for the decisions selected by a mask."""
        sizes = np.diff(self.offsets)
        return Eligible(np.concatenate(([0], np.cumsum(sizes[kept]))), self.classes[np.repeat(kept, sizes)])

    def part(self, start: int, stop: int) -> "Eligible":
        """Return the eligible classes for a range of decisions."""
        first, last = self.offsets[start], self.offsets[stop]
        return Eligible(self.offsets[start : stop + 1] - first, self.classes[first:last])

    def of(self, j: int) -> IndexArray | None:
        """Return the eligible classes for a decision, or None for all classes."""
        start, stop = self.offsets[j], self.offsets[j + 1]
        return self.classes[start:stop] if stop > start else None

    def counts(self, n_classes: int) -> NDArray[np.int64]:
        """Return the number of eligible classes for each decision."""
        sizes = np.diff(self.offsets)
        return np.where(sizes > 0, sizes, n_classes)

    def mask(self, n_classes: int) -> NDArray[np.bool_]:
        """Return whether each class is eligible, bool[n, K]."""
        sizes = np.diff(self.offsets)
        mask = np.zeros((sizes.size, n_classes), np.bool_)
        mask[np.repeat(np.arange(sizes.size), sizes), self.classes] = True
        mask[sizes == 0] = True
        return mask


class OfferedIds(NamedTuple):
    """The ids of the actions that n decisions offer, in compressed form."""

    offsets: NDArray[np.int64]  # [n + 1]: decision j offers ids[offsets[j] : offsets[j + 1]], by place
    ids: Sequence[str]

    @classmethod
    def of_counts(cls, counts: NDArray[np.int64], ids: Sequence[str]) -> "OfferedIds":
        """Create the ids from the number of actions of each decision."""
        return cls(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), ids)

    def of(self, j: int) -> Sequence[str]:
        """Return the ids of a decision's actions, by place."""
        return self.ids[self.offsets[j] : self.offsets[j + 1]]


class LogBatch(NamedTuple):
    """Columns with n logged decisions. A negative integer, or a NaN propensity or reward, denotes a missing value."""

    ids: Sequence[str]  # n event ids
    offsets: NDArray[np.int64]  # [n + 1], from 0: row j has the entries offsets[j] to offsets[j + 1] - 1
    indices: IndexArray  # [nnz], 0-based, strictly increasing within a row
    values: FloatArray  # [nnz]
    decided_at_ms: NDArray[np.int64]  # [n], milliseconds since 1970
    labels: NDArray[np.int64]  # [n], the true class
    actions: NDArray[np.int64]  # [n], the played class
    propensities: FloatArray  # [n], the probability of the played class
    rewards: FloatArray  # [n], bits, or graded rewards in the units of the log
    delays_ms: NDArray[np.int64]  # [n], milliseconds from the decision to its feedback
    eligible: Eligible | None = None  # the eligible classes of each row; None means all classes
    baselines: NDArray[np.int64] | None = None  # [n], the class that the service's own rule plays; None if unknown
    offered: OfferedIds | None = None  # the actions' ids; None if the decisions are among classes


class DecisionLog(Protocol):
    """A log of decisions that can be read repeatedly from its start."""

    @property
    def name(self) -> str:
        """The display name."""
        ...

    @property
    def n_features(self) -> int:
        """The number of features d."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class."""
        ...

    @property
    def blocks(self) -> ActionBlocks | None:
        """The layout of x, or None if the decisions are among classes."""
        ...

    def batches(self) -> Iterable[LogBatch]:
        """Return the rows as batches, in order."""
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
    rewards: FloatArray  # [n], from 0 to 1: bits, or shares of the range of graded rewards
    delays_ms: NDArray[np.int64]  # [n]
    keys: NDArray[np.uint64]  # [n], the state of each row's sequence of random words
    eligible: Eligible | None = None  # the eligible classes of each row; None means all classes
    baselines: NDArray[np.int64] | None = None  # [n], the class that the service's own rule plays; None if unknown

    def features(self, j: int) -> Features:
        """Return the features x of row j."""
        start, stop = self.offsets[j], self.offsets[j + 1]
        return Features(self.indices[start:stop], self.values[start:stop])

    def among(self, j: int) -> IndexArray | None:
        """Return the eligible classes for row j, or None for all classes."""
        return None if self.eligible is None else self.eligible.of(j)

    def mask(self, n_classes: int) -> NDArray[np.bool_]:
        """Return whether each class is eligible, bool[n, K]."""
        if self.eligible is None:
            return np.ones((len(self.ids), n_classes), np.bool_)
        return self.eligible.mask(n_classes)

    @property
    def judged(self) -> NDArray[np.bool_]:
        """The mask of rows with an action and an outcome."""
        return (self.actions >= 0) & ~np.isnan(self.rewards)

    @property
    def weighted(self) -> NDArray[np.bool_]:
        """The mask of rows with an action, an outcome and a usable propensity."""
        return self.judged & usable(self.propensities)

    def words(self, first: int, count: int) -> NDArray[np.uint64]:
        """Return `count` words of each row's random sequence, starting at word `first`, uint64[n, count]."""
        steps = np.arange(first, first + count, dtype=np.uint64) * np.uint64(GAMMA)
        return mix_words(self.keys[:, None] + steps[None, :])

    def folds(self, count: int) -> NDArray[np.int64]:
        """Return each row's fold."""
        return (self.words(FOLD_WORD, 1)[:, 0] % np.uint64(count)).astype(np.int64)

    def accept_uniforms(self) -> FloatArray:
        """Return a uniform draw in [0, 1) for each row."""
        return (self.words(ACCEPT_WORD, 1)[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def usable(propensities: FloatArray) -> NDArray[np.bool_]:
    """Return whether each propensity is in (0, 1]."""
    return (propensities > 0.0) & (propensities <= 1.0)  # the comparison is False for NaN


def chunks(
    batches: Iterable[LogBatch], draws: Draws, rows_max: int = ROWS_MAX, rewards: RewardRange = BITS
) -> Iterator[Chunk]:
    """Split batches of any size into chunks, in order, and add pseudorandom words derived from the event ids.

    Args:
        batches: The log's rows.
        draws: The source of the random words.
        rows_max: Maximum number of rows per chunk.
        rewards: The range of the log's rewards, which become shares of this range.
    """
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
                rewards=(batch.rewards[rows] - rewards.low) / rewards.size,
                delays_ms=batch.delays_ms[rows],
                keys=np.fromiter((draws.bits(one) for one in ids), np.uint64, len(ids)),
                eligible=None if batch.eligible is None else batch.eligible.part(start, stop),
                baselines=None if batch.baselines is None else batch.baselines[rows],
            )
