"""The reward model of the direct method and of doubly robust estimates: a ridge regression of the bit per action.

    A_a = Σ z zᵀ,  b_a = Σ r z  over the rows in which a was played;  z = (x, 1)
    r̄ = the mean reward;  θ_a = (A_a + λS)⁻¹ (b_a − r̄ A_a e_last);  q̂(x, a) = r̄ + θ_a·z, cut to [0, 1]
    S = diag of the mean z² over all rows: in which units a feature is makes no difference

The sums take constant memory, and they are kept by fold: what all folds but one say of that one is *out of fold*. The
λ of a fold is the one of RIDGES with which some of the others foretell the rest of them best; that, too, follows from
sums: Σ(r − q̂)² = Σr² − 2 b·θ + θᵀAθ. An action that was never played has q̂ = r̄, and one that was seldom played is
near it.

Where d features would take too much memory, x is hashed to m of them, with signs (Weinberger et al., "Feature hashing
for large scale multitask learning", ICML 2009); a model that is coarser then widens intervals, and biases the direct
method alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from stream.estimating.rows import Chunk
from stream.randomness.splitmix import words
from stream.wire.events import FloatArray

SUMS_BYTES_MAX = 8 * 2**20
"""The sums of one model take no more."""

SIZE_MIN = 8
"""The least m."""

VALUE_MAX = 1e100
"""Features are cut to this, so that the sums of their squares are finite."""

RIDGES = (1.0, 10.0, 100.0, 1000.0)

SIGN_STATE = 20_260_301
"""What the hashing of features begins from: it is no part of what is learned."""


def size_of(n_features: int, n_classes: int, folds: int) -> int:
    """How many features the regression has beside the constant: all, or as many as the memory allows.

    >>> size_of(27, 80, 5), size_of(100_000, 80, 5) < 200
    (27, True)
    """
    affordable = int((SUMS_BYTES_MAX / (8 * folds * n_classes)) ** 0.5) - 1
    return min(n_features, max(affordable, SIZE_MIN))


class _Sums(NamedTuple):
    """A and b of every action, and what follows from them."""

    A: FloatArray  # [K, m + 1, m + 1]
    b: FloatArray  # [K, m + 1]

    @classmethod
    def of(cls, parts: Sequence["_Sums"]) -> "_Sums":
        """The sums over all parts. They are never subtracted: one large value would leave nothing but rounding."""
        A, b = parts[0]
        for part in parts[1:]:
            A, b = A + part.A, b + part.b
        return cls(A, b)

    @property
    def mean(self) -> float:
        """r̄; a half where there are no rows."""
        rows = self.A[:, -1, -1].sum()
        return float(self.b[:, -1].sum() / rows) if rows > 0.5 else 0.5

    @property
    def scale(self) -> FloatArray:
        """What makes the root mean square of every feature 1; 0 for those that never were."""
        squares = np.einsum("kii->i", self.A)
        scale = np.zeros(squares.size)
        there = squares > 0.0
        scale[there] = np.sqrt(squares[-1] / squares[there])
        return scale

    def centred(self, mean: float) -> FloatArray:
        """Σ (r − mean) z."""
        return self.b - mean * self.A[:, :, -1]

    def weights(self, ridge: float) -> FloatArray:
        """θ of every action, float64[K, m + 1]; 0 where an action was never played."""
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
        """What these weights miss the rewards of other rows by, squared, less what no weights change."""
        theta = self.weights(ridge)
        cross = held.centred(self.mean)
        squares = theta[:, None, :] @ held.A @ theta[:, :, None]
        return float(squares.sum() - 2.0 * (cross * theta).sum())


def _best_ridge(known: _Sums, held: _Sums) -> float:
    """The λ with which the known rows foretell the held ones best; the first of equals."""
    losses = [known.loss_on(held, ridge) for ridge in RIDGES]
    return RIDGES[int(np.argmin(losses))]


class RewardModel:
    """Ridge regressions of the bit per action, by fold."""

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
        """The z of every row, float64[n, m + 1]."""
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

    def add(
        self, z: FloatArray, actions: NDArray[np.int64], rewards: NDArray[np.int64], fold: NDArray[np.int64]
    ) -> None:
        """Take in rows: z [n, m + 1], the actions played, their bits, and the fold of each."""
        group = fold * self.n_classes + actions
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        for start, stop in zip(starts, [*starts[1:], order.size], strict=True):
            rows = order[start:stop]
            f, a = divmod(int(group[rows[0]]), self.n_classes)
            self._A[f, a] += z[rows].T @ z[rows]
            self._b[f, a] += rewards[rows] @ z[rows]

    def fit(self) -> None:
        """Set the weights of each fold to those of all the others; of two folds, those of both to what both say."""
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
        """q̂ of every action, float64[n, K], by the weights of each row's fold."""
        q = np.empty((z.shape[0], self.n_classes))
        for f in range(self.folds):
            rows = fold == f
            q[rows] = self._mean[f] + z[rows] @ self._theta[f].T
        clipped: FloatArray = np.clip(q, 0.0, 1.0)
        return clipped


REFIT_FIRST = 32
REFIT_GROWTH = 1.5
"""The running model is fitted anew when it has seen so many rows, and then each time they are more by this factor."""


class RunningRewardModel:
    """The reward model that knows only the rows before each: predictable, as a confidence sequence needs it."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.model = RewardModel(n_features, n_classes, folds=2)
        self._seen = 0
        self._refit_at = REFIT_FIRST

    def predict_then_add(self, z: FloatArray, actions: NDArray[np.int64], rewards: NDArray[np.int64]) -> FloatArray:
        """q̂ [n, K] of rows in their order, each by a model of rows before it; they are taken in afterwards."""
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
