"""Off-policy estimates for a learner's own policy while the learner replays the decisions in a log.

A prediction contains the logged class a, its propensity μ(a|x), and the target: a class a′ that the learner drew from
its own distribution π(·|x), and its probability π(a′|x). The prediction does not contain π(a|x), so the exact weight
π(a|x)/μ(a|x) is unknown. It is replaced by

    w = 1[a′ = a]/μ(a|x),  whose mean over the draw of a′ is π(a|x)/μ(a|x)

because a′ is drawn independently of the log's action. For n decisions with reward r, a share of the range,

    ips    Σ w r/n       is unbiased, as with the exact weight
    snips  Σ w r/Σ w     is consistent

Both estimates have a larger variance than with the exact weight: on average over a′, w² is larger by a factor of
1/π(a|x). The estimates do not use π(a′|x). The confidence sequence for ips requires only non-negative weights and
conditional means. It is valid at all times, even for a changing policy, and bounds the mean value of the policies that
made the individual decisions. The direct method and dr require the whole distribution π, or the context; `onebit
estimate` computes them from the log.

*Prefix.* A decision is counted when it and all earlier decisions are settled; see `prefix`. An expired decision is
settled without an outcome. It does not block the prefix and is counted separately. It raises a flag, because the
estimate covers only decisions with an outcome.
"""

from collections.abc import Sequence
from math import nan

import numpy as np

from stream.estimating.evaluation import ESS_MIN, PROPENSITY_FLOOR, WEIGHTS_OFF_ONE, Moments, weight_flags
from stream.estimating.live_results import Flag, LiveEstimates, LivePoint
from stream.estimating.prefix import PrefixEstimator
from stream.estimating.running import RunningEstimate
from stream.wire.records import Example, FloatArray, Outcome, Prediction
from stream.wire.rewards import BITS, RewardRange

PATH_POINTS_MAX = 400
"""Maximum number of points in a path. When a path exceeds it, every other point is removed."""


class LiveEstimator(PrefixEstimator[float]):
    """Counts decisions in order of publication. A decision is counted when it and all earlier decisions are settled."""

    def __init__(self, rewards: RewardRange = BITS) -> None:
        super().__init__(rewards)
        self._sums = RunningEstimate()
        self._path: list[LivePoint] = []
        self._path_stride = 1
        self._without_outcome = 0
        self._without_weight = 0
        self._not_logged = 0

    def value_of(self, prediction: Prediction) -> float | None:
        """Return a decision's weight, or None if the decision does not come from a log; see PrefixEstimator."""
        self._not_logged += prediction.target is None
        return None if prediction.target is None else target_weight(prediction)

    def reward_of(self, example: Example) -> float | None:
        """Return the reward of a matched decision, otherwise None; see PrefixEstimator."""
        return super().reward_of(example) if example.outcome is Outcome.MATCHED else None

    def count_settled(self, settled: Sequence[tuple[float, float | None]]) -> None:
        """See `PrefixEstimator.count_settled`."""
        rows: list[tuple[float, float]] = []
        for weight, reward in settled:
            if reward is None:
                self._without_outcome += 1
            elif weight != weight:  # NaN
                self._without_weight += 1
            else:
                rows.append((weight, reward))
        if rows:
            self._count(*np.array(rows, dtype=np.float64).T)

    def _count(self, weights: FloatArray, rewards: FloatArray) -> None:
        """Add decisions with these weights and rewards, float64[m] each."""
        sums = self._sums
        before, weighted_sum, reward_sum = sums.weights.n, sums.weighted_rewards.sum, sums.rewards.sum
        while (before + weights.size) // self._path_stride > PATH_POINTS_MAX:
            self._path_stride *= 2
            self._path = self._path[1::2]
        at = range(self._path_stride - 1 - before % self._path_stride, weights.size, self._path_stride)
        intervals = sums.add(weights, rewards, at)
        weighted_sums = weighted_sum + np.cumsum(weights * rewards)
        reward_sums = reward_sum + np.cumsum(rewards)
        for place, interval in zip(at, intervals, strict=True):
            n = before + place + 1
            ips, logged = float(weighted_sums[place]) / n, float(reward_sums[place]) / n
            self._path.append(LivePoint(n, *map(self._rewards.value, (ips, *interval, logged))))

    def now(self) -> LiveEstimates:
        """Return the current estimates."""
        sums, n = self._sums, self._sums.weights.n
        return LiveEstimates(
            n=n,
            without_outcome=self._without_outcome,
            waiting=self.waiting,
            ess=sums.weights.ess,
            weight_max=sums.weights.largest,
            logged=self._rewards.value(sums.rewards.mean) if n else nan,
            flags=tuple(self._flags()),
            estimates=sums.estimates(self._rewards),
            path=tuple(self._path),
        )

    def _flags(self) -> list[Flag]:
        settled = self._sums.weights.n + self._without_outcome + self._without_weight
        of_settled = f"of {settled:,} settled decisions"
        texts = {
            "outcome-missing": (
                self._without_outcome,
                f"{of_settled} have no outcome; the estimate covers the others",
            ),
            "propensity-missing": (self._without_weight, f"{of_settled} have no logged propensity; they are excluded"),
            "not-logged": (self._not_logged, "decisions do not come from a log; they are excluded"),
            "handed-over": (
                self._left,
                "decisions were pending when another process took over their partition; they are excluded",
            ),
        }
        flags = [Flag(name, f"{count:,} {text}") for name, (count, text) in texts.items() if count]
        return flags + live_weight_flags(self._sums.weights)


def live_weight_flags(weights: Moments) -> list[Flag]:
    """Return flags for suspicious weights, for callers that check the same estimates repeatedly.

    The test for the mean weight is omitted while there are few rows, because the distribution of the mean is then far
    from normal, and repeated tests would raise false alarms at the start of every log.
    """
    return [flag for flag in weight_flags(weights) if flag.name != WEIGHTS_OFF_ONE or weights.ess >= ESS_MIN]


def target_weight(prediction: Prediction) -> float:
    """Return 1[a′ = a]/μ(a|x), or NaN if μ is missing or not a valid propensity."""
    assert prediction.target is not None
    propensity = prediction.decision.propensity
    if not 0.0 < propensity <= 1.0:  # the comparison is also False for NaN
        return nan
    return 1.0 / max(propensity, PROPENSITY_FLOOR) if prediction.target.action == prediction.decision.action else 0.0
