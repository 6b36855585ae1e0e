"""The metrics' names and documentation, and the samples that are computed from counts."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from stream.telemetry import metrics
from stream.telemetry.metrics import METRICS, HistogramCounts, MetricKind
from stream.telemetry.samples import RECENT, RewardCounts, ledger_samples
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import IDENTITIES, Ledger
from stream.wire.records import Example, Outcome

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
UNITS = (
    "_seconds", "_records", "_ratio", "_events", "_decisions", "_orphans", "_info", "_version", "_requests",
    "_classes",
)  # fmt: skip


def test_metric_names_follow_prometheus_conventions() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"onebit_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        states = (metrics.READY, metrics.LEDGER_BALANCED, metrics.STUCK, metrics.HOLDOUT_MISMATCH)
        assert metric.kind is MetricKind.COUNTER or metric in states or metric.name.endswith(UNITS), metric.name
        assert bool(metric.bounds) == (metric.kind is MetricKind.HISTOGRAM), metric.name
        assert list(metric.bounds) == sorted(set(metric.bounds))


def test_docs_list_every_metric() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `onebit_")]
    assert rows == [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '–'} | {', '.join(metric.programs)} "
        f"| {metric.help} |"
        for metric in METRICS
    ]


def test_metrics_contain_every_ledger_count() -> None:
    """Every count is a different power of two, so a sum identifies the counts that it contains."""
    ledger = Ledger(*(2**bit for bit in range(len(Ledger._fields))))
    reported = {(sample.metric.name, sample.labels): sample.value for sample in ledger_samples(3, ledger, 5, 7)}
    assert {labels[0] for _, labels in reported} == {"3"}

    def summed(metric: metrics.Metric) -> float:
        values = [value for (name, _), value in reported.items() if name == metric.name]
        return sum(value for value in values if not isinstance(value, HistogramCounts))

    parts = {total: sum(getattr(ledger, part) for part in parts) for total, parts in IDENTITIES.items()}
    assert summed(metrics.CONTEXTS) == parts["contexts"]
    assert summed(metrics.PENDING) + summed(metrics.DEFERRED) + summed(metrics.SETTLED) == parts["decided"]
    waiting = summed(metrics.WAITING_ORPHANS) + summed(metrics.ANSWERED)
    assert summed(metrics.FEEDBACK_RECORDS) + waiting == parts["feedback"]
    malformed = ledger.context_malformed + ledger.feedback_malformed
    refused = ledger.mismatched + ledger.feedback_excess
    assert summed(metrics.DEAD_LETTERS) == malformed + refused + ledger.orphans_dropped
    assert summed(metrics.MISPLACED) == ledger.contexts_misplaced + ledger.feedback_misplaced
    assert reported[metrics.MODEL_VERSION.name, ("3",)] == 5
    assert reported[metrics.DRIFT_ALARMS.name, ("3",)] == 7
    assert reported[metrics.LEDGER_BALANCED.name, ("3",)] == 0


@pytest.mark.parametrize(("ledger", "balanced"), [(Ledger(), 1.0), (Ledger(decided=1), 0.0)])
def test_metrics_show_whether_the_ledger_balances(ledger: Ledger, balanced: float) -> None:
    assert metrics.LEDGER_BALANCED.at(balanced, "0") in tuple(ledger_samples(0, ledger, 0, 0))


def test_upper_histogram_bounds_are_inclusive_and_negative_values_count_as_0() -> None:
    found = Sketch.of([5, 6, -1, 320_000]).sample_of(metrics.DECISION_LATENCY).value
    assert isinstance(found, HistogramCounts)
    assert found.buckets == (2, 1, *[0] * 11, 1)
    assert found.total == pytest.approx(320.011, rel=0.024)


def matched(rewards: Sequence[int]) -> list[Example]:
    return [Example(str(at), Outcome.MATCHED, 0, 0.5, reward, 200, 0, 0) for at, reward in enumerate(rewards)]


def test_reward_metrics_count_only_matched_decisions() -> None:
    counts = RewardCounts()
    assert metrics.REWARD_RATIO not in [sample.metric for sample in counts.samples()]
    counts.add([Example("never answered", Outcome.EXPIRED, 0, 0.5, 0, None, 0, None), *matched([0, 1])])
    assert metrics.REWARD_RATIO.at(0.5) in tuple(counts.samples())
    counts.add(matched([1] * RECENT))
    reported = {sample.metric: sample.value for sample in counts.samples()}
    assert reported[metrics.JUDGED] == RECENT + 2
    assert reported[metrics.REWARDS] == RECENT + 1
    assert reported[metrics.REWARD_RATIO] == 1.0
    delays = reported[metrics.FEEDBACK_DELAY]
    assert isinstance(delays, HistogramCounts)
    assert sum(delays.buckets) == delays.buckets[2] == RECENT + 2
