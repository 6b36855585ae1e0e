"""A sketch of delays: counts in buckets that grow by a fixed ratio, so that a quantile is right within 5 %."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from math import ceil, inf, log
from typing import NamedTuple

from stream.telemetry.metrics import Counts, Metric, Sample

RATIO = 1.1
"""From one bucket's bound to the next: a value is within 5 % of its bucket's middle."""

_AT_ONCE = -1
"""The bucket of what is not later than 1 ms, and of feedback that was there before its decision."""


class Bin(NamedTuple):
    """A bar of a histogram."""

    low_s: float
    high_s: float
    n: int


class DelaySketch:
    """How late feedback was, or how long decisions took."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})  # by bucket: bucket b ends at RATIO**b ms

    def add(self, delay_ms: int, times: int = 1) -> None:
        """Take in a delay that stands for so many."""
        bucket = _AT_ONCE if delay_ms <= 1 else ceil(log(delay_ms, RATIO) - 1e-9)
        self.counts[bucket] = self.counts.get(bucket, 0) + times

    @property
    def size(self) -> int:
        """How many delays there are."""
        return sum(self.counts.values())

    def quantile_s(self, share: float) -> float | None:
        """The delay that this share stays below; None of none.

        >>> sketch = DelaySketch()
        >>> for delay_ms in (100, 200, 300, 400, 10_000):
        ...     sketch.add(delay_ms)
        >>> abs(sketch.quantile_s(0.5) - 0.3) < 0.05 * 0.3
        True
        """
        wanted, passed = share * self.size, 0
        for bucket in sorted(self.counts):
            passed += self.counts[bucket]
            if passed >= wanted:
                return _middle_s(bucket)
        return None

    def quantiles_s(self) -> list[float | None]:
        """The delays that a half, 90 % and 99 % stay below."""
        return [self.quantile_s(share) for share in (0.5, 0.9, 0.99)]

    def sample_of(self, metric: Metric) -> Sample:
        """As a histogram of this metric."""
        buckets, total = [0] * (len(metric.bounds) + 1), 0.0
        for bucket, count in self.counts.items():
            buckets[bisect_left(metric.bounds, _middle_s(bucket))] += count
            total += count * _middle_s(bucket)
        return metric.at(Counts(tuple(buckets), total))

    def as_lists(self) -> list[tuple[int, int]]:
        """The counts by bucket, for JSON."""
        return sorted(self.counts.items())

    def bins(self) -> list[Bin]:
        """The bars of a histogram, three for each power of ten, without the empty ones at both ends."""
        bounds = [0.0, *(round(mantissa * 10.0**power, 6) for power in range(-3, 6) for mantissa in (1, 2, 5)), inf]
        bars = [0] * (len(bounds) - 1)
        for bucket, count in self.counts.items():
            bars[next(at for at, bound in enumerate(bounds[1:]) if _middle_s(bucket) <= bound)] += count
        filled = [at for at, count in enumerate(bars) if count]
        if not filled:
            return []
        return [Bin(bounds[at], bounds[at + 1], bars[at]) for at in range(filled[0], filled[-1] + 1)]

    def __add__(self, other: "DelaySketch") -> "DelaySketch":
        """Both together."""
        both = DelaySketch(self.counts)
        for bucket, count in other.counts.items():
            both.counts[bucket] = both.counts.get(bucket, 0) + count
        return both


def _middle_s(bucket: int) -> float:
    return 0.0 if bucket == _AT_ONCE else RATIO ** (bucket - 0.5) / 1_000


def total_sketch(sketches: Iterable[DelaySketch]) -> DelaySketch:
    """All together."""
    return sum(sketches, start=DelaySketch())
