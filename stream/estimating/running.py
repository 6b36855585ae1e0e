"""What a policy would have earned, over rows that come one after the other: sums, to be stored and added."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

from stream.estimating.intervals import Interval, Sequence01, within_01
from stream.estimating.judge import ESS_MIN, Moments
from stream.wire.events import FloatArray

CONFIDENCE = 0.95


class LiveEstimate(NamedTuple):
    """One estimate. None: there is none."""

    estimator: str
    value: float | None
    normal: Interval | None  # about right for many rows of like weights, at one moment; none below ESS_MIN
    anytime: Interval | None  # holds at all moments at once


class RunningEstimate:
    """The sums of a policy's weights and of the bits, and the confidence sequence of ips."""

    def __init__(self) -> None:
        self.weights, self.weighted_rewards, self.rewards = Moments(), Moments(), Moments()
        self._sequence = Sequence01(0.0, 1.0 - CONFIDENCE)

    def add(self, weights: FloatArray, rewards: FloatArray, at: Sequence[int] = ()) -> list[Interval]:
        """Take in rows by their weights and bits, float64[m] each; the anytime intervals after those at some places."""
        self.weights.add(weights)
        self.weighted_rewards.add(weights * rewards)
        self.rewards.add(rewards)
        return self._sequence.extend(weights * rewards, weights * (1.0 - rewards), at)

    def estimates(self) -> tuple[LiveEstimate, ...]:
        """By ips and by snips; none before the first row."""
        return (self.ips(), self.snips()) if self.weights.n else ()

    def ips(self) -> LiveEstimate:
        """The mean of the weighted bits, of at least one row."""
        moments, interval = self.weighted_rewards, None
        if self.weights.ess >= ESS_MIN:
            interval = _normal(moments.mean, sqrt(moments.variance / moments.n))
        return LiveEstimate("ips", moments.mean, interval, self._sequence.now())

    def snips(self) -> LiveEstimate:
        """The same by the sum of the weights; no value where that is 0."""
        weight_sum = self.weights.sum
        if weight_sum == 0.0:
            return LiveEstimate("snips", None, None, None)
        value = self.weighted_rewards.sum / weight_sum
        # Linearised: Σ w² (r − v)²/(Σ w)², in which r² = r (Owen, "Monte Carlo theory, methods and examples", 9.2).
        square_sum = (1.0 - 2.0 * value) * self.weighted_rewards.square_sum + value**2 * self.weights.square_sum
        has_interval = self.weights.ess >= ESS_MIN
        interval = _normal(value, sqrt(max(square_sum, 0.0)) / weight_sum) if has_interval else None
        return LiveEstimate("snips", value, interval, None)

    def state(self) -> list[list[float]]:
        """The sums, for JSON; `load` takes them over."""
        moments = (self.weights, self.weighted_rewards, self.rewards)
        return [*([m.n, m.sum, m.square_sum, m.largest] for m in moments), self._sequence.state()]

    def load(self, state: Sequence[Sequence[float]]) -> None:
        """Go on with the sums of another."""
        for moments, (n, total, square_sum, largest) in zip(
            (self.weights, self.weighted_rewards, self.rewards), state, strict=False
        ):
            moments.n, moments.sum, moments.square_sum, moments.largest = int(n), total, square_sum, largest
        self._sequence.load(state[-1])

    def __add__(self, other: "RunningEstimate") -> "RunningEstimate":
        """Both together: what the rows of two partitions come to.

        The sums of the confidence sequence are added, too: at each λ the product of two supermartingales that take
        turns is one, so that the mixture of the products holds as each does.
        """
        both = RunningEstimate()
        mine, others = self.state(), other.state()
        sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(mine, others, strict=True)]
        for place in range(3):
            sums[place][3] = max(mine[place][3], others[place][3])
        both.load(sums)
        return both


def _normal(value: float, deviation: float) -> Interval | None:
    """By a normal law; None for rows that are all alike, which say nothing of how others may differ."""
    if deviation <= 0.0:
        return None
    reach = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0) * deviation
    return within_01(value - reach, value + reach)
