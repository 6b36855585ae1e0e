"""Intervals for means of bounded, or of non-negative terms, that hold for every sample size.

*Empirical Bernstein*, for one sample size: Maurer, Pontil, "Empirical Bernstein bounds and sample variance
penalization", COLT 2009, theorem 4. For n independent terms in [0, b], of sample variance v, with probability 1 − δ

    E X  ≥  mean − √(2 v ln(2/δ)/n) − 7 b ln(2/δ) / (3 (n − 1))

*Confidence sequence*, for all sample sizes at once: Waudby-Smith, Wu, Ramdas, Karampatziakis, Mineiro, "Anytime-valid
off-policy inference for contextual bandits", 2022, after Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", 2021, and Waudby-Smith, Ramdas, "Estimating means of bounded random
variables by betting", 2024. Terms φ_t ≥ −k with the conditional means m_t, scaled: ξ_t = φ_t/(k + 1); a guess
ξ̂_t ≤ 1/(k + 1) from the terms before t. For each λ in (0, 1), ψ(λ) = −ln(1 − λ) − λ,

    exp(λ Σ (ξ_t − m_t/(k + 1)) − ψ(λ) Σ (ξ_t − ξ̂_t)²)

is a supermartingale that begins at 1, because ξ_t − ξ̂_t ≥ −1 (Fan, Grama, Liu 2015), and so is a mixture of them over
a grid of λ. It ever exceeds 1/δ with probability δ at most (Ville). Solved for the sum, this bounds the running mean of
the m_t from below at all t at once, whether they stay the same or change from row to row.

The λ are mixed, not chosen as the rows come: a λ_t of its own for each row would bound a mean of the m_t weighted by
them, which is not the mean value of a policy that changes.
"""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import numpy as np

from stream.wire.events import FloatArray

LAMBDAS: FloatArray = 0.8 * 0.5 ** np.arange(14.0)
"""The grid: for Σ(ξ − ξ̂)² between 1 and 10⁸ one of them is within a factor √2 of the best."""

NEWTON_STEPS = 60
NEWTON_TOLERANCE = 1e-10


class Interval(NamedTuple):
    """A lower and an upper end."""

    low: float
    high: float


def bernstein_low(n: int, mean: float, variance: float, span: float, delta: float) -> float:
    """The lower end of Maurer and Pontil.

    Args:
        n: how many terms there are, at least 2.
        mean: their mean.
        variance: their sample variance, with n − 1.
        span: the width of the interval that they all lie in.
        delta: the probability of an error.

    >>> round(bernstein_low(1000, 0.5, 0.25, 1.0, 0.025), 4)
    0.443
    """
    log_term = log(2.0 / delta)
    return mean - sqrt(2.0 * variance * log_term / n) - 7.0 * span * log_term / (3.0 * (n - 1))


def mixture_bound(variance_sums: FloatArray, delta: float) -> FloatArray:
    """The s at which Σ_j exp(λ_j s − ψ(λ_j) V)/J is 1/δ, for each V; convex in s, so that Newton's steps go down to it.

    >>> mixture_bound(np.array([0.0, 100.0]), 0.025).round(2).tolist()
    [7.82, 40.61]
    """
    V = np.asarray(variance_sums, dtype=np.float64)[..., None]
    shift = -(-np.log1p(-LAMBDAS) - LAMBDAS) * V - log(LAMBDAS.size)  # [..., J]
    target = log(1.0 / delta)
    s: FloatArray = ((target - shift) / LAMBDAS).min(axis=-1)  # there one term alone reaches 1/δ
    for _ in range(NEWTON_STEPS):
        exponents = LAMBDAS * s[..., None] + shift
        largest = exponents.max(axis=-1)
        shares = np.exp(exponents - largest[..., None])
        total = shares.sum(axis=-1)
        excess = largest + np.log(total) - target
        s -= excess * total / (shares * LAMBDAS).sum(axis=-1)
        if np.abs(excess).max(initial=0.0) < NEWTON_TOLERANCE:
            break
    return s


class Cumulated(NamedTuple):
    """A lower confidence sequence after each of some rows, before it is solved."""

    n: FloatArray  # [m], rows so far
    sums: FloatArray  # [m], Σ ξ
    variance_sums: FloatArray  # [m], Σ (ξ − ξ̂)²


class LowerSequence:
    """A lower confidence sequence of the running mean of conditional means, for terms of at least −k."""

    def __init__(self, below: float, delta: float) -> None:
        """Begin.

        Args:
            below: k, at least 0: no term is less than −k.
            delta: the probability that the mean is ever below the sequence.
        """
        self._scale = below + 1.0
        self._delta = delta
        self._n = 0
        self._sum = 0.0
        self._variance_sum = 0.0

    def extend(self, terms: FloatArray) -> Cumulated:
        """Take in terms φ in their order, float64[m].

        Raises:
            ValueError: a term is below −k.
        """
        if terms.size and terms.min() < 1.0 - self._scale - 1e-9:  # rounding
            raise ValueError(
                f"confidence sequence: terms of at least {1.0 - self._scale:g} are expected; got {terms.min()!r}"
            )
        xi = terms / self._scale
        n = self._n + np.arange(1.0, terms.size + 1.0)
        sums = self._sum + np.cumsum(xi)
        before = np.concatenate(([self._sum], sums[:-1])) if terms.size else sums
        guess = np.minimum((0.5 / self._scale + before) / n, 1.0 / self._scale)  # from a half, of the rows before
        variance_sums = self._variance_sum + np.cumsum((xi - guess) ** 2)
        if terms.size:
            self._n, self._sum, self._variance_sum = self._n + terms.size, float(sums[-1]), float(variance_sums[-1])
        return Cumulated(n, sums, variance_sums)

    def low(self, at: Cumulated) -> FloatArray:
        """The lower ends after each of these rows, float64[m]."""
        bound = mixture_bound(at.variance_sums, self._delta)
        lows: FloatArray = self._scale * (at.sums - bound) / at.n
        return lows

    def now(self) -> float:
        """The lower end after all rows so far; −∞ before the first."""
        if self._n == 0:
            return -np.inf
        last = Cumulated(np.array([float(self._n)]), np.array([self._sum]), np.array([self._variance_sum]))
        return float(self.low(last)[0])

    def state(self) -> list[float]:
        """What it has taken in: n, Σ ξ, Σ (ξ − ξ̂)²; `load` takes them over."""
        return [self._n, self._sum, self._variance_sum]

    def load(self, state: Sequence[float]) -> None:
        """Go on with what another has taken in."""
        self._n, self._sum, self._variance_sum = int(state[0]), *state[1:]


class Sequence01:
    """A confidence sequence for a mean of bits: from below for the reward, from above 1 less that for 1 − reward."""

    def __init__(self, below: float, delta: float) -> None:
        """Begin; see LowerSequence. Each side has half of delta."""
        self._sides = (LowerSequence(below, delta / 2.0), LowerSequence(below, delta / 2.0))

    def extend(self, of_reward: FloatArray, of_failure: FloatArray, at: Sequence[int] = ()) -> list[Interval]:
        """Take in rows by the terms of both sides; the intervals after the rows at these places."""
        places = list(at)
        ends = []
        for side, terms in zip(self._sides, (of_reward, of_failure), strict=True):
            cumulated = side.extend(terms)
            ends.append(side.low(Cumulated(*(column[places] for column in cumulated))))
        return [within_01(low, 1.0 - mirrored) for low, mirrored in zip(*(end.tolist() for end in ends), strict=True)]

    def now(self) -> Interval:
        """The interval after all rows so far."""
        low, mirrored = (side.now() for side in self._sides)
        return within_01(low, 1.0 - mirrored)

    def state(self) -> list[float]:
        """What both sides have taken in; `load` takes it over."""
        return [number for side in self._sides for number in side.state()]

    def load(self, state: Sequence[float]) -> None:
        """Go on with what another has taken in."""
        for place, side in enumerate(self._sides):
            side.load(state[3 * place : 3 * place + 3])


def within_01(low: float, high: float) -> Interval:
    """The part of an interval that a mean of bits can be in; an end that overflowed to NaN says nothing.

    >>> within_01(-0.5, float("nan"))
    Interval(low=0.0, high=1.0)
    """
    return Interval(min(float(low), 1.0) if low > 0.0 else 0.0, max(float(high), 0.0) if high < 1.0 else 1.0)
