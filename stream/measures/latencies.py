"""Latencies and delays in a run, and a shared model's replicas."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stream.telemetry.sketch import Sketch


class Latency(Struct, frozen=True):
    """Decision latency in ms, accurate to within 2.4%."""

    median_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


def quantiles(latencies: Sketch) -> Latency | None:
    """Return latency percentiles, or None if there are no decisions.

    >>> quantiles(Sketch({35: 98, 66: 1, 93: 1}))
    Latency(median_ms=5, p90_ms=5, p99_ms=20, max_ms=71)
    """
    found = [latencies.quantile_s(share) for share in (0.5, 0.9, 0.99, 1.0)]
    return Latency(*(round(1_000 * one) for one in found if one is not None)) if latencies.size else None


class LatencyCounts(Struct, frozen=True):
    """Histogram of latencies in real time."""

    of: Literal["decision", "step"]  # time from context to prediction; in an embedded run, duration of a step
    counts: Sketch


class Delays(Struct, frozen=True):
    """Delays between a decision and its matched feedback, in ms."""

    median_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


def summarise_delays(delays_ms: Sequence[float] | NDArray[Any]) -> Delays | None:
    """Return quantiles of the delays for all matched feedback, or None if there is none."""
    if len(delays_ms) == 0:
        return None
    return Delays(*np.quantile(np.asarray(delays_ms, dtype=np.float64), (0.5, 0.9, 0.99, 1.0)).tolist())


class ReplicaReport(Struct, frozen=True):
    """A replica of a shared model after it has read the whole log."""

    instance: str  # the learner process that has this replica
    version: int  # number of log entries
    sha256: str  # digest of the replica's state


class Behind(Struct, frozen=True):
    """Counts of entries in a shared model's log that precede a step's own but did not affect the step's decisions."""

    median: int
    p99: int
    max: int
