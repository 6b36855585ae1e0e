"""Formats samples in the Prometheus text format. Only this module imports the Prometheus library."""

from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from stream.telemetry.metrics import HistogramCounts, Metric, MetricKind, Sample


def exposition(samples: Iterable[Sample], accept: str = "") -> tuple[str, bytes]:
    """Return the content type and the text of the response to a scrape.

    Args:
        samples: The samples, in any order.
        accept: The request's Accept header.
    """
    registry = CollectorRegistry()
    registry.register(_Samples(samples))
    ProcessCollector(registry=registry)  # memory, CPU time and open files from /proc; empty on systems without it
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


class _Samples(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = sorted(samples, key=lambda sample: sample.metric.name)

    def collect(self) -> Iterator[Family]:
        """Yield one family per metric."""
        for metric, samples in groupby(self._samples, key=lambda sample: sample.metric):
            yield _family(metric, samples)


def _family(metric: Metric, samples: Iterable[Sample]) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for _, labels, value in samples:
            assert isinstance(value, HistogramCounts)
            bounds = [*map(str, metric.bounds), "+Inf"]
            histogram.add_metric(labels, list(zip(bounds, accumulate(value.buckets), strict=True)), value.total)
        return histogram
    family = (CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for _, labels, value in samples:
        assert not isinstance(value, HistogramCounts)
        family.add_metric(labels, value)
    return family
