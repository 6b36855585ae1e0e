"""Intervals for means of bounded or non-negative terms, valid for every sample size.

*Empirical Bernstein*, for one sample size: Maurer, Pontil, "Empirical Bernstein bounds and sample variance
penalization", COLT 2009, theorem 4. For n independent terms in [0, b] with sample variance v, the following holds with
probability 1 − δ:

    E X  ≥  mean − √(2 v ln(2/δ)/n) − 7 b ln(2/δ) / (3 (n − 1))

*Confidence sequence*, for all sample sizes simultaneously: Waudby-Smith, Wu, Ramdas, Karampatziakis, Mineiro,
"Anytime-valid off-policy inference for contextual bandits", 2022, based on Howard, Ramdas, McAuliffe, Sekhon,
"Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021, and Waudby-Smith, Ramdas, "Estimating means of
bounded random variables by betting", 2024. The terms φ_t ≥ −k have the conditional means m_t, and are scaled:
ξ_t = φ_t/(k + 1). ξ̂_t ≤ 1/(k + 1) is a prediction from the terms before t. For each λ in (0, 1), with
ψ(λ) = −ln(1 − λ) − λ,

    exp(λ Σ (ξ_t − m_t/(k + 1)) − ψ(λ) Σ (ξ_t − ξ̂_t)²)

is a supermartingale with initial value 1, because ξ_t − ξ̂_t ≥ −1 (Fan, Grama, Liu 2015). A mixture over a grid of λ is
also a supermartingale. The probability that it ever exceeds 1/δ is at most δ (Ville). Solving for the sum gives a lower
bound on the running mean of the m_t that holds at all t simultaneously, even if the m_t change.

The sequence uses a mixture over λ instead of a λ_t per row. With a λ_t per row, it would bound the mean of the m_t
weighted by λ_t. For a changing policy, that weighted mean differs from the mean value.
"""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import numpy as np

from stream.wire.records import FloatArray

LAMBDAS: FloatArray = 0.8 * 0.5 ** np.arange(14.0)
"""The grid of λ. For Σ(ξ − ξ̂)² between 1 and 10⁸, one of the values is within a factor of √2 of the optimum."""

NEWTON_STEPS = 60
NEWTON_TOLERANCE = 1e-10


class Interval(NamedTuple):
    """An interval with its lower and upper limits."""

    low: float
    high: float


def bernstein_low(n: int, mean: float, variance: float, span: float, delta: float) -> float:
    """Return Maurer and Pontil's lower limit.

    Args:
        n: The number of terms, at least 2.
        mean: The mean of the terms.
        variance: The sample variance of the terms (divisor n − 1).
        span: The width of the range of the terms.
        delta: The error probability.

    >>> round(bernstein_low(1000, 0.5, 0.25, 1.0, 0.025), 4)
    0.443
    """
    log_term = log(2.0 / delta)
    return mean - sqrt(2.0 * variance * log_term / n) - 7.0 * span * log_term / (3.0 * (n - 1))


def mixture_bound(variance_sums: FloatArray, delta: float) -> FloatArray:
    """Return the s with Σ_j exp(λ_j s − ψ(λ_j) V)/J = 1/δ for each V, using Newton's method from above.

    >>> mixture_bound(np.array([0.0, 100.0]), 0.025).round(2).tolist()
    [7.82, 40.61]
    """
    V = np.asarray(variance_sums, dtype=np.float64)[..., None]
    shift = -(-np.log1p(-LAMBDAS) - LAMBDAS) * V - log(LAMBDAS.size)  # [..., J]
    target = log(1.0 / delta)
    s: FloatArray = ((target - shift) / LAMBDAS).min(axis=-1)  # at this s, one term in the sum equals 1/δ
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
    """The cumulative statistics of a lower confidence sequence after each row in a chunk."""

    n: FloatArray  # [m], number of rows up to and including this row
    sums: FloatArray  # [m], Σ ξ
    variance_sums: FloatArray  # [m], Σ (ξ − ξ̂)²


class LowerSequence:
    """A lower confidence sequence for the running mean of the terms' conditional means, for terms of at least −k."""

    def __init__(self, below: float, delta: float) -> None:
        """Initialise the sequence.

        Args:
            below: The constant k ≥ 0; no term is less than −k.
            delta: Upper limit on the probability that the mean is ever below the sequence.
        """
        self._scale = below + 1.0
        self._delta = delta
        self._n = 0
        self._sum = 0.0
        self._variance_sum = 0.0

    def extend(self, terms: FloatArray) -> Cumulated:
        """Add terms φ in order, float64[m].

        Raises:
            ValueError: a term is below −k.
        """
        if terms.size and terms.min() < 1.0 - self._scale - 1e-9:  # tolerance for rounding errors
            raise ValueError(
                f"confidence sequence: expected terms of at least {1.0 - self._scale:g}; got {terms.min()!r}"
            )
        xi = terms / self._scale
        n = self._n + np.arange(1.0, terms.size + 1.0)
        sums = self._sum + np.cumsum(xi)
        before = np.concatenate(([self._sum], sums[:-1])) if terms.size else sums
        guess = np.minimum(
            (0.5 / self._scale + before) / n, 1.0 / self._scale
        )  # the prediction ξ̂, from earlier rows only; initially one half
        variance_sums = self._variance_sum + np.cumsum((xi - guess) ** 2)
        if terms.size:
            self._n, self._sum, self._variance_sum = self._n + terms.size, float(sums[-1]), float(variance_sums[-1])
        return Cumulated(n, sums, variance_sums)

    def low(self, at: Cumulated) -> FloatArray:
        """Return the lower limit after each of these rows, float64[m]."""
        bound = mixture_bound(at.variance_sums, self._delta)
        lows: FloatArray = self._scale * (at.sums - bound) / at.n
        return lows

    def now(self) -> float:
        """Return the lower limit after all rows so far, or −∞ before the first row."""
        if self._n == 0:
            return -np.inf
        last = Cumulated(np.array([float(self._n)]), np.array([self._sum]), np.array([self._variance_sum]))
        return float(self.low(last)[0])

    def state(self) -> list[float]:
        """Return the state (n, Σ ξ, Σ (ξ − ξ̂)²) for `load`."""
        return [self._n, self._sum, self._variance_sum]

    def load(self, state: Sequence[float]) -> None:
        """Restore a state returned by `state`."""
        self._n, self._sum, self._variance_sum = int(state[0]), *state[1:]

    def __add__(self, other: "LowerSequence") -> "LowerSequence":
        """Combine the sequences from two streams with the same k and delta; see `RunningEstimate.__add__`."""
        both = LowerSequence(self._scale - 1.0, self._delta)
        both.load([one + another for one, another in zip(self.state(), other.state(), strict=True)])
        return both


class Sequence01:
    """A confidence sequence for a mean of bits: one lower sequence for the reward, and one for 1 − reward."""

    def __init__(self, below: float, delta: float) -> None:
        """Initialise the lower sequences for both sides, each with half of delta; see `LowerSequence`."""
        self._sides = (LowerSequence(below, delta / 2.0), LowerSequence(below, delta / 2.0))

    def extend(self, of_reward: FloatArray, of_failure: FloatArray, at: Sequence[int] = ()) -> list[Interval]:
        """Add rows with the terms for both sides and return the intervals after the rows at these indices."""
        places = list(at)
        ends = []
        for side, terms in zip(self._sides, (of_reward, of_failure), strict=True):
            cumulated = side.extend(terms)
            ends.append(side.low(Cumulated(*(column[places] for column in cumulated))))
        return [within_01(low, 1.0 - mirrored) for low, mirrored in zip(*(end.tolist() for end in ends), strict=True)]

    def now(self) -> Interval:
        """Return the interval after all rows so far."""
        low, mirrored = (side.now() for side in self._sides)
        return within_01(low, 1.0 - mirrored)

    def state(self) -> list[float]:
        """Return the state of both sides, for `load`."""
        return [number for side in self._sides for number in side.state()]

    def load(self, state: Sequence[float]) -> None:
        """Restore a state returned by `state`."""
        for place, side in enumerate(self._sides):
            side.load(state[3 * place : 3 * place + 3])


def within_01(low: float, high: float) -> Interval:
    """Limit an interval to [0, 1]. A limit that is NaN after an overflow becomes 0 or 1.

    >>> within_01(-0.5, float("nan"))
    Interval(low=0.0, high=1.0)
    """
    return Interval(min(float(low), 1.0) if low > 0.0 else 0.0, max(float(high), 0.0) if high < 1.0 else 1.0)
