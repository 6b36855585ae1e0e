"""What a learner's own policy would have earned, while it plays the decisions of a log.

A prediction carries the class a that the log played, with its propensity μ(a|x), and the target: one class a′ that the
learner drew from its own distribution π(·|x), with π(a′|x) alone. The weight of the learner's policy, π(a|x)/μ(a|x), is
therefore not known. Its place takes

    w = 1[a′ = a]/μ(a|x),  whose mean over the draw of a′ is π(a|x)/μ(a|x)

because a′ is drawn without a look at what the log played. So over n decisions with the bit r

    ips    Σ w r/n       is unbiased, as with the weight itself
    snips  Σ w r/Σ w     is consistent

with more variance: on average over a′, w² is larger by the factor 1/π(a|x). π(a′|x) is not used. The confidence
sequence of ips asks for weights that are not negative and for means given the past, so that it holds as it stands, at
all moments at once and for a policy that changes: what it bounds is the mean value of the policy as it was at each
decision. The direct method and dr need the whole of π, or the context, and are left to a reading of the log.

*The prefix.* Quick rewards come first. Were every bit counted when it comes, and right answers came sooner than wrong
ones, what is known at any moment would flatter the policy. So a decision counts when it, and all that were made before
it, are settled:

    decided   1  2  3  4  5  6
    settled   ✓  ✓  …  ✓  ✓  …      counted: 1, 2. With 3, the decisions 4 and 5 are counted, too.

An expired decision is settled without an outcome. It lets the prefix go on, is counted apart, and is flagged: the
estimate is over decisions with an outcome.

*Memory.* What is kept is the decisions behind the first one that waits. It waits for a window at most, so these are the
decisions of a window at most, of which the join remembers more.
"""

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import numpy as np

from stream.estimating.intervals import Interval
from stream.estimating.judge import ESS_MIN, WEIGHTS_OFF_ONE, Moments, estimate_fields, weight_flags
from stream.estimating.running import LiveEstimate, RunningEstimate
from stream.estimating.survey import Flag
from stream.wire.events import Example, FloatArray, Outcome, Prediction

PATH_POINTS_MAX = 400
"""Of a path that grows for ever every other point is left out when there are so many."""


class LivePoint(NamedTuple):
    """The estimate as it was after n decisions."""

    n: int
    ips: float
    anytime: Interval
    logged: float  # the mean reward of what the log played


class LiveEstimates(NamedTuple):
    """What is known of the learner's own policy now."""

    n: int  # settled decisions with an outcome and a weight: those that the estimates are over
    without_outcome: int  # settled decisions that expired
    waiting: int  # decisions that are not settled, or behind one that is not
    ess: float
    weight_max: float
    logged: float  # the mean reward of what the log played, over the same n; NaN: there are none
    flags: tuple[Flag, ...]
    estimates: tuple[LiveEstimate, ...]
    path: tuple[LivePoint, ...]  # evenly over the n, at most PATH_POINTS_MAX

    def as_json(self) -> dict[str, object]:
        """As plain values, without the path; the estimates have the names that those of a whole log have."""
        return {
            "n": self.n,
            "without_outcome": self.without_outcome,
            "waiting": self.waiting,
            "ess": self.ess,
            "weight_max": self.weight_max,
            "logged": self.logged,
            "flags": [flag.name for flag in self.flags],
            "estimates": [estimate_fields(*one) for one in self.estimates],
        }


@dataclass(slots=True)
class _Decided:
    """A decision, until it is counted."""

    partition: int
    weight: float  # NaN: there is none
    is_settled: bool = False
    reward: int | None = None  # None: without an outcome


class LiveEstimator:
    """Counts decisions in the order in which they were published, each when all up to it are settled."""

    def __init__(self) -> None:
        self._decided: deque[_Decided] = deque()
        self._pending: dict[tuple[int, str], _Decided] = {}
        self._steps: dict[int, int] = {}  # the number of the last step, by partition
        self._sums = RunningEstimate()
        self._path: list[LivePoint] = []
        self._path_stride = 1
        self._without_outcome = 0
        self._without_weight = 0
        self._not_logged = 0
        self._left = 0

    def take(self, partition: int, step: int, predictions: Iterable[Prediction], examples: Iterable[Example]) -> None:
        """Take in what a step of a partition has published.

        Examples of decisions that were not taken in are passed over: they were made before the beginning.

        Args:
            partition: whose.
            step: its number. Where one is missing, another process has made it: what waits here may be settled there.
            predictions: the decisions, in their order.
            examples: what was settled, of these and of earlier ones.
        """
        if self._steps.get(partition, step - 1) != step - 1:
            self._leave({partition})
        self._steps[partition] = step
        for prediction in predictions:
            if prediction.target is None:
                self._not_logged += 1
                continue
            decided = _Decided(partition, target_weight(prediction))
            self._decided.append(decided)
            self._pending[partition, prediction.id] = decided
        for example in examples:
            settled = self._pending.pop((partition, example.id), None)
            if settled is not None:
                settled.is_settled = True
                settled.reward = example.reward if example.outcome is Outcome.MATCHED else None
        self._advance()

    def keep(self, partitions: Container[int]) -> None:
        """Leave out what waits in all other partitions: it will be settled elsewhere, or by nobody."""
        gone = {partition for partition in self._steps if partition not in partitions}
        if gone:
            self._leave(gone)
            self._advance()

    def _leave(self, partitions: set[int]) -> None:
        """Leave out the decisions of partitions behind the prefix, the settled ones, too: those came quickly."""
        kept = [decided for decided in self._decided if decided.partition not in partitions]
        self._left += len(self._decided) - len(kept)
        self._decided = deque(kept)
        self._pending = {key: decided for key, decided in self._pending.items() if key[0] not in partitions}
        for partition in partitions:
            self._steps.pop(partition, None)

    def _advance(self) -> None:
        """Count the decisions up to the first one that waits."""
        rows: list[tuple[float, int]] = []
        while self._decided and self._decided[0].is_settled:
            decided = self._decided.popleft()
            if decided.reward is None:
                self._without_outcome += 1
            elif decided.weight != decided.weight:  # NaN
                self._without_weight += 1
            else:
                rows.append((decided.weight, decided.reward))
        if rows:
            self._count(*np.array(rows, dtype=np.float64).T)

    def _count(self, weights: FloatArray, rewards: FloatArray) -> None:
        """Take in decisions with a weight and a reward, float64[m] each."""
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
            self._path.append(LivePoint(n, float(weighted_sums[place]) / n, interval, float(reward_sums[place]) / n))

    def now(self) -> LiveEstimates:
        """What the decisions so far come to."""
        sums, n = self._sums, self._sums.weights.n
        return LiveEstimates(
            n=n,
            without_outcome=self._without_outcome,
            waiting=len(self._decided),
            ess=sums.weights.ess,
            weight_max=sums.weights.largest,
            logged=sums.rewards.mean if n else nan,
            flags=tuple(self._flags()),
            estimates=sums.estimates(),
            path=tuple(self._path),
        )

    def _flags(self) -> list[Flag]:
        settled = self._sums.weights.n + self._without_outcome + self._without_weight
        of_settled = f"of {settled:,} settled decisions"
        texts = {
            "outcome-missing": (
                self._without_outcome,
                f"{of_settled} have no outcome; the estimate is over the others",
            ),
            "propensity-missing": (self._without_weight, f"{of_settled} have no logged propensity, and are left out"),
            "not-logged": (self._not_logged, "decisions are of no log, and are left out"),
            "handed-over": (self._left, "decisions waited when another process got their partition, and are left out"),
        }
        flags = [Flag(name, f"{count:,} {text}") for name, (count, text) in texts.items() if count]
        return flags + live_weight_flags(self._sums.weights)


def live_weight_flags(weights: Moments) -> list[Flag]:
    """What weights say against estimates that are looked at again and again.

    The test of the weights' mean is made at every look. Of few rows, whose law is far from normal, it would find
    something in the first minutes of every log.
    """
    return [flag for flag in weight_flags(weights) if flag.name != WEIGHTS_OFF_ONE or weights.ess >= ESS_MIN]


def target_weight(prediction: Prediction) -> float:
    """1[a′ = a]/μ(a|x); NaN: the log does not say μ, or what no weight can be made of."""
    assert prediction.target is not None
    propensity = prediction.decision.propensity
    if not 0.0 < propensity <= 1.0:  # NaN, too
        return nan
    return 1.0 / propensity if prediction.target.action == prediction.decision.action else 0.0
