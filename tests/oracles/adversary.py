"""An adversary whose labels depend on the learner's probabilities.

"Bandit Multiclass Classification" (the Notes), sect. 10, Algorithm 7, for two classes:

    the last answer was wrong:   the same row again
    else, free points are left:  a free point x; class 1 (the paper's 2) if p_t(x) ≥ 1 - max(√V, 1/√T), else class 0
    else:                        any row that has been shown

Symbols: p_t(x) is the probability with which the learner would play class 0 at x, T is `rounds`, and V is the share of
the free space that one point occupies. A point is free if both classes are still possible for it, given the previous
rows and the margin γ.

A learner whose probabilities depend only on its right answers (Assumption 3; SOBA and Selectron are examples) makes
Ω(min(√T, 1/√V)) mistakes on average. A learner that is ever certain at a free point is certain of the wrong class, and
receives this point repeatedly. Any other learner errs with probability √V at each of 1/V points.

Departures from the paper: the free space is a finite set of n points of equal mass, so V = 1/n. The paper does not
specify the positions of the points. Here, the points are on a sphere, far enough apart for a plane to separate each
point from the others with margin γ. They are drawn at random until 1,000 consecutive draws fail, which gives about
(1/γ)^((d-2)/2) points in d features. The last feature is constant, so that planes need not pass through the origin.
After a row of class 1, other points may also cease to be free, so a row may remove more than the share V of the free
space. The lower bound on the mistakes is still valid, because it uses V only up to the first row of class 1.
"""

from collections.abc import Callable
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from producers.datasets.base import Row
from stream.learners.base import Learner
from stream.wire.records import Features, FloatArray

DRAWS_MAX = 1_000
"""The sphere is considered full after this number of consecutive failed draws."""

RESIDUAL_MIN = 1e-9
"""A least-squares residual smaller than this is treated as zero, which means that no separating plane exists. The
square of the residual is 1/(1 + ‖v‖²), and ‖v‖ = 10⁹ far exceeds the limit of 2."""

Probability = Callable[[Features], float]
"""The probability with which a learner would play class 0."""


def cut_margin(cosine: float) -> float:
    """Return the margin of the plane that separates a point on the sphere from all points at least this angle away.

    The plane is ⟨v, (z, 1)⟩ = 0 with v = s (z_i, -c). c is halfway between 1 and the cosine, and s makes ‖v‖ = 2.
    """
    middle = 0.5 * (1.0 + cosine)
    return sqrt(2.0) * (1.0 - middle) / sqrt(1.0 + middle * middle)


def separator_norm(X: FloatArray, signs: FloatArray, margin: float) -> float:
    """Return ‖v‖ of the shortest v with sign_s ⟨v, x_s⟩ ≥ margin for all s, or infinity if no such v exists.

    Solves the least-distance problem with non-negative least squares (Lawson, Hanson, "Solving Least Squares Problems",
    1974, ch. 23).
    """
    G = signs[:, np.newaxis] * X
    stacked = np.vstack([G.T, np.full(len(G), margin)])
    goal = np.zeros(len(stacked))
    goal[-1] = 1.0
    solution, residual_norm = nnls(stacked, goal)
    if residual_norm <= RESIDUAL_MIN:
        return float("inf")
    residual = stacked @ solution - goal
    return float(np.linalg.norm(residual[:-1] / residual[-1]))


def probability_of_first_class(learner: Learner) -> Probability:
    """Return the function that the adversary observes: the learner's probability of class 0.

    The function does not change the learner. With u = 0, the learner plays the lowest class that has a positive
    probability.
    """

    def probability(x: Features) -> float:
        decision = learner.predict(x, 0.0)
        return decision.propensity if decision.action == 0 else 0.0

    return probability


class Adversary:
    """Algorithm 7. Call `next_row` for the next row, then `answered` with the learner's action."""

    def __init__(self, n_features: int, margin: float, rounds: int, seed: int) -> None:
        """Place the points on the sphere.

        Args:
            n_features: d, at least 3. The last feature is constant.
            margin: γ, at most `cut_margin(0.0)`, with ⟨w_y - w_i, x⟩ ≥ γ for some w of norm at most 1, and ‖x‖ = 1.
            rounds: T, used only for the threshold.
            seed: Seed for the points, and for the rows shown when no point is free.
        """
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self.points = _place(n_features, margin, self._generator)  # float64[n, d], in the order shown
        self.margin = margin
        self.threshold = 1.0 - max(sqrt(1.0 / len(self.points)), 1.0 / sqrt(rounds))
        self._indices = np.arange(n_features, dtype=np.int32)
        self._shown: list[int] = []
        self._labels: list[int] = []
        self._current: int | None = None  # index in _shown
        self._wrong = False
        self._next_point = 0

    def next_row(self, probability: Probability) -> Row:
        """Return the next row. Its label depends on the learner's probability of class 0."""
        if self._current is None:
            self._show(self._next_point, 0)  # line 1
        elif not self._wrong:
            point = self._next_free()
            if point is None:
                self._current = int(self._generator.integers(len(self._shown)))  # line 9
            else:
                self._show(point, 1 if probability(self._features(point)) >= self.threshold else 0)  # lines 6-7
        assert self._current is not None
        return Row(self._features(self._shown[self._current]), self._labels[self._current])

    def answered(self, action: int) -> None:
        """Record the action that the learner played on the last row."""
        if self._current is None:
            raise ValueError("adversary: answered() requires a row; call next_row() first")
        self._wrong = action != self._labels[self._current]

    def _features(self, point: int) -> Features:
        return Features(self._indices, self.points[point])

    def _show(self, point: int, label: int) -> None:
        self._shown.append(point)
        self._labels.append(label)
        self._current = len(self._shown) - 1
        self._next_point = point + 1

    def _next_free(self) -> int | None:
        """Return the first remaining point for which both classes are possible.

        A point that is not free never becomes free again, because rows only add conditions.
        """
        for point in range(self._next_point, len(self.points)):
            X = self.points[[*self._shown, point]]
            signs = np.where(np.array([*self._labels, 0]) == 0, 1.0, -1.0)
            if separator_norm(X, signs, self.margin) <= 2.0:
                signs[-1] = -1.0
                if separator_norm(X, signs, self.margin) <= 2.0:
                    return point
        self._next_point = len(self.points)
        return None


def _place(n_features: int, margin: float, generator: np.random.Generator) -> FloatArray:
    """Place points (z, 1)/√2 with z on the sphere in d - 1 dimensions, at the angle required by the margin."""
    low, high = 0.0, 1.0
    for _ in range(60):  # bisection; cut_margin decreases as the cosine increases
        cosine = 0.5 * (low + high)
        low, high = (cosine, high) if cut_margin(cosine) > margin else (low, cosine)
    kept: NDArray[np.float64] = np.zeros((0, n_features - 1))
    misses = 0
    while misses < DRAWS_MAX:
        z = generator.standard_normal(n_features - 1)
        z /= np.linalg.norm(z)
        if kept.size == 0 or (kept @ z).max() <= low:
            kept = np.vstack([kept, z])
            misses = 0
        else:
            misses += 1
    return np.hstack([kept, np.ones((len(kept), 1))]) / sqrt(2.0)
