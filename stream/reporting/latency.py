"""How long decisions take: from the append time of a context to that of its prediction.

Both are the broker's, so that no host's clock counts. A reader of committed records sees a prediction a little later,
when its transaction is committed: no record tells that time.
"""

from typing import Literal, NamedTuple

from stream.telemetry.sketch import Sketch


class Latency(NamedTuple):
    """How long decisions took, in ms; right within 2.4 %."""

    median_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


def quantiles(latencies: Sketch) -> Latency | None:
    """The latency that each share of the decisions did not exceed; None without decisions.

    >>> quantiles(Sketch({35: 98, 66: 1, 93: 1}))
    Latency(median_ms=5, p90_ms=5, p99_ms=20, max_ms=71)
    """
    found = [latencies.quantile_s(share) for share in (0.5, 0.9, 0.99, 1.0)]
    return Latency(*(round(1_000 * one) for one in found if one is not None)) if latencies.size else None


class LatencyCounts(NamedTuple):
    """How long the learner took, in real time, and how often."""

    of: Literal["decision", "step"]  # from a context in its topic to its prediction; or, embedded, for a whole step
    counts: Sketch
