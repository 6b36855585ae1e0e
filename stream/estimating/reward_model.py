"""The reward model for the direct method and doubly robust estimates: one ridge regression of the reward per action.

    A_a = Σ z zᵀ,  b_a = Σ r z  over the rows in which a was played;  z = (x, 1)
    r̄ = the mean reward;  θ_a = (A_a + λS)⁻¹ (b_a − r̄ A_a e_last);  q̂(x, a) = r̄ + θ_a·z, limited to [0, 1]
    S = the diagonal matrix of the mean z² over all rows, so that the model does not depend on the units of the features

The sums are kept separately for each fold, and use constant memory. An *out-of-fold* prediction uses all folds except
the row's own. A fold's λ is the value in RIDGES with the best predictions for held-out folds. The error is also
computed from the sums: Σ(r − q̂)² = Σr² − 2 b·θ + θᵀAθ. For an action that was never played, q̂ equals r̄; for a rare
action, it is close to r̄.

If d features require too much memory, x is mapped to m features by signed hashing (Weinberger et al., "Feature hashing
for large scale multitask learning", ICML 2009). The coarser model widens the intervals, but biases only the direct
method.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from stream.estimating.rows import Chunk
from stream.randomness.draws import words
from stream.wire.records import FloatArray

SUMS_BYTES_MAX = 8 * 2**20
"""Limit on the memory for one model's sums."""

SIZE_MIN = 8
"""Minimum number of features m after hashing."""

VALUE_MAX = 1e100
"""Features are limited to this magnitude, so that the sums of their squares are finite."""

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


class RewardModel:
    """Ridge regressions of the reward, one per action and fold."""

    def __init__(self, n_features: int, n_classes: int, folds: int) -> None:
        self.folds = folds
        self.n_classes = n_classes
        self.size = size_of(n_features, n_classes, folds)
        width = self.size + 1
        self._A = np.zeros((folds, n_classes, width, width))
        self._b = np.zeros((folds, n_classes, width))
        self._hashed = words(SIGN_STATE, n_features) if self.size < n_features else None
        self._theta = np.zeros((folds, n_classes, width))
        self._mean = np.full(folds, 0.5)

    def features(self, chunk: Chunk) -> FloatArray:
        """Return z for every row, float64[n, m + 1]."""
        n = len(chunk.ids)
        rows = np.repeat(np.arange(n), np.diff(chunk.offsets))
        z = np.zeros((n, self.size + 1))
        z[:, -1] = 1.0
        if self._hashed is None:
            z[rows, chunk.indices] = chunk.values
        else:
            word = self._hashed[chunk.indices]
            signs = np.where(word >> np.uint64(63), -1.0, 1.0)
            np.add.at(z, (rows, (word % np.uint64(self.size)).astype(np.int64)), signs * chunk.values)
        return np.clip(z, -VALUE_MAX, VALUE_MAX)

    def add(self, z: FloatArray, actions: NDArray[np.int64], rewards: FloatArray, fold: NDArray[np.int64]) -> None:
        """Add rows with z [n, m + 1], actions, rewards from 0 to 1, and folds."""
        group = fold * self.n_classes + actions
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        for start, stop in zip(starts, [*starts[1:], order.size], strict=True):
            rows = order[start:stop]
            f, a = divmod(int(group[rows[0]]), self.n_classes)
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

    def predict(self, z: FloatArray, fold: NDArray[np.int64]) -> FloatArray:
        """Return q̂ for every action, float64[n, K], using the weights for each row's fold."""
        q = np.empty((z.shape[0], self.n_classes))
        for f in range(self.folds):
            rows = fold == f
            q[rows] = self._mean[f] + z[rows] @ self._theta[f].T
        clipped: FloatArray = np.clip(q, 0.0, 1.0)
        return clipped


REFIT_FIRST = 32
REFIT_GROWTH = 1.5
"""The running model is refitted whenever the number of rows has grown by this factor."""


class RunningRewardModel:
    """A reward model fitted on preceding rows only, so that its predictions are valid in a confidence sequence."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.model = RewardModel(n_features, n_classes, folds=2)
        self._seen = 0
        self._refit_at = REFIT_FIRST

    def predict_then_add(self, z: FloatArray, actions: NDArray[np.int64], rewards: FloatArray) -> FloatArray:
        """Add the next rows, and return q̂ [n, K] for them, as predicted by models fitted on earlier rows only."""
        q = np.empty((z.shape[0], self.model.n_classes))
        start = 0
        while start < z.shape[0]:
            rows = slice(start, min(z.shape[0], start + self._refit_at - self._seen))
            fold = (self._seen + np.arange(rows.stop - start)) % 2
            q[rows] = self.model.predict(z[rows], fold)
            self.model.add(z[rows], actions[rows], rewards[rows], fold)
            self._seen += fold.size
            start = rows.stop
            if self._seen == self._refit_at:
                self.model.fit()
                self._refit_at = int(REFIT_GROWTH * self._refit_at)
        return q
