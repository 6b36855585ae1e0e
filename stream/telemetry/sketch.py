"""A mergeable sketch of durations: counts in logarithmic buckets that are the same in every program.

Masson, Rim, Lee, "DDSketch", PVLDB 12, 2019. The buckets grow by a fixed ratio, so the relative error of a quantile is
bounded for any distribution. There are fifty buckets per decade, so each bar in a chart consists of whole buckets.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil, inf, log10
from typing import NamedTuple

from stream.telemetry.metrics import HistogramCounts, Metric, Sample

BUCKETS_PER_DECADE = 50
"""Number of buckets per power of ten. A duration is within 2.4% of the middle of its bucket."""

SHORTEST = -3 * BUCKETS_PER_DECADE
"""The bucket for all durations up to a microsecond, including negative durations."""


class Bin(NamedTuple):
    """A bar in a histogram."""

    low_s: float
    high_s: float
    n: int


class Sketch:
    """Counts of durations per bucket; bucket b ends at 10**(b / BUCKETS_PER_DECADE) ms."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: Counter[int] = Counter(counts or {})

    @classmethod
    def of(cls, spans_ms: Iterable[float]) -> "Sketch":
        """Create a sketch of durations."""
        sketch = cls()
        for span_ms in spans_ms:
            sketch.add(span_ms)
        return sketch

    def add(self, span_ms: float, times: int = 1) -> None:
        """Add a duration `times` times."""
        bucket = SHORTEST if span_ms <= 0.001 else ceil(log10(span_ms) * BUCKETS_PER_DECADE - 1e-9)
        self.counts[bucket] += times

    def __eq__(self, other: object) -> bool:
        """Return whether the counts are equal."""
        return isinstance(other, Sketch) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def size(self) -> int:
        """The number of durations."""
        return self.counts.total()

    def quantile_s(self, share: float) -> float | None:
        """Return the quantile `share` of the durations in seconds, or None if the sketch is empty.

        >>> sketch = Sketch.of((100, 200, 300, 400, 10_000))
        >>> abs(sketch.quantile_s(0.5) - 0.3) < 0.024 * 0.3
        True
        """
        wanted, passed = share * self.size, 0
        for bucket in sorted(self.counts):
            passed += self.counts[bucket]
            if passed >= wanted:
                return _middle_s(bucket)
        return None

    def quantiles_s(self) -> list[float | None]:
        """Return the median, the 90th and the 99th percentile."""
        return [self.quantile_s(share) for share in (0.5, 0.9, 0.99)]

    def sample_of(self, metric: Metric) -> Sample:
        """Return the counts as a histogram sample for this metric."""
        buckets, total = [0] * (len(metric.bounds) + 1), 0.0
        for bucket, count in self.counts.items():
            buckets[bisect_left(metric.bounds, _middle_s(bucket))] += count
            total += count * _middle_s(bucket)
        return metric.at(HistogramCounts(tuple(buckets), total))

    def as_lists(self) -> list[tuple[int, int]]:
        """Return the counts by bucket, for JSON."""
        return sorted(self.counts.items())

    def bins(self) -> list[Bin]:
        """Return the bars of a histogram, three per decade, without the empty bars at either end."""
        bounds = [0.0, *(round(mantissa * 10.0**power, 6) for power in range(-3, 6) for mantissa in (1, 2, 5)), inf]
        bars = [0] * (len(bounds) - 1)
        for bucket, count in self.counts.items():
            bars[next(at for at, bound in enumerate(bounds[1:]) if _middle_s(bucket) <= bound)] += count
        filled = [at for at, count in enumerate(bars) if count]
        if not filled:
            return []
        return [Bin(bounds[at], bounds[at + 1], bars[at]) for at in range(filled[0], filled[-1] + 1)]

    def shares(self, per_decade: int) -> dict[int, float]:
        """Return the share of durations per bin; bin i ends at 10**(i / per_decade) ms and spans whole buckets."""
        wide: Counter[int] = Counter()
        for bucket, count in self.counts.items():
            wide[-(-bucket * per_decade // BUCKETS_PER_DECADE)] += count
        return {place: count / self.size for place, count in wide.items()}


def _middle_s(bucket: int) -> float:
    return 0.0 if bucket == SHORTEST else 10.0 ** ((bucket - 0.5) / BUCKETS_PER_DECADE) / 1_000


def total_sketch(sketches: Iterable[Sketch]) -> Sketch:
    """Merge sketches."""
    total: Counter[int] = Counter()
    for sketch in sketches:
        total.update(sketch.counts)
    return Sketch(total)
