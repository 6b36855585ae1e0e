"""Pending decisions in a partition, and off-policy estimates for other policies.

Decisions come from the predictions topic and rewards from the examples topic, and either may be read first. The
estimates include a decision only when it and all earlier decisions in its partition are settled; see
`stream.estimating.live`.

Memory is bounded. While more than PENDING_MAX decisions are pending, every other decision, whether old or new, is
discarded. A hash of the id determines which decisions are kept. The page reports the sampling rate, which is one in
2**level.
"""

from collections.abc import Callable, Mapping, Sequence
from math import nan
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from consumers.monitor.comparisons import Comparison
from consumers.monitor.policies import ALWAYS
from stream.estimating.running import RunningEstimate
from stream.wire.records import Example, Outcome, Prediction
from stream.wire.rewards import BITS, RewardRange

PENDING_MAX = 500
"""Limit on pending decisions per partition. It is small because the stored state is rewritten frequently."""

EARLY_MS = 10_000
"""Stream time for which a bit is stored if its decision has not been read yet."""


def in_sample(number: int, level: int) -> bool:
    """Return whether the id with this hash is in the sample, which contains one in 2**level ids."""
    return not number & ((1 << level) - 1)


class Settled(NamedTuple):
    """A decision with its outcome."""

    append_ms: int  # append time of the example
    greedy_weight: float
    reward: float  # as a share of the range


class _Pending(NamedTuple):
    append_ms: int  # append time of the prediction
    weights: tuple[float, ...]
    values: Sequence[Any]  # one value per comparison; see `Comparison.value_of`


class _Bit(NamedTuple):
    append_ms: int
    reward: float | None  # as a share of the range; None if the decision has no outcome
    is_matched: bool  # False if the reward is assumed, and therefore used only in comparisons


class PendingDecisions:
    """The pending decisions in one partition."""

    def __init__(
        self, policies: Sequence[str] = ALWAYS, comparisons: Mapping[str, Comparison] = MappingProxyType({})
    ) -> None:
        """Initialise with no pending decisions.

        Args:
            policies: The keys of the evaluated policies; the first is the greedy policy.
            comparisons: New, empty comparisons, by key.
        """
        self.level = 0  # one in every 2**level decisions is processed
        self._policies = tuple(policies)
        self._estimates = tuple(RunningEstimate() for _ in policies)
        self._decided: dict[int, _Pending] = {}  # keyed by the hash of the id, in the order of the decisions
        self._bits: dict[int, _Bit] = {}  # bits whose decisions have not been read or counted yet
        self._newest_ms = 0  # append time of the last prediction
        self._rows: list[tuple[tuple[float, ...], float]] = []  # weights and shares that have not been counted
        self._comparisons = comparisons
        self._settled_rows: list[
            tuple[Sequence[Any], float | None]
        ] = []  # values and rewards that have not been counted

    def decide(
        self, number: int, prediction: Prediction, weights: Callable[[], tuple[float, ...]], append_ms: int
    ) -> Settled | None:
        """Add a decision. If its bit has already been read, return the decision and the bit; otherwise, return None.

        Args:
            number: The hash of the id.
            prediction: The decision.
            weights: Returns π(a|x)/μ(a|x) for each policy, or NaN if unknown. It is called only for decisions in the
                sample.
            append_ms: The append time of the prediction.
        """
        if append_ms // EARLY_MS > self._newest_ms // EARLY_MS:
            self._bits = {
                number: bit
                for number, bit in self._bits.items()
                if number in self._decided or bit.append_ms + EARLY_MS > append_ms
            }
        self._newest_ms = append_ms
        if not self._takes(number):
            return None
        values = tuple(one.value_of(prediction) for one in self._comparisons.values())
        self._decided[number] = _Pending(append_ms, weights(), values)
        found = self._settled(number)
        self._advance()
        self._bound()
        return found

    def settle(self, number: int, example: Example, append_ms: int, rewards: RewardRange = BITS) -> Settled | None:
        """Add a decision's outcome, with a reward in this range.

        If the decision has already been read, return both; otherwise, return None.
        """
        if not self._takes(number):
            return None
        share = None if example.reward is None else rewards.share(example.reward)
        self._bits[number] = _Bit(append_ms, share, example.outcome is Outcome.MATCHED)
        found = self._settled(number)
        self._advance()
        self._bound()
        return found

    def estimates(self) -> tuple[RunningEstimate, ...]:
        """Return each policy's estimate from the decisions counted so far."""
        if self._rows:
            weights = np.array([row[0] for row in self._rows])
            rewards = np.array([row[1] for row in self._rows], dtype=np.float64)
            for estimate, of_policy in zip(self._estimates, weights.T, strict=True):
                known = ~np.isnan(of_policy)
                estimate.add(of_policy[known], rewards[known])
            self._rows = []
        return self._estimates

    def comparisons(self) -> Mapping[str, Comparison]:
        """Return the comparisons for the decisions counted so far."""
        if self._settled_rows:
            values, rewards = zip(*self._settled_rows, strict=True)
            for comparison, column in zip(self._comparisons.values(), zip(*values, strict=True), strict=True):
                pairs = zip(column, rewards, strict=True)
                comparison.count_settled([(value, reward) for value, reward in pairs if value is not None])
            self._settled_rows = []
        return self._comparisons

    @property
    def oldest_ms(self) -> int | None:
        """Return the time of the oldest pending decision, or None."""
        return next((pending.append_ms for pending in self._decided.values()), None)

    def _takes(self, number: int) -> bool:
        return in_sample(number, self.level)

    def _settled(self, number: int) -> Settled | None:
        pending, bit = self._decided.get(number), self._bits.get(number)
        if pending is None or bit is None or bit.reward is None or not bit.is_matched:
            return None
        if pending.weights[0] != pending.weights[0]:  # NaN
            return None
        return Settled(bit.append_ms, pending.weights[0], bit.reward)

    def _advance(self) -> None:
        """Count the settled decisions that precede the first pending decision."""
        while self._decided and (number := next(iter(self._decided))) in self._bits:
            pending, bit = self._decided.pop(number), self._bits.pop(number)
            if bit.reward is not None and bit.is_matched:
                self._rows.append((pending.weights, bit.reward))
            if self._comparisons:
                self._settled_rows.append((pending.values, bit.reward))

    def _bound(self) -> None:
        while max(len(self._decided), len(self._bits)) > PENDING_MAX:
            self.level += 1
            self._decided = {number: one for number, one in self._decided.items() if self._takes(number)}
            self._bits = {number: one for number, one in self._bits.items() if self._takes(number)}
        if self.level and max(len(self._decided), len(self._bits)) < PENDING_MAX // 8:
            self.level -= 1

    def state(self) -> dict[str, Any]:
        """Return the state as a JSON value for `load`."""
        return {
            "level": self.level,
            "policies": self._policies,
            "estimates": [estimate.state() for estimate in self.estimates()],
            "comparisons": {key: comparison.state() for key, comparison in self.comparisons().items()},
            "decided": [[number, *pending] for number, pending in self._decided.items()],
            "bits": [[number, *bit] for number, bit in self._bits.items()],
            "newest_ms": self._newest_ms,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state`. Policies and comparisons that are missing from it start empty."""
        self.level, self._newest_ms = state["level"], state["newest_ms"]
        places = {policy: place for place, policy in enumerate(state["policies"])}
        for policy, estimate in zip(self._policies, self._estimates, strict=True):
            if policy in places:
                estimate.load(state["estimates"][places[policy]])
        stored = state["comparisons"]
        for key, comparison in self._comparisons.items():
            if key in stored:
                comparison.load(stored[key])
        self._decided = {
            number: _Pending(
                append_ms,
                tuple(_weight(weights, places.get(policy)) for policy in self._policies),
                [dict(zip(stored, values, strict=True)).get(key) for key in self._comparisons],
            )
            for number, append_ms, weights, values in state["decided"]
        }
        self._bits = {row[0]: _Bit(*row[1:]) for row in state["bits"]}


def _weight(stored: Sequence[float | None], place: int | None) -> float:
    weight = None if place is None else stored[place]
    return nan if weight is None else weight  # orjson writes NaN as null
