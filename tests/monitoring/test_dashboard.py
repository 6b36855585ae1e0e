"""The data for the monitor's page: the pipeline's condition (such as alive or stuck), the ledger and the backlog."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from consumers.monitor.dashboard import CLASSES_SHOWN, Dashboard
from consumers.monitor.verdict import Condition
from stream.kafka.port import Ends
from stream.recovery.steps import JournalStep
from stream.telemetry import metrics
from stream.telemetry.metrics import METRICS
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from tests.monitoring.test_state import RECORDS, example, letter, prediction
from tests.pipeline import TOPICS


class Monitored:
    """The dashboard for a pipeline with one partition. The test controls the dashboard's clock."""

    def __init__(self) -> None:
        self.ms = 0
        self.dashboard = Dashboard(TOPICS, 1, lambda: self.ms)

    def update(self, after_ms: int, contexts: int, step: JournalStep | None, feedback: int = 0) -> tuple[str, str]:
        """Advance the clock, set the inputs' end offsets and the last step, and return the condition and its reason."""
        self.ms += after_ms
        tps = {TopicPartition(TOPICS.contexts, 0): contexts, TopicPartition(TOPICS.feedback, 0): feedback}
        ends = {tp: Ends(end, end) for tp, end in tps.items()}
        applied = (0, 0) if step is None else (step.contexts[1], step.feedback[1])
        waiting = {tp: end - start for (tp, end), start in zip(tps.items(), applied, strict=True)}
        self.dashboard.update_ends(ends, {} if step is None else {0: step}, waiting)
        verdict = self.dashboard.verdict()
        return verdict.condition, verdict.why

    def shown(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = orjson.loads(self.dashboard.as_json())
        return found


def step(number: int, contexts: int, **ledger: int) -> JournalStep:
    return JournalStep(number, (0, contexts), (0, ledger.get("feedback", 0)), 0, Ledger(contexts=contexts, **ledger))


def test_pipeline_without_records_is_idle() -> None:
    monitored = Monitored()
    assert monitored.update(60_000, 0, None)[0] == Condition.IDLE
    done = step(1, 5, decided=5, matched=5, feedback=5)
    monitored.update(500, 5, done, feedback=5)
    assert monitored.update(60_000, 5, done, feedback=5) == ("idle", "no records are waiting")


def test_pipeline_is_alive_while_steps_appear_and_stuck_otherwise() -> None:
    monitored = Monitored()
    monitored.update(0, 10, step(1, 10, decided=10, pending=10))
    assert monitored.update(1_000, 30, step(2, 30, decided=30, pending=30)) == (
        "alive",
        "20.0 decisions/s, 0.0 settled/s",
    )
    assert monitored.update(2_000, 4_130, step(2, 30, decided=30, pending=30))[0] == "alive"
    reported = monitored.update(1, 4_130, step(2, 30, decided=30, pending=30))
    assert reported == ("stuck", "no step for 2.0 s while 4,100 contexts wait")
    assert monitored.update(100, 4_130, step(3, 530, decided=530, pending=530))[0] == "alive"


def test_time_since_the_last_step_increases_between_responses_from_kafka() -> None:
    monitored = Monitored()
    monitored.update(0, 11, step(1, 10, decided=10, pending=10))
    monitored.ms += 2_600
    assert monitored.dashboard.verdict() == ("stuck", "no step for 2.6 s while 1 context waits")
    monitored.ms += 400
    assert monitored.dashboard.verdict().condition == "stuck"
    monitored.ms += 1
    assert monitored.dashboard.verdict() == ("unknown", "no response from Kafka for 3 s")


def test_pipeline_with_pending_decisions_is_stuck_without_regular_steps() -> None:
    monitored = Monitored()
    pending = step(1, 1, decided=1, pending=1)
    monitored.update(0, 1, pending)
    conditions = [monitored.update(3_000, 1, pending), monitored.update(1, 1, pending)]
    assert conditions == [
        ("alive", "1 decision is pending; the learner is making progress"),
        ("stuck", "no step for 3.0 s while 1 decision is pending"),
    ]


@pytest.mark.parametrize(
    ("ledger", "balanced"),
    [
        ({"decided": 3, "pending": 3}, True),
        ({"decided": 3, "deferred": 1, "unshown": 2}, True),
        ({"decided": 2}, False),
    ],
)
def test_page_shows_whether_the_ledger_adds_up(ledger: dict[str, int], balanced: bool) -> None:
    monitored = Monitored()
    monitored.update(0, 3, step(1, 3, **ledger))
    shown = monitored.shown()
    assert shown["balanced"] is balanced
    assert [book["holds"] for book in shown["books"]] == [balanced, balanced, True]
    assert shown["partitions"][0]["balanced"] is balanced


def test_dashboard_continues_identically_from_a_restored_state() -> None:
    first, second = Monitored(), Monitored()
    kept: dict[int, bytes] = {}
    for record in RECORDS[:4]:
        kept |= first.dashboard.take([record])
    second.dashboard.restore(0, kept[0])
    assert second.dashboard.take(RECORDS[:4]) == {}
    assert second.dashboard.take(RECORDS) == first.dashboard.take(RECORDS)
    assert second.shown() == first.shown()
    assert [one["reason"] for one in second.shown()["letters"]] == ["x: expected numbers"]


def test_monitor_exports_exactly_its_metrics() -> None:
    monitored = Monitored()
    monitored.dashboard.take([prediction(0)])
    monitored.update(0, 3, step(1, 3, decided=3, pending=3))
    everywhere = {metrics.BUILD_INFO, metrics.READY, metrics.LOOP_AGE}
    expected = {metric.name for metric in METRICS if metrics.MONITOR in metric.programs and metric not in everywhere}
    assert {sample.metric.name for sample in monitored.dashboard.samples()} == expected
    monitored.ms += 3_000
    assert metrics.STUCK.at(0.0) in monitored.dashboard.samples()
    monitored.update(1, 3, step(1, 3, decided=3, pending=3))
    assert metrics.STUCK.at(1.0) in monitored.dashboard.samples()


def test_rates_of_the_last_minute_use_broker_time_and_disappear_without_traffic() -> None:
    outage, now_ms = 1_000_000, 1_000_000 + 25 * 60_000
    monitored = Monitored()
    for append_ms, reward in ((outage, 0), (now_ms, 1)):
        bit = example(append_ms, reward=reward)
        monitored.dashboard.take([prediction(append_ms, append_ms=append_ms), bit._replace(append_ms=append_ms)])
    monitored.update(0, 0, None)
    assert monitored.shown()["error"][0] == monitored.shown()["partitions"][0]["error"][0] == 0.0
    monitored.ms += 70_000
    shown = monitored.shown()
    assert (shown["error"], shown["exploration"], shown["partitions"][0]["error"]) == (None, None, None)


@pytest.mark.parametrize(("faulty", "condition"), [(9, "alive"), (10, "degraded")])
@pytest.mark.parametrize("fault", ["context_malformed", "contexts_misplaced"])
def test_pipeline_is_degraded_at_5_percent_malformed_or_misplaced_records(
    fault: str, faulty: int, condition: str
) -> None:
    monitored = Monitored()
    good = step(1, 1_000, decided=1_000, matched=1_000)
    monitored.update(0, 1_000, good)
    malformed = faulty if fault == "context_malformed" else 0
    bad = step(2, 1_200, decided=1_200 - malformed, matched=1_200 - malformed, **{fault: faulty})
    assert monitored.update(1_000, 1_200, bad)[0] == condition
    monitored.update(60_001, 1_200, bad)
    assert monitored.update(60_001, 1_200, bad)[0] == "idle"


def test_dead_letters_are_counted_by_reason_over_all_partitions() -> None:
    dashboard = Dashboard(TOPICS, 2, lambda: 0)
    reasons = ["x: expected 3 numbers; got 2", "id: expected a text", "x: expected 3 numbers; got 4"]
    for partition in range(2):
        records = [letter(offset, reason) for offset, reason in enumerate(reasons)]
        dashboard.take([record._replace(partition=partition) for record in records])
    found = orjson.loads(dashboard.as_json())["letters"]
    assert [(one["n"], one["reason"]) for one in found] == [(4, reasons[2]), (2, reasons[1])]


def test_number_of_dead_letters_includes_reasons_that_are_not_shown() -> None:
    monitored = Monitored()
    counts = {"context_malformed": 30, "feedback_malformed": 5, "mismatched": 2, "orphans_dropped": 1}
    monitored.update(0, 40, step(1, 40, decided=10, pending=10, **counts))
    assert monitored.shown()["letters_in_all"] == 38


def test_number_of_classes_includes_classes_that_are_not_shown() -> None:
    monitored = Monitored()
    monitored.dashboard.take([prediction(number, action=number) for number in range(CLASSES_SHOWN + 5)])
    shown = monitored.shown()
    assert (len(shown["classes"]), shown["classes_in_all"]) == (CLASSES_SHOWN, CLASSES_SHOWN + 5)


def test_age_of_oldest_pending_decision_uses_broker_time() -> None:
    monitored = Monitored()
    waiting = step(1, 2, decided=2, pending=2)
    monitored.update(0, 2, waiting)
    assert monitored.shown()["oldest_s"] is None  # the monitor has not read the predictions yet
    monitored.dashboard.take([prediction(0, append_ms=1_000), prediction(1, append_ms=4_000)])
    monitored.update(500, 2, waiting)
    assert monitored.shown()["oldest_s"] == 3.5
    monitored.dashboard.take([example(0)])
    assert monitored.shown()["oldest_s"] == 0.5
    monitored.update(0, 2, step(2, 2, decided=2, matched=2, feedback=2))
    assert monitored.shown()["oldest_s"] == 0.0


def test_page_has_greedy_error_latency_and_policy_estimates() -> None:
    monitored = Monitored()
    asked = [Record(TOPICS.contexts, 0, offset, 100, None, b"", ()) for offset in range(10)]
    decided = [prediction(offset, action=1 + offset % 2, append_ms=107) for offset in range(10)]
    bits = [example(offset, reward=1 - offset % 2) for offset in range(10)]
    monitored.dashboard.take([*asked, *decided, *bits])
    shown = monitored.shown()
    assert (shown["error"][0], shown["greedy_error"][0], shown["windows"][0][3][0]) == (0.5, 0.0, 0.0)
    assert shown["latencies"]["quantiles_s"] == pytest.approx([0.007] * 3, rel=0.05)
    found = {one["policy"]: (one["n"], one["played"], round(one["estimates"][1][1], 9)) for one in shown["estimates"]}
    assert found == {"greedy": (10, 0.5, 1.0), "uniform": (10, 0.5, 0.5)}


@pytest.mark.parametrize(("decisions", "is_off"), [(90, False), (110, True)])
def test_policy_estimate_is_flagged_if_the_mean_weight_differs_from_1(decisions: int, is_off: bool) -> None:
    monitored = Monitored()
    for number in range(decisions):  # the logged propensity of 1/2 is wrong: all decisions play class 1
        monitored.dashboard.take([prediction(number, action=1), example(number)])
    assert {one["policy"]: one["off"] for one in monitored.shown()["estimates"]} == {
        "greedy": is_off,
        "uniform": is_off,
    }


def test_monitor_with_high_lag_reads_a_sample_of_ids() -> None:
    monitored = Monitored()
    tps = [TopicPartition(topic, 0) for topic in (TOPICS.predictions, TOPICS.examples)]

    def falls_behind_by(records: int, after_ms: int) -> int:
        monitored.ms += after_ms
        monitored.dashboard.take([])
        monitored.dashboard.update_ends({tp: Ends(records, records) for tp in tps}, {}, {})
        sample: int = monitored.shown()["sample"]
        return sample

    assert [falls_behind_by(records, 2_000) for records in (30_000, 40_000, 50_000)] == [2, 4, 8]
    assert falls_behind_by(20_000, 2_000) == 8  # while the lag decreases, the sample does not change
    taken = [record for offset in range(800) for record in (prediction(offset), example(offset))]
    monitored.dashboard.take(taken)
    shown = monitored.shown()
    assert 60 < shown["windows"][0][1] < 140
    assert shown["passed_over"] == 2 * (800 - shown["windows"][0][1])
    assert shown["delays"]["n"] == shown["windows"][0][1]
    assert [falls_behind_by(900, 30_000) for _ in range(4)] == [4, 2, 1, 1]
