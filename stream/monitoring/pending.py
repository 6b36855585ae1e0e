"""Decisions that wait for their bits: which waits longest, and what other policies would have earned.

Decisions are taken from the predictions, bits from the examples, and neither topic is ahead of the other: a decision
meets its bit whichever is read first. A decision counts for the estimates when all that were made before it in its
partition are settled, see `stream.estimating.live`.

What waits here is bounded. Beyond PENDING_MAX every other decision is left out, by a hash of its id, and so are those
that come, until fewer wait: a sample of one in 2**level, which the page tells.
"""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any, NamedTuple

import numpy as np

from stream.estimating.running import RunningEstimate
from stream.monitoring.policies import ALWAYS
from stream.wire.events import Example, Outcome

PENDING_MAX = 500
"""In each partition: the value that holds them is written again and again."""

EARLY_MS = 10_000
"""For so long a bit waits for its decision, by the times of the records: it was published after it."""


def in_sample(number: int, level: int) -> bool:
    """Whether an id, by its hash, is in the sample of one in 2**level."""
    return not number & ((1 << level) - 1)


class Settled(NamedTuple):
    """A decision and its outcome, together."""

    append_ms: int  # of its example
    greedy_weight: float
    reward: int


class _Pending(NamedTuple):
    append_ms: int  # of the prediction
    weights: tuple[float, ...]


class _Bit(NamedTuple):
    append_ms: int
    reward: int | None  # None: it has none


class PendingDecisions:
    """Those of one partition."""

    def __init__(self, policies: Sequence[str] = ALWAYS) -> None:
        """Begin with none.

        Args:
            policies: the keys of those that are judged; the first one is greedy.
        """
        self.level = 0  # one in 2**level is looked at
        self._policies = tuple(policies)
        self._estimates = tuple(RunningEstimate() for _ in policies)
        self._decided: dict[int, _Pending] = {}  # by the hash of the id, in the order of the decisions
        self._bits: dict[int, _Bit] = {}  # of those, that wait for earlier ones; and of such as are still to be read
        self._newest_ms = 0  # append time of the last prediction
        self._rows: list[tuple[tuple[float, ...], int]] = []  # weights and bit, that are to be counted

    def decide(self, number: int, weights: Callable[[], tuple[float, ...]], append_ms: int) -> Settled | None:
        """Take in a decision; with its bit, if that has been read.

        Args:
            number: the hash of its id.
            weights: of each policy π(a|x)/μ(a|x), NaN where it is not known; asked for where the sample has it.
            append_ms: of its prediction.
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
        self._decided[number] = _Pending(append_ms, weights())
        found = self._settled(number)
        self._advance()
        self._bound()
        return found

    def settle(self, number: int, example: Example, append_ms: int) -> Settled | None:
        """Take in what became of a decision; the decision with it, if it is known."""
        if not self._takes(number):
            return None
        self._bits[number] = _Bit(append_ms, example.reward if example.outcome is Outcome.MATCHED else None)
        found = self._settled(number)
        self._advance()
        self._bound()
        return found

    def estimates(self) -> tuple[RunningEstimate, ...]:
        """Of each policy, over the decisions that count."""
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
        return next((pending.append_ms for pending in self._decided.values()), None)

    def _takes(self, number: int) -> bool:
        return in_sample(number, self.level)

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
            self._decided = {number: one for number, one in self._decided.items() if self._takes(number)}
            self._bits = {number: one for number, one in self._bits.items() if self._takes(number)}
        if self.level and max(len(self._decided), len(self._bits)) < PENDING_MAX // 8:
            self.level -= 1

    def state(self) -> dict[str, Any]:
        """For JSON; `load` takes it over."""
        return {
            "level": self.level,
            "policies": self._policies,
            "estimates": [estimate.state() for estimate in self.estimates()],
            "decided": [[number, *pending] for number, pending in self._decided.items()],
            "bits": [[number, *bit] for number, bit in self._bits.items()],
            "newest_ms": self._newest_ms,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where another stood; of policies that it did not judge, nothing is known of what it has taken in."""
        self.level, self._newest_ms = state["level"], state["newest_ms"]
        places = {policy: place for place, policy in enumerate(state["policies"])}
        for policy, estimate in zip(self._policies, self._estimates, strict=True):
            if policy in places:
                estimate.load(state["estimates"][places[policy]])
        self._decided = {
            row[0]: _Pending(row[1], tuple(_weight(row[2], places.get(policy)) for policy in self._policies))
            for row in state["decided"]
        }
        self._bits = {row[0]: _Bit(*row[1:]) for row in state["bits"]}


def _weight(stored: Sequence[float | None], place: int | None) -> float:
    weight = None if place is None else stored[place]
    return nan if weight is None else weight  # orjson writes NaN as null
