"""Estimates for challengers, which learn from the champion's decisions; see `stream.learners.wrappers.challenge`.

A prediction contains the class a that the champion played, the propensity p of a, and, for each challenger, the class
a′ that the challenger chose with its own draw. Let w = 1[a′ = a]/p. Given a, the mean of w is p′/p, where p′ is the
challenger's probability of a. For n decisions with reward r, a share of the range:

    challenger's reward            ips and snips; see `live`
    challenger minus champion      the mean of φ = (w − 1) r

Because the mean of w is 1, (w − 1)(1 − r) has the mean *champion minus challenger*. Both terms are at least −1, so the
confidence sequences of `intervals` bound the running mean of the difference on both sides at all times simultaneously.
The intervals for the differences are jointly valid for all challengers. The interval for a reward is valid for a single
challenger.

If a challenger chooses a class that the champion never plays, w is 0 and φ is at most 0. The challenger's reward is
then underestimated. An exploration floor prevents this.

Decisions are counted as in `prefix`, separately for each champion with its set of challengers.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import isnan
from typing import Any

import numpy as np

from stream.estimating.intervals import LowerSequence
from stream.estimating.live_results import Bounds, ChallengerComparison, ChallengerEstimate
from stream.estimating.prefix import PrefixEstimator
from stream.estimating.running import CONFIDENCE, RunningEstimate
from stream.wire.records import Prediction
from stream.wire.rewards import BITS, RewardRange

_Row = Sequence[Any]
"""The champion that made a decision, and each challenger's weight by name, as JSON-serializable values."""


_Team = tuple[str, tuple[str, ...]]
"""A champion, and the sorted names of its challengers."""


class _Sums:
    """The sums for one challenger."""

    def __init__(self, delta: float) -> None:
        self.estimate = RunningEstimate()
        self.sides = LowerSequence(1.0, delta), LowerSequence(1.0, delta)

    def state(self) -> list[Any]:
        return [self.estimate.state(), *(side.state() for side in self.sides)]

    def load(self, state: Sequence[Any]) -> None:
        self.estimate.load(state[0])
        for side, stored in zip(self.sides, state[1:], strict=True):
            side.load(stored)

    def add(self, other: "_Sums") -> None:
        self.estimate += other.estimate
        self.sides = self.sides[0] + other.sides[0], self.sides[1] + other.sides[1]


class _Reign:
    """The sums over the decisions of one champion with the same challengers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.sums = {name: _Sums((1.0 - CONFIDENCE) / (2.0 * len(names))) for name in names}
        self.n = self.without_reward = 0
        self.rewards = 0.0  # sum of the shares

    def count(self, rows: Sequence[_Row], shares: Sequence[float]) -> None:
        """Add decisions and their rewards as shares."""
        rewards = np.array(shares, np.float64)
        self.n += len(rows)
        self.rewards += float(rewards.sum())
        for name, sums in self.sums.items():
            weights = np.array([of_challengers[name] for _, of_challengers in rows])
            sums.estimate.add(weights, rewards)
            for side, terms in zip(sums.sides, (rewards, 1.0 - rewards), strict=True):
                side.extend((weights - 1.0) * terms)

    def state(self) -> dict[str, Any]:
        sums = {name: sums.state() for name, sums in self.sums.items()}
        return {"n": self.n, "rewards": self.rewards, "without_reward": self.without_reward, "sums": sums}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "_Reign":
        reign = cls(tuple(state["sums"]))
        reign.n, reign.rewards, reign.without_reward = state["n"], state["rewards"], state["without_reward"]
        for name, sums in reign.sums.items():
            sums.load(state["sums"][name])
        return reign

    def add(self, other: "_Reign") -> None:
        self.n += other.n
        self.rewards += other.rewards
        self.without_reward += other.without_reward
        for name, sums in self.sums.items():
            sums.add(other.sums[name])


class ChallengerEstimator(PrefixEstimator[_Row]):
    """Compares challengers with the champion. A decision is counted when it and all earlier decisions are settled.

    >>> from stream.wire.records import Challenged, Decision, Example, Outcome
    >>> estimator = ChallengerEstimator()
    >>> decision = Decision(0, 0, 0.5, np.zeros(2))
    >>> for step in range(1, 401):
    ...     challenged = Challenged("old", {"new": step % 2})
    ...     made = [Prediction("a", decision, 0, challenged=challenged)]
    ...     estimator.take(0, step, made, [Example("a", Outcome.MATCHED, 0, 0.5, 1 - step % 2, 0, 0, 0)])
    >>> found = estimator.now()
    >>> found.mean, found.challengers[0].ips, found.challengers[0].difference.low > 0.2, found.better
    (0.5, 1.0, True, 'new')
    """

    def __init__(self, rewards: RewardRange = BITS) -> None:
        super().__init__(rewards)
        self._reigns: dict[_Team, _Reign] = {}
        self._team: _Team | None = None  # the team of the last counted decision

    def value_of(self, prediction: Prediction) -> _Row | None:
        """See `PrefixEstimator.value_of`. Ignores decisions without challengers or without a known propensity."""
        decision, challenged = prediction.decision, prediction.challenged
        if challenged is None or isnan(decision.propensity):
            return None
        weights = {
            name: (choice == decision.action) / decision.propensity for name, choice in challenged.choices.items()
        }
        return challenged.champion, weights

    def count_settled(self, settled: Sequence[tuple[_Row, float | None]]) -> None:
        """See `PrefixEstimator.count_settled`."""
        for team, group in groupby(settled, lambda one: (one[0][0], tuple(sorted(one[0][1])))):
            rows = list(group)
            self._team = team
            reign = self._reigns.setdefault(team, _Reign(team[1]))
            known = [(row, reward) for row, reward in rows if reward is not None]
            reign.without_reward += len(rows) - len(known)
            if known:
                reign.count(*zip(*known, strict=True))

    def state(self) -> dict[str, Any]:
        """Return the sums as JSON values, for `load`."""
        return {"team": self._team, "reigns": [[champion, one.state()] for (champion, _), one in self._reigns.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore sums returned by `state`."""
        self._team = None if state["team"] is None else (state["team"][0], tuple(state["team"][1]))
        self._reigns = {
            (champion, tuple(reign["sums"])): _Reign.of_state(reign) for champion, reign in state["reigns"]
        }  # fmt: skip

    def __add__(self, other: "ChallengerEstimator") -> "ChallengerEstimator":
        """Combine the estimates from two partitions. The result has the team of `other`, or else that of `self`."""
        both = ChallengerEstimator(self._rewards)
        both.load(self.state())
        both._team = other._team or self._team
        for team, reign in other._reigns.items():
            both._reigns.setdefault(team, _Reign(team[1])).add(reign)
        return both

    def now(self) -> ChallengerComparison:
        """Return the current estimates."""
        champion = None if self._team is None else self._team[0]
        reign, waiting = _Reign(()) if self._team is None else self._reigns[self._team], self.waiting
        if not reign.n:
            return ChallengerComparison(champion, 0, None, reign.without_reward, waiting, ())
        challengers = []
        size = self._rewards.size
        for name, sums in reign.sums.items():
            ips, snips = sums.estimate.estimates(self._rewards)
            assert ips.value is not None
            assert ips.anytime is not None
            low, mirrored = (side.now() for side in sums.sides)
            difference = Bounds(max(low, -1.0) * size, min(-mirrored, 1.0) * size)
            reward = Bounds(*ips.anytime)
            challengers.append(ChallengerEstimate(name, ips.value, snips.value, reward, difference))
        mean = self._rewards.value(reign.rewards / reign.n)
        return ChallengerComparison(champion, reign.n, mean, reign.without_reward, waiting, tuple(challengers))
