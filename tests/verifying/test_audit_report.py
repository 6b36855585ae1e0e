"""Output of an audit: findings as JSON, decision latencies and progress messages."""

import pytest

from stream.measures.latencies import Latency, quantiles
from stream.telemetry.sketch import Sketch
from stream.verifying import audit
from stream.verifying.audit import Finding, audit_partition, latencies_of
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


def test_json_of_a_finding_has_all_fields() -> None:
    ledger, audited = Ledger(contexts=1), Ledger(contexts=2)
    finding = Finding(3, ledger, audited, ("a fault",), 4, 5, ("deleted",), ("foreign",), 6, Sketch.of([7]))
    assert finding.as_json() == {
        "partition": 3,
        "ok": False,
        "learner": ledger._asdict(),
        "audited": audited._asdict(),
        "faults": ("a fault",),
        "deleted": ("deleted",),
        "foreign": ("foreign",),
        "foreign_count": 6,
        "clock_steps": (),
        "exact_from": 1,
        "contexts_behind": 4,
        "feedback_behind": 5,
        "latency": {"median_ms": 7, "p90_ms": 7, "p99_ms": 7, "max_ms": 7},
    }


def test_progress_is_reported_after_a_fixed_number_of_records(good: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PROGRESS_RECORDS", 3)
    reported: list[str] = []
    audit_partition(good.broker, TOPICS, 0, reported.append)
    assert (
        sum(str(TopicPartition(TOPICS.feedback, 0)) in message for message in reported) == 1 + 3
    )  # at the start and every three records


def test_decision_latency_is_measured_from_context_to_prediction() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for event_id, waits_ms in (("a", 5), ("b", 0), ("c", 40)):
        pipeline.context(event_id)
        pipeline.clock.advance_to(pipeline.now_ms() + waits_ms)
        run_until_idle(learner)
    finding = audit_partition(pipeline.broker, TOPICS, 0)
    assert finding.latencies == Sketch.of((0, 5, 40))
    assert quantiles(latencies_of([finding, finding])) == Latency(median_ms=5, p90_ms=41, p99_ms=41, max_ms=41)
