"""The reward model for the direct method and doubly robust estimates: one ridge regression of the reward per action.

    A_a = Σ z zᵀ,  b_a = Σ r z  over the rows in which a was played;  z = (x, 1)
    r̄ = the mean reward;  θ_a = (A_a + λS)⁻¹ (b_a − r̄ A_a e_last);  q̂(x, a) = r̄ + θ_a·z, limited to [0, 1]
    S = the diagonal matrix of the mean z² over all rows, so that the model does not depend on the units of the features

The sums are kept separately for each fold, and use constant memory. An *out-of-fold* prediction uses all folds except
the row's own. A fold's λ is the value in RIDGES with the best predictions for held-out folds. The error is also
computed from the sums: Σ(r − q̂)² = Σr² − 2 b·θ + θᵀAθ. For an action that was never played, q̂ equals r̄; for a rare
action, it is close to r̄.

With actions that have features, there is one regression for all actions: z = (x̃, 1) ⊗ (ṽ, 1) for the context's
features x̃ and the action's features ṽ.

If d features require too much memory, x is mapped to m features by signed hashing (Weinberger et al., "Feature hashing
for large scale multitask learning", ICML 2009). The coarser model widens the intervals, but biases only the direct
method.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from stream.estimating.rows import Chunk
from stream.randomness.draws import words
from stream.wire.actions import ActionBlocks
from stream.wire.records import FloatArray

SUMS_BYTES_MAX = 8 * 2**20
"""Limit on the memory for one model's sums."""

SIZE_MIN = 8
"""Minimum number of features m after hashing."""

VALUE_MAX = 1e100
"""Features are limited to this magnitude, so that the sums of their squares are finite."""

PRODUCTS_MAX = 256
"""Maximum size of z with actions. The time for a prediction is proportional to it, for each action of a decision."""

RIDGES = (1.0, 10.0, 100.0, 1000.0)

SIGN_STATE = 20_260_301
"""Fixed seed for feature hashing."""


def size_of(n_features: int, n_classes: int, folds: int) -> int:
    """Return the number of features m, without the constant: d, or fewer if the memory limit requires it.

    >>> size_of(27, 80, 5), size_of(100_000, 80, 5) < 200
    (27, True)
    """
    affordable = int((SUMS_BYTES_MAX / (8 * folds * n_classes)) ** 0.5) - 1
    return min(n_features, max(affordable, SIZE_MIN))


class _Sums(NamedTuple):
    """The sums A and b for every action, and the values derived from these sums."""

    A: FloatArray  # [K, m + 1, m + 1]
    b: FloatArray  # [K, m + 1]

    @classmethod
    def of(cls, parts: Sequence["_Sums"]) -> "_Sums":
        """Return the sums over all parts. Subtracting parts from a total instead would leave large rounding errors."""
        A, b = parts[0]
        for part in parts[1:]:
            A, b = A + part.A, b + part.b
        return cls(A, b)

    @property
    def mean(self) -> float:
        """Return r̄, or one half if there are no rows."""
        rows = self.A[:, -1, -1].sum()
        return float(self.b[:, -1].sum() / rows) if rows > 0.5 else 0.5

    @property
    def scale(self) -> FloatArray:
        """Return the factors that scale each feature to a root mean square of 1; 0 for unused features."""
        squares = np.einsum("kii->i", self.A)
        scale = np.zeros(squares.size)
        there = squares > 0.0
        scale[there] = np.sqrt(squares[-1] / squares[there])
        return scale

    def centred(self, mean: float) -> FloatArray:
        """Return Σ (r − mean) z."""
        return self.b - mean * self.A[:, :, -1]

    def weights(self, ridge: float) -> FloatArray:
        """Return θ for every action, float64[K, m + 1]. It is 0 for actions that were never played."""
        scale = self.scale
        right = self.centred(self.mean) * scale
        diagonal = np.arange(scale.size)
        theta = np.zeros(right.shape)
        for a in np.flatnonzero(self.A[:, -1, -1] > 0.5):
            regularised = self.A[a] * scale * scale[:, None]
            regularised[diagonal, diagonal] += ridge
            factor = cho_factor(regularised, overwrite_a=True, check_finite=False)
            theta[a] = cho_solve(factor, right[a], check_finite=False) * scale
        return theta

    def loss_on(self, held: "_Sums", ridge: float) -> float:
        """Return the squared error on other rows for a penalty λ, without the term that does not depend on λ."""
        theta = self.weights(ridge)
        cross = held.centred(self.mean)
        squares = theta[:, None, :] @ held.A @ theta[:, :, None]
        return float(squares.sum() - 2.0 * (cross * theta).sum())


def _best_ridge(known: _Sums, held: _Sums) -> float:
    """Return the λ with which a model of the known rows best predicts the held-out rows. Ties go to the smallest λ."""
    losses = [known.loss_on(held, ridge) for ridge in RIDGES]
    return RIDGES[int(np.argmin(losses))]


class RewardModel(ABC):
    """Ridge regressions of the reward, for each fold."""

    def __init__(self, groups: int, size: int, folds: int) -> None:
        """Create untrained regressions.

        Args:
            groups: The number of regressions in each fold.
            size: The number of features m, without the constant, which is the last one.
            folds: The number of folds.
        """
        self.folds = folds
        self.size = size
        width = size + 1
        self._A = np.zeros((folds, groups, width, width))
        self._b = np.zeros((folds, groups, width))
        self._theta = np.zeros((folds, groups, width))
        self._mean = np.full(folds, 0.5)

    @abstractmethod
    def features(self, chunk: Chunk) -> FloatArray:
        """Return a row of numbers for each decision, from which z is computed."""

    @abstractmethod
    def add(self, z: FloatArray, actions: NDArray[np.int64], rewards: FloatArray, fold: NDArray[np.int64]) -> None:
        """Add rows of `features`, with actions, rewards from 0 to 1, and folds."""

    @abstractmethod
    def predict(self, z: FloatArray, fold: NDArray[np.int64]) -> FloatArray:
        """Return q̂ for every action, float64[n, K], using the weights for each row's fold."""

    def _add(self, group: NDArray[np.int64], z: FloatArray, rewards: FloatArray, fold: NDArray[np.int64]) -> None:
        """Add rows z [n, m + 1] to the regressions with these numbers."""
        groups = self._A.shape[1]
        part = fold * groups + group
        order = np.argsort(part, kind="stable")
        starts = np.flatnonzero(np.diff(part[order], prepend=-1))
        for start, stop in zip(starts, [*starts[1:], order.size], strict=True):
            rows = order[start:stop]
            f, a = divmod(int(part[rows[0]]), groups)
            self._A[f, a] += z[rows].T @ z[rows]
            self._b[f, a] += rewards[rows] @ z[rows]

    def fit(self) -> None:
        """Fit the weights for each fold on all other folds.

        With two folds, fit the weights for both folds on all rows.
        """
        parts = [_Sums(*part) for part in zip(self._A, self._b, strict=True)]
        if self.folds == 2:
            whole, ridge = _Sums.of(parts), _best_ridge(parts[0], parts[1])
            self._mean[:], self._theta[:] = whole.mean, whole.weights(ridge)
            return
        for f in range(self.folds):
            held, *others = (parts[(f + step) % self.folds] for step in range(1, self.folds))
            known = _Sums.of([held, *others])
            self._mean[f], self._theta[f] = known.mean, known.weights(_best_ridge(_Sums.of(others), held))


class ClassRewardModel(RewardModel):
    """A regression for each class."""

    def __init__(self, n_features: int, n_classes: int, folds: int) -> None:
        super().__init__(n_classes, size_of(n_features, n_classes, folds), folds)
        self.n_classes = n_classes
        self._reduced = _Reduced(n_features, self.size)

    def features(self, chunk: Chunk) -> FloatArray:
        """Return z for every row, float64[n, m + 1]."""
        n = len(chunk.ids)
        rows = np.repeat(np.arange(n), np.diff(chunk.offsets))
        z = np.zeros((n, self.size + 1))
        z[:, -1] = 1.0
        self._reduced.add(z, rows, chunk.indices, chunk.values)
        return np.clip(z, -VALUE_MAX, VALUE_MAX)

    def add(self, z: FloatArray, actions: NDArray[np.int64], rewards: FloatArray, fold: NDArray[np.int64]) -> None:
        """See `RewardModel.add`."""
        self._add(actions, z, rewards, fold)

    def predict(self, z: FloatArray, fold: NDArray[np.int64]) -> FloatArray:
        """See `RewardModel.predict`."""
        q = np.empty((z.shape[0], self.n_classes))
        for f in range(self.folds):
            rows = fold == f
            q[rows] = self._mean[f] + z[rows] @ self._theta[f].T
        clipped: FloatArray = np.clip(q, 0.0, 1.0)
        return clipped


class ActionRewardModel(RewardModel):
    """A regression over the features of contexts and actions."""

    def __init__(self, blocks: ActionBlocks, folds: int) -> None:
        self._blocks = blocks
        of_context, of_action = sizes_of_sides(blocks.context, blocks.features)
        super().__init__(1, (of_context + 1) * (of_action + 1) - 1, folds)
        self._context = _Reduced(blocks.context, of_context)
        self._action = _Reduced(blocks.features, of_action)

    def features(self, chunk: Chunk) -> FloatArray:
        """Return (x̃, 1), and (ṽ, 1) for each place, for every row."""
        blocks, n = self._blocks, len(chunk.ids)
        rows = np.repeat(np.arange(n), np.diff(chunk.offsets))
        found = np.zeros((n, self._context.size + 1))
        of_actions = np.zeros((n * blocks.places, self._action.size + 1))
        found[:, -1] = of_actions[:, -1] = 1.0
        place, index = np.divmod(chunk.indices.astype(np.int64) - blocks.context, blocks.width)
        of_context, of_action = place < 0, (place >= 0) & (index > 0)  # not the keys
        self._context.add(found, rows[of_context], chunk.indices[of_context], chunk.values[of_context])
        actions = rows[of_action] * blocks.places + place[of_action]
        self._action.add(of_actions, actions, index[of_action] - 1, chunk.values[of_action])
        whole = np.concatenate((found, of_actions.reshape(n, -1)), axis=1)
        return np.clip(whole, -SIDE_MAX, SIDE_MAX)

    def add(self, z: FloatArray, actions: NDArray[np.int64], rewards: FloatArray, fold: NDArray[np.int64]) -> None:
        """See `RewardModel.add`."""
        self._add(np.zeros(actions.size, np.int64), self._products(z, actions), rewards, fold)

    def predict(self, z: FloatArray, fold: NDArray[np.int64]) -> FloatArray:
        """See `RewardModel.predict`."""
        theta = self._theta[fold, 0].reshape(z.shape[0], self._context.size + 1, self._action.size + 1)
        of_actions = np.einsum("ni,nij->nj", z[:, : self._context.size + 1], theta)
        sides = z[:, self._context.size + 1 :].reshape(z.shape[0], self._blocks.places, self._action.size + 1)
        clipped: FloatArray = np.clip(self._mean[fold, None] + np.einsum("nj,nkj->nk", of_actions, sides), 0.0, 1.0)
        return clipped

    def _products(self, z: FloatArray, places: NDArray[np.int64]) -> FloatArray:
        """Return (x̃, 1) ⊗ (ṽ, 1) for one action of each row, float64[n, m + 1]."""
        n, width = z.shape[0], self._action.size + 1
        starts = self._context.size + 1 + places * width
        sides = z[np.arange(n)[:, None], starts[:, None] + np.arange(width)]
        products: FloatArray = (z[:, : self._context.size + 1, None] * sides[:, None, :]).reshape(n, -1)
        return products


SIDE_MAX = 1e50
"""Limit on the magnitude of the features of contexts and actions, whose products are limited to `VALUE_MAX`."""


def sizes_of_sides(context: int, action: int) -> tuple[int, int]:
    """Return the numbers of features of x̃ and ṽ, without the constants. The smaller side is reduced last.

    >>> sizes_of_sides(10, 20), sizes_of_sides(4, 65_536), sizes_of_sides(65_536, 65_536)
    ((10, 20), (4, 50), (15, 15))
    """
    root = int(PRODUCTS_MAX**0.5) - 1
    small = min(context, action, root)
    large = PRODUCTS_MAX // (small + 1) - 1
    return (min(context, large), small) if action < context else (small, min(action, large))


class _Reduced:
    """Maps d features to m by signed hashing, or leaves them unchanged if m = d."""

    def __init__(self, n_features: int, size: int) -> None:
        self.size = size
        self._hashed = words(SIGN_STATE, n_features) if size < n_features else None

    def add(self, z: FloatArray, rows: NDArray[np.int64], indices: NDArray[Any], values: FloatArray) -> None:
        """Add entries to z [n, m + 1]."""
        if self._hashed is None:
            z[rows, indices] = values
            return
        word = self._hashed[indices]
        signs = np.where(word >> np.uint64(63), -1.0, 1.0)
        np.add.at(z, (rows, (word % np.uint64(self.size)).astype(np.int64)), signs * values)


def reward_model(n_features: int, n_classes: int, blocks: ActionBlocks | None, folds: int) -> RewardModel:
    """Create the reward model for decisions among classes, or among actions with features."""
    return ClassRewardModel(n_features, n_classes, folds) if blocks is None else ActionRewardModel(blocks, folds)


REFIT_FIRST = 32
REFIT_GROWTH = 1.5
"""The running model is refitted whenever the number of rows has grown by this factor."""


class RunningRewardModel:
    """A reward model fitted on preceding rows only, so that its predictions are valid in a confidence sequence."""

    def __init__(self, model: RewardModel) -> None:
        """Create a model that predicts with this one, which has two folds and is not trained."""
        self.model = model
        self._seen = 0
        self._refit_at = REFIT_FIRST

    def predict_then_add(self, z: FloatArray, actions: NDArray[np.int64], rewards: FloatArray) -> FloatArray:
        """Add the next rows, and return q̂ [n, K] for them, as predicted by models fitted on earlier rows only."""
        parts = []
        start = 0
        while start < z.shape[0]:
            rows = slice(start, min(z.shape[0], start + self._refit_at - self._seen))
            fold = (self._seen + np.arange(rows.stop - start)) % 2
            parts.append(self.model.predict(z[rows], fold))
            self.model.add(z[rows], actions[rows], rewards[rows], fold)
            self._seen += fold.size
            start = rows.stop
            if self._seen == self._refit_at:
                self.model.fit()
                self._refit_at = int(REFIT_GROWTH * self._refit_at)
        return np.concatenate(parts) if parts else self.model.predict(z, np.zeros(0, np.int64))
