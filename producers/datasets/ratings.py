"""`ratings`: a synthetic data set with graded rewards, from 1 to 5 stars in steps of one half.

A row has 10 dense features, uniform in [-1, 1]. Each of the 8 classes has a weight vector θ_k, uniform in [-1, 1] per
feature and drawn once per seed. Row x rates class k with

    stars = 1 + 4 clip(σ(2 θ_kᵀx) + noise),   rounded to halves; noise is the sum of two uniform draws from [-.15, .15]

No class is right or wrong. A row's label is the class with the highest σ(2 θ_kᵀx).

Row i is a function of (seed, i). Its random numbers are words of a SplitMix64 sequence that starts at a hash of the
seed and the row: first the features, then the noise of each class. A row's ratings do not depend on the chosen class.
"""

from dataclasses import dataclass

import numpy as np

from producers.datasets.base import Block, Dataset, DatasetError, Known, Row
from stream.randomness.draws import SEED_MAX, Draws, Purpose, words
from stream.wire.records import Features, FloatArray, IndexArray, make
from stream.wire.rewards import RewardRange

N_CLASSES = 8
N_FEATURES = 10
ROWS = 1_000_000
STARS = RewardRange(1.0, 5.0)
TERMS = "generated; no restrictions"

SLOPE = 2.0
NOISE = 0.15
"""Largest value of each of the two uniform draws whose sum is a rating's noise."""


@dataclass(frozen=True, slots=True)
class RatingRows:
    """The rows that are generated from one seed."""

    draws: Draws
    weights: FloatArray  # float64[K, d]
    indices: IndexArray  # int32[d], shared by all rows

    def row(self, row: int) -> Row:
        """Generate a row."""
        x, means, _ = self._parts(row)
        return make(Row, (make(Features, (self.indices, x)), int(means.argmax())))

    def label(self, row: int) -> int:
        """Return the class with the highest expected rating before rounding."""
        return int(self._parts(row)[1].argmax())

    def stars(self, row: int) -> FloatArray:
        """Return the row's rating of each class, float64[K]."""
        _, means, noise = self._parts(row)
        stars: FloatArray = STARS.low + STARS.size * np.clip(means + noise, 0.0, 1.0)
        return np.floor(2.0 * stars + 0.5) / 2.0

    def block(self, start: int, stop: int) -> Block:
        """Generate the rows [start, stop)."""
        rows = [self.row(row) for row in range(start, stop)]
        values = np.concatenate([row.x.values for row in rows]) if rows else np.zeros(0)
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * N_FEATURES
        return Block(offsets, np.tile(self.indices, len(rows)), values, np.array([row.label for row in rows], np.int64))

    def _parts(self, row: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return a row's features [d], and each class's expected share and noise [K]."""
        uniform = _uniform(self.draws.bits(str(row)), N_FEATURES + 2 * N_CLASSES)
        x = 2.0 * uniform[:N_FEATURES] - 1.0
        noise = NOISE * (2.0 * uniform[N_FEATURES:] - 1.0)
        means = 1.0 / (1.0 + np.exp(-SLOPE * (self.weights * x).sum(axis=1)))
        return x, means, noise[:N_CLASSES] + noise[N_CLASSES:]


@dataclass(frozen=True, slots=True)
class RatedDataset(Dataset):
    """Rows that have a graded reward for each class, and no true class."""

    rated: RatingRows  # the same object as `source`, with its exact type

    def known_of(self, event_id: str) -> Known:
        """Return an event's known outcome: the reward of each class."""
        return Known(rewards=self.rated.stars(self.parse_event_id(event_id)[1]))

    def has_labels(self) -> bool:
        """Return False, because no class is right or wrong."""
        return False

    def has_rewards(self) -> bool:
        """Return True."""
        return True

    def reward_range(self) -> RewardRange:
        """Return the range of the rewards."""
        return STARS


def ratings(seed: int = 0, rows: int = ROWS) -> RatedDataset:
    """Create the data set.

    Raises:
        DatasetError: the seed or the number of rows is out of range.
    """
    if not 0 <= seed <= SEED_MAX:
        raise DatasetError(f"ratings: expected a seed in [0, 2**64); got {seed}")
    if rows < 1:
        raise DatasetError(f"ratings: expected at least 1 row; got {rows}")
    draws = Draws(seed, Purpose.RATING)
    weights = 2.0 * _uniform(draws.bits("weights"), N_CLASSES * N_FEATURES).reshape(N_CLASSES, N_FEATURES) - 1.0
    source = RatingRows(draws, weights, np.arange(N_FEATURES, dtype=np.int32))
    return RatedDataset(
        name="ratings",
        # The id contains the seed, because rewards from another seed would be wrong without an error.
        id_prefix=f"ratings.{seed}",
        rows=rows,
        n_features=N_FEATURES,
        n_classes=N_CLASSES,
        class_names=tuple(str(label) for label in range(N_CLASSES)),
        terms=TERMS,
        source=source,
        rated=source,
    )


def _uniform(state: int, n: int) -> FloatArray:
    uniform: FloatArray = (words(state, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform
