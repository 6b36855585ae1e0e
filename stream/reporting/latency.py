"""How long decisions take: from the append time of a context to that of its prediction.

Both are the broker's, so that no host's clock counts. A reader of committed records sees a prediction a little later,
when its transaction is committed: no record tells that time.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from stream.reporting.histograms import Histogram, histogram

EXACT_MS_MAX = 1_000
"""Longer ones are kept to three digits, so that a backlog of hours has few thousand different ones."""


class Latency(NamedTuple):
    """How long decisions took, in ms."""

    median_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


Latencies = Counter[int]
"""How many decisions took so many milliseconds."""

NO_LATENCIES: Latencies = Counter()


def counted(latencies_ms: Iterable[tuple[int, int]]) -> Latencies:
    """Latencies in ms, and how many decisions had each, as they are kept.

    >>> counted([(12, 3), (123_456, 1), (123_499, 2)])
    Counter({12: 3, 123000: 3})
    """
    kept: Latencies = Counter()
    for latency_ms, decisions in latencies_ms:
        grain = 10 ** max(0, len(str(latency_ms)) - 3) if latency_ms > EXACT_MS_MAX else 1
        kept[latency_ms - latency_ms % grain] += decisions
    return kept


def quantiles(latencies: Latencies) -> Latency | None:
    """The least latency that each share of the decisions did not exceed; None without decisions.

    >>> quantiles(Counter({5: 98, 20: 1, 70: 1}))
    Latency(median_ms=5, p90_ms=5, p99_ms=20, max_ms=70)
    """
    decisions = latencies.total()
    if not decisions:
        return None
    found, passed = [], 0
    ordered = iter(sorted(latencies.items()))
    latency_ms = 0
    for percent in (50, 90, 99, 100):
        while 100 * passed < percent * decisions:
            latency_ms, more = next(ordered)
            passed += more
        found.append(latency_ms)
    return Latency(*found)


class LatencyCounts(NamedTuple):
    """How long the learner took, in real time, and how often."""

    of: Literal["decision", "step"]  # from a context in its topic to its prediction; or, embedded, for a whole step
    counts: Histogram


def decision_counts(latencies: Latencies) -> LatencyCounts | None:
    """The same as a histogram; None without decisions."""
    counts = histogram(np.repeat(list(latencies), list(latencies.values())))
    return None if counts is None else LatencyCounts("decision", counts)
