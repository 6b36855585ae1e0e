"""The adversary: a source of rows that sees the learner's probabilities and labels against them.

"Bandit Multiclass Classification" (the Notes), sect. 10, Algorithm 7, for two classes:

    the last answer was wrong:   the same row again
    else, free points are left:  a free point x; class 1 (the paper's 2) if p_t(x) ≥ 1 - max(√V, 1/√T), else class 0
    else:                        any row that has been shown

Symbols: p_t(x) the probability with which the learner would play class 0 at x; T `rounds`; V the share of the free
space that one point takes; free: both classes are still possible for it, given the rows shown and the margin γ.

A learner whose probabilities depend only on the examples that it answered right (Assumption 3: SOBA and Selectron are
such) makes Ω(min(√T, 1/√V)) mistakes on average: if it is ever sure at a free point, it is sure of the wrong class and
hears it again and again; if it never is, it errs with probability √V at each of 1/V points.

Departures from the paper: the free space is a finite set of n points of one mass each, so that V = 1/n. The paper
leaves open how to place them. Here they lie on a sphere, at an angle from each other at which a plane cuts off any one
of them with margin γ, drawn at random until 1,000 draws in a row find no room: of the order of (1/γ)^((d-2)/2) points
in d features, the last of which is constant so that planes need not go through the origin. After a row of class 1 more
points may cease to be free than the one shown, so V is then no bound; the lower bound needs none after it.
"""

from collections.abc import Callable
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import DatasetError, Row
from producers.datasets.nonnegative import nnls
from stream.learners.base import Learner
from stream.wire.events import Features, FloatArray

DRAWS_MAX = 1_000
"""Draws in a row without room for a point, after which the sphere counts as full."""

RESIDUAL_MIN = 1e-9
"""Below this the least-squares residual counts as zero, which means that no plane fits: its square is 1/(1 + ‖v‖²), and
a ‖v‖ of 10⁹ is far from the 2 allowed."""

Probability = Callable[[Features], float]
"""The probability with which a learner would play class 0."""


def cut_margin(cosine: float) -> float:
    """The margin of the plane that cuts one point off the sphere when all others are at least this angle away.

    The plane ⟨v, (z, 1)⟩ = 0 with v = s (z_i, -c), c half way between 1 and the cosine, and s such that ‖v‖ = 2.
    """
    middle = 0.5 * (1.0 + cosine)
    return sqrt(2.0) * (1.0 - middle) / sqrt(1.0 + middle * middle)


def separator_norm(X: FloatArray, signs: FloatArray, margin: float) -> float:
    """‖v‖ of the shortest v with sign_s ⟨v, x_s⟩ ≥ margin for all s; infinity when there is none.

    Least-distance programming by non-negative least squares (Lawson, Hanson, "Solving Least Squares Problems", 1974,
    ch. 23).
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
    """What the adversary sees: the probability of class 0, by asking the learner, which moves nothing.

    At u = 0 the class played is the first one with a positive probability.
    """

    def probability(x: Features) -> float:
        decision = learner.predict(x, 0.0)
        return decision.propensity if decision.action == 0 else 0.0

    return probability


class Adversary:
    """Algorithm 7. Ask for a row with `next_row`, and tell the action played with `answered`.

    >>> from stream.learners import create
    >>> learner = create("soba-diag", n_classes=2, n_features=3, gamma=0.1)
    >>> adversary = Adversary(n_features=3, margin=0.05, rounds=100, seed=0)
    >>> labels = []
    >>> for _ in range(4):
    ...     x, label = adversary.next_row(probability_of_first_class(learner))
    ...     decision = learner.predict(x, 0.5)
    ...     learner.observe(x, decision)
    ...     _ = learner.update(x, decision, int(decision.action == label))
    ...     adversary.answered(decision.action)
    ...     labels.append(label)
    >>> labels  # class 0 is played with probability 0.95, so the second point is of class 1, and stays
    [0, 1, 1, 1]
    """

    n_classes = 2

    def __init__(self, n_features: int, margin: float, rounds: int, seed: int) -> None:
        """Place the points.

        Args:
            n_features: d, at least 3; the last feature is constant.
            margin: γ, with ⟨w_y - w_i, x⟩ ≥ γ for some w of norm at most 1, and ‖x‖ = 1.
            rounds: T, which only sets the threshold.
            seed: Of the points, and of the rows shown when no point is free.
        """
        if n_features < 3 or rounds < 1 or not 0.0 < margin < cut_margin(0.0):
            raise DatasetError(
                f"adversary: n_features of at least 3, rounds of at least 1 and a margin in (0, {cut_margin(0.0):.3f}) "
                f"are accepted; got {n_features}, {rounds} and {margin}"
            )
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self.points = _place(n_features, margin, self._generator)  # float64[n, d], in the order of their showing
        self.margin = margin
        self.threshold = 1.0 - max(sqrt(1.0 / len(self.points)), 1.0 / sqrt(rounds))
        self._indices = np.arange(n_features, dtype=np.int32)
        self._shown: list[int] = []
        self._labels: list[int] = []
        self._current: int | None = None  # place in _shown
        self._wrong = False
        self._next_point = 0

    def next_row(self, probability: Probability) -> Row:
        """The next row, labelled against the learner's probability of class 0."""
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
        """Hear the action that the learner played on the last row."""
        if self._current is None:
            raise ValueError("adversary: answered() tells the answer to a row; ask for one with next_row() first")
        self._wrong = action != self._labels[self._current]

    def _features(self, point: int) -> Features:
        return Features(self._indices, self.points[point])

    def _show(self, point: int, label: int) -> None:
        self._shown.append(point)
        self._labels.append(label)
        self._current = len(self._shown) - 1
        self._next_point = point + 1

    def _next_free(self) -> int | None:
        """The first point not yet shown or passed over for which both classes are possible.

        What is not free now never will be: every row shown only adds conditions.
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
    """Points (z, 1)/√2 with z on the sphere of d - 1 features, far enough from each other for the margin."""
    low, high = 0.0, 1.0
    for _ in range(60):  # cut_margin falls from cosine 0 to 1
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
