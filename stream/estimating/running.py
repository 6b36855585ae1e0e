"""Running off-policy estimates for a stream of rows with rewards from 0 to 1.

The state consists of sums, which can be stored and combined.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

from stream.estimating.evaluation import ESS_MIN, Moments
from stream.estimating.intervals import Interval, Sequence01, within_01
from stream.estimating.live_results import LiveEstimate
from stream.wire.records import FloatArray
from stream.wire.rewards import BITS, RewardRange

CONFIDENCE = 0.95


class RunningEstimate:
    """The sums of a policy's weights and rewards, and the confidence sequence for ips."""

    def __init__(self) -> None:
        self.weights, self.weighted_rewards, self.rewards = Moments(), Moments(), Moments()
        self._cross_sum = 0.0  # Σ w² r
        self._sequence = Sequence01(0.0, 1.0 - CONFIDENCE)

    def add(self, weights: FloatArray, rewards: FloatArray, at: Sequence[int] = ()) -> list[Interval]:
        """Add rows with weights and rewards from 0 to 1, float64[m] each.

        Returns the anytime-valid interval after each row in `at`.
        """
        self.weights.add(weights)
        self.weighted_rewards.add(weights * rewards)
        self.rewards.add(rewards)
        self._cross_sum += float((weights * rewards) @ weights)
        return self._sequence.extend(weights * rewards, weights * (1.0 - rewards), at)

    def estimates(self, rewards: RewardRange = BITS) -> tuple[LiveEstimate, ...]:
        """Return the ips and snips estimates in the units of the rewards, or an empty tuple before the first row."""
        found = (self.ips(), self.snips()) if self.weights.n else ()
        return tuple(
            LiveEstimate(
                estimator,
                None if value is None else rewards.value(value),
                *(None if one is None else Interval(*map(rewards.value, one)) for one in intervals),
            )
            for estimator, value, *intervals in found
        )

    def ips(self) -> LiveEstimate:
        """Return the mean of the weighted rewards. Requires at least one row."""
        moments, interval = self.weighted_rewards, None
        if self.weights.ess >= ESS_MIN:
            interval = _normal(moments.mean, sqrt(moments.variance / moments.n))
        return LiveEstimate("ips", moments.mean, interval, self._sequence.now())

    def snips(self) -> LiveEstimate:
        """Return the sum of the weighted rewards over the sum of the weights; undefined if the weights sum to 0."""
        weight_sum = self.weights.sum
        if weight_sum == 0.0:
            return LiveEstimate("snips", None, None, None)
        value = self.weighted_rewards.sum / weight_sum
        # Linearised: Σ w² (r − v)²/(Σ w)² (Owen, "Monte Carlo theory, methods and examples", 9.2).
        square_sum = self.weighted_rewards.square_sum - 2.0 * value * self._cross_sum
        square_sum += value**2 * self.weights.square_sum
        has_interval = self.weights.ess >= ESS_MIN
        interval = _normal(value, sqrt(max(square_sum, 0.0)) / weight_sum) if has_interval else None
        return LiveEstimate("snips", value, interval, None)

    def state(self) -> list[list[float]]:
        """Return the sums as JSON values, for `load`."""
        moments = (self.weights, self.weighted_rewards, self.rewards)
        return [*([m.n, m.sum, m.square_sum, m.largest] for m in moments), [self._cross_sum], self._sequence.state()]

    def load(self, state: Sequence[Sequence[float]]) -> None:
        """Restore sums returned by `state`."""
        for moments, (n, total, square_sum, largest) in zip(
            (self.weights, self.weighted_rewards, self.rewards), state, strict=False
        ):
            moments.n, moments.sum, moments.square_sum, moments.largest = int(n), total, square_sum, largest
        self._cross_sum = state[3][0]
        self._sequence.load(state[-1])

    def __add__(self, other: "RunningEstimate") -> "RunningEstimate":
        """Combine the estimates from two partitions.

        The sums of the confidence sequences are also added. For each λ, the product of two alternating supermartingales
        is a supermartingale, so the mixture of the products remains valid.
        """
        both = RunningEstimate()
        mine, others = self.state(), other.state()
        sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(mine, others, strict=True)]
        for place in range(3):
            sums[place][3] = max(mine[place][3], others[place][3])
        both.load(sums)
        return both


def _normal(value: float, deviation: float) -> Interval | None:
    """Return a normal interval, or None if all rows are equal and thus contain no information about the variance."""
    if deviation <= 0.0:
        return None
    reach = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0) * deviation
    return within_01(value - reach, value + reach)
