"""Decisions that wait for their bits: which waits longest, and what other policies would have earned.

Decisions are taken from the predictions, bits from the examples, and neither topic is ahead of the other: a decision
meets its bit whichever is read first. A decision counts for the estimates when all that were made before it in its
partition are settled, see `stream.estimating.live`.

What waits here is bounded. Beyond PENDING_MAX every other decision is left out, by a hash of its id, and so are those
that come, until fewer wait: a sample of one in 2**level, which the page tells.
"""

from collections.abc import Sequence
from math import nan
from typing import Any, NamedTuple

import numpy as np

from stream.estimating.live import target_weight
from stream.estimating.running import RunningEstimate
from stream.wire.events import Example, Outcome, Prediction

PENDING_MAX = 500
"""In each partition: the value that holds them is written again and again."""

EARLY_MS = 10_000
"""For so long a bit waits for its decision, by the times of the records: it was published after it."""

POLICIES = ("greedy", "uniform", "learner")
"""The highest score; each class alike; and the learner's own policy, where the decisions of a log are played."""


def weights_of(prediction: Prediction) -> tuple[float, ...]:
    """Of a decision under each of POLICIES: π(a|x)/μ(a|x); NaN: not known, or there is no such policy."""
    action, greedy, propensity, scores = prediction.decision[:4]
    if not 0.0 < propensity <= 1.0:  # NaN, too
        return (nan,) * len(POLICIES)
    return (
        float(action == greedy) / propensity,
        1.0 / (scores.size * propensity),
        nan if prediction.target is None else target_weight(prediction),
    )


class Settled(NamedTuple):
    """A decision and its outcome, together."""

    append_ms: int  # of its example
    greedy_weight: float
    reward: int


class _Pending(NamedTuple):
    decided_at_ms: int
    weights: tuple[float, ...]


class _Bit(NamedTuple):
    append_ms: int
    reward: int | None  # None: it has none


class PendingDecisions:
    """Those of one partition."""

    def __init__(self) -> None:
        self.level = 0  # one in 2**level is looked at
        self._estimates = tuple(RunningEstimate() for _ in POLICIES)
        self._decided: dict[int, _Pending] = {}  # by the hash of the id, in the order of the decisions
        self._bits: dict[int, _Bit] = {}  # of those, that wait for earlier ones; and of such as are still to be read
        self._newest_ms = 0  # append time of the last prediction
        self._rows: list[tuple[tuple[float, ...], int]] = []  # weights and bit, that are to be counted

    def decide(self, number: int, prediction: Prediction, append_ms: int) -> Settled | None:
        """Take in a decision; with its bit, if that has been read.

        Args:
            number: the hash of its id.
            prediction: the decision.
            append_ms: of its prediction.
        """
        if append_ms // EARLY_MS > self._newest_ms // EARLY_MS:
            self._bits = {
                number: bit
                for number, bit in self._bits.items()
                if number in self._decided or bit.append_ms + EARLY_MS > append_ms
            }
        self._newest_ms = append_ms
        if not self._is_taken(number):
            return None
        self._decided[number] = _Pending(prediction.decided_at_ms, weights_of(prediction))
        found = self._settled(number)
        self._advance()
        self._bound()
        return found

    def settle(self, number: int, example: Example, append_ms: int) -> Settled | None:
        """Take in what became of a decision; the decision with it, if it is known."""
        if not self._is_taken(number):
            return None
        self._bits[number] = _Bit(append_ms, example.reward if example.outcome is Outcome.MATCHED else None)
        found = self._settled(number)
        self._advance()
        self._bound()
        return found

    def estimates(self) -> tuple[RunningEstimate, ...]:
        """Of POLICIES, over the decisions that count."""
        if self._rows:
            weights = np.array([row[0] for row in self._rows])
            rewards = np.array([row[1] for row in self._rows], dtype=np.float64)
            for estimate, of_policy in zip(self._estimates, weights.T, strict=True):
                known = ~np.isnan(of_policy)
                estimate.add(of_policy[known], rewards[known])
            self._rows = []
        return self._estimates

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest decision was made that waits; None: none does."""
        return next((pending.decided_at_ms for pending in self._decided.values()), None)

    def _is_taken(self, number: int) -> bool:
        return not number & ((1 << self.level) - 1)

    def _settled(self, number: int) -> Settled | None:
        pending, bit = self._decided.get(number), self._bits.get(number)
        if pending is None or bit is None or bit.reward is None or pending.weights[0] != pending.weights[0]:  # NaN
            return None
        return Settled(bit.append_ms, pending.weights[0], bit.reward)

    def _advance(self) -> None:
        """Count the decisions up to the first one that waits."""
        while self._decided and (number := next(iter(self._decided))) in self._bits:
            pending, bit = self._decided.pop(number), self._bits.pop(number)
            if bit.reward is not None:
                self._rows.append((pending.weights, bit.reward))

    def _bound(self) -> None:
        while max(len(self._decided), len(self._bits)) > PENDING_MAX:
            self.level += 1
            self._decided = {number: one for number, one in self._decided.items() if self._is_taken(number)}
            self._bits = {number: one for number, one in self._bits.items() if self._is_taken(number)}
        if self.level and max(len(self._decided), len(self._bits)) < PENDING_MAX // 8:
            self.level -= 1

    def state(self) -> dict[str, Any]:
        """For JSON; `load` takes it over."""
        return {
            "level": self.level,
            "estimates": [estimate.state() for estimate in self.estimates()],
            "decided": [[number, *pending] for number, pending in self._decided.items()],
            "bits": [[number, *bit] for number, bit in self._bits.items()],
            "newest_ms": self._newest_ms,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where another stood."""
        self.level, self._newest_ms = state["level"], state["newest_ms"]
        for estimate, sums in zip(self._estimates, state["estimates"], strict=True):
            estimate.load(sums)
        self._decided = {row[0]: _Pending(row[1], _weights(row[2])) for row in state["decided"]}
        self._bits = {row[0]: _Bit(*row[1:]) for row in state["bits"]}


def _weights(stored: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(nan if weight is None else weight for weight in stored)  # orjson writes NaN as null
