"""Counts per time window, and shares with confidence intervals."""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from operator import add
from typing import Any, NamedTuple

from stream.estimating.survey import effective_sample_size
from stream.wire.rewards import RewardRange

WINDOW_MS = 10_000
SHOWN_MS = 30 * 60_000
"""Time span shown on the page; use Prometheus for longer periods."""

WINDOWS_MAX = SHOWN_MS // WINDOW_MS

RECENT_MS = 60_000
"""Time span over which the page computes current values."""

Z = 1.959964
"""The 97.5th percentile of the normal distribution."""


class DecisionCounts(NamedTuple):
    """Counts of decisions, in a time window or for a class."""

    decided: int = 0
    explored: int = 0  # decisions whose action was not greedy
    matched: int = 0
    rewards: float = 0  # matched decisions with a reward of 1, or the sum of the rewards as shares
    expired: int = 0
    weighed: int = 0  # matched decisions with a known weight
    weight: float = 0.0  # Σ w with w = 1[action = greedy]/propensity
    weight_squares: float = 0.0  # Σ w²
    weighted_rewards: float = 0.0  # Σ w reward

    def __add__(self, other: object) -> "DecisionCounts":
        """Add two counts."""
        if not isinstance(other, DecisionCounts):
            return NotImplemented
        return DecisionCounts(*map(add, self, other))

    @property
    def error(self) -> "Share | None":
        """The share of wrong actions, or the mean loss, among matched decisions; None if there are none."""
        return share(self.matched - self.rewards, self.matched)

    @property
    def greedy_error(self) -> "Share | None":
        """The estimated error of the greedy action (snips), or None if no greedy action was played.

        The interval uses the effective sample size.
        """
        if not self.weight:
            return None
        ess = effective_sample_size(self.weight, self.weight_squares)
        return share((1.0 - self.weighted_rewards / self.weight) * ess, ess)

    @property
    def exploration(self) -> "Share | None":
        """The share of decisions whose action was not greedy."""
        return share(self.explored, self.decided)


class Share(NamedTuple):
    """A share with its 95% Wilson score interval (Wilson, 1927).

    For a mean loss, the interval is wider than necessary, because a loss varies less than a bit with the same mean.
    """

    value: float
    low: float
    high: float
    n: int

    def as_reward(self, rewards: RewardRange) -> "Share":
        """Return the mean reward, with its interval, for a mean loss."""
        value, low, high = (rewards.value(1.0 - loss) for loss in (self.value, self.high, self.low))
        return Share(value, low, high, self.n)


def share(count: float, n: float) -> Share | None:
    """Return `count` as a share of n, or None if n is 0.

    >>> share(10, 100)
    Share(value=0.1, low=0.0552, high=0.1744, n=100)
    """
    if n == 0:
        return None
    p = min(max(count / n, 0.0), 1.0)  # limited to [0, 1], because weighted counts have rounding errors
    middle, spread = p + Z * Z / (2 * n), Z * sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    low, high = ((middle + sign * spread) / (1 + Z * Z / n) for sign in (-1, 1))
    return Share(round(p, 4), round(max(low, 0.0), 4), round(min(high, 1.0), 4), round(n))


class Windows:
    """Counts per time window; only the most recent windows are stored."""

    def __init__(self, counts: Mapping[int, DecisionCounts] | None = None) -> None:
        self.counts: dict[int, DecisionCounts] = dict(counts or {})  # counts by the start of the window in ms

    def add(self, append_ms: int, counts: DecisionCounts) -> None:
        """Add a record's counts at this append time."""
        start_ms = window_start(append_ms)
        self.counts[start_ms] = self.counts.get(start_ms, DecisionCounts()) + counts
        if len(self.counts) > WINDOWS_MAX:
            del self.counts[min(self.counts)]

    def since(self, start_ms: int) -> DecisionCounts:
        """Return the sum of the windows that start at `start_ms` or later."""
        return sum((counts for at_ms, counts in self.counts.items() if at_ms >= start_ms), start=DecisionCounts())


def total_windows(parts: Iterable[Windows]) -> Windows:
    """Merge the windows from all partitions."""
    together: dict[int, DecisionCounts] = {}
    for part in parts:
        for start_ms, counts in part.counts.items():
            together[start_ms] = together.get(start_ms, DecisionCounts()) + counts
    return Windows({start_ms: together[start_ms] for start_ms in sorted(together)[-WINDOWS_MAX:]})


def window_start(append_ms: int) -> int:
    """Return the start of the window that contains an append time.

    >>> window_start(12_345)
    10000
    """
    return append_ms - append_ms % WINDOW_MS


def as_lists(counts: Mapping[int, DecisionCounts]) -> list[Sequence[float]]:
    """Return counts as lists for JSON. Each list starts with the key of its counts."""
    return [[number, *values] for number, values in sorted(counts.items())]


def from_lists(rows: Iterable[Sequence[Any]]) -> dict[int, DecisionCounts]:
    """Restore the counts from the lists that `as_lists` returns."""
    return {row[0]: DecisionCounts(*row[1:]) for row in rows}
