"""A run's progressive error and report."""

import doctest
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.measures import errors
from stream.measures.errors import CURVE_POINTS_MAX, ErrorCurve, Errors, constant_error_rate, evaluate, half_width
from stream.measures.latencies import Delays, summarise_delays
from stream.reporting import runs, tables
from stream.reporting.runs import LearnerRun
from stream.reporting.tables import comparison, duration, labels, percent
from stream.wire.ledger import Ledger

BALANCED = Ledger(
    contexts=110,
    decided=100,
    context_duplicates=7,
    context_malformed=3,
    feedback=98,
    matched=80,
    expired=15,
    pending=5,
    late=6,
    feedback_duplicates=4,
    conflicts=1,
    orphans_waiting=2,
    orphans_dropped=3,
    feedback_malformed=3,
)

MISTAKES = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=2000)


def run_report(**changes: Any) -> LearnerRun:
    fields: dict[str, Any] = {
        "data": "optdigits",
        "learner": "banditron",
        "parameters": {"gamma": 0.05},
        "seed": 1,
        "events": 100,
        "classes": 10,
        "features": 64,
        "ledger": BALANCED,
        "errors": errors_of([(True, False)] * 30 + [(False, False)] * 70),
        "updates": 80,
        "state_sha256": "ab" * 32,
        "virtual_s": 60.0,
        "wall_s": 0.5,
        "settings": {"delay": "fixed:10s", "loss": 0.02},
    }
    return LearnerRun(**(fields | changes))


def errors_of(mistakes: list[tuple[bool, bool]]) -> Errors:
    curve = ErrorCurve()
    for mistake, greedy_mistake in mistakes:
        curve.add(mistake, greedy_mistake)
    return curve.summary()


def test_doctests_pass() -> None:
    assert [doctest.testmod(module).failed for module in (errors, runs, tables)] == [0, 0, 0]


@given(MISTAKES)
def test_error_rates_agree_with_plain_counting(mistakes: list[tuple[bool, bool]]) -> None:
    errors = errors_of(mistakes)
    action = [mistake for mistake, _ in mistakes]
    last_fifth = action[len(action) * 4 // 5 :]
    assert errors.events == len(action)
    assert errors.mistakes == sum(action)
    assert errors.error_rate == sum(action) / len(action)
    assert errors.error_rate_last_fifth == sum(last_fifth) / len(last_fifth)
    assert errors.greedy_error_rate == sum(greedy for _, greedy in mistakes) / len(mistakes)


@given(MISTAKES)
def test_every_point_of_the_error_curve_agrees_with_plain_counting(mistakes: list[tuple[bool, bool]]) -> None:
    errors = errors_of(mistakes)
    action = [mistake for mistake, _ in mistakes]
    for point in errors.points:
        assert point.error_rate == sum(action[: point.events]) / point.events
        if point.events < errors.window_events:
            assert math.isnan(point.window_error_rate)
        else:
            window = action[point.events - errors.window_events : point.events]
            assert point.window_error_rate == sum(window) / errors.window_events


@pytest.mark.parametrize("events", [1, 2, 7, 399, 5620, 200_000])
def test_error_curve_has_a_limited_number_of_points_and_includes_both_ends(events: int) -> None:
    at = [point.events for point in errors_of([(False, True)] * events).points]
    assert (at[0], at[-1]) == (1, events)
    assert at == sorted(set(at))
    assert len(at) <= CURVE_POINTS_MAX


def test_error_curve_can_continue_after_a_summary() -> None:
    curve = ErrorCurve()
    curve.add(True, True)
    before = curve.summary()
    curve.add(False, False)
    assert (before.error_rate, curve.summary().error_rate, curve.error_rate, len(curve)) == (1.0, 0.5, 0.5, 2)


def test_error_curve_accepts_numpy_booleans() -> None:
    curve = ErrorCurve()
    curve.add(np.True_, np.False_)  # type: ignore[arg-type]
    assert (curve.summary().error_rate, curve.summary().greedy_error_rate) == (1.0, 0.0)


def test_run_without_decisions_has_no_error_rates() -> None:
    errors = ErrorCurve().summary()
    assert (errors.events, errors.mistakes, errors.points) == (0, 0, ())
    assert math.isnan(errors.error_rate)
    assert math.isnan(errors.error_rate_last_fifth)
    assert math.isnan(errors.greedy_error_rate)


def test_delays_are_summarised_by_quantiles() -> None:
    delays = summarise_delays(np.arange(101))
    assert delays == Delays(50.0, 90.0, 99.0, 100.0)
    assert summarise_delays([]) is None


def test_constant_error_rate_is_that_of_the_most_frequent_class() -> None:
    assert constant_error_rate([1, 3]) == 0.25
    assert math.isnan(constant_error_rate([]))
    assert math.isnan(constant_error_rate([0, 0]))


def test_json_starts_with_the_documented_keys_in_order() -> None:
    promised = [
        "data", "learner", "params", "seed", "events", "classes", "features", "decided", "matched", "expired",
        "pending", "late", "duplicates", "orphans", "conflicts", "malformed", "mistakes", "error_rate",
        "error_rate_last_fifth", "greedy_error_rate", "updates", "ledger_ok", "state_sha256", "virtual_s", "wall_s",
        "events_per_s", "report"
    ]  # fmt: skip
    assert list(run_report().to_dict())[: len(promised)] == promised


def test_counts_in_the_json_equal_the_ledger_and_the_errors() -> None:
    found = run_report(page="run.html").to_dict()
    expected = {
        "decided": 100,
        "matched": 80,
        "expired": 15,
        "pending": 5,
        "late": 6,
        "duplicates": 11,
        "orphans": 5,
        "conflicts": 1,
        "malformed": 6,
        "mistakes": 30,
        "error_rate": 0.3,
        "error_rate_last_fifth": 0.0,
        "greedy_error_rate": 0.0,
        "ledger_ok": True,
        "events_per_s": 200.0,
        "report": "run.html",
        "ledger": BALANCED._asdict(),
    }
    assert {key: found[key] for key in expected} == expected


def test_json_reports_an_unbalanced_ledger() -> None:
    assert run_report(ledger=BALANCED._replace(expired=16)).to_dict()["ledger_ok"] is False


def test_json_of_a_run_without_decisions_is_strict_json() -> None:
    report = run_report(
        ledger=Ledger(),
        errors=ErrorCurve().summary(),
        wall_s=0.0,
        settings={"until": math.inf, "path": object, "list": (1, np.float64(0.5))},
    )
    text = json.dumps(report.to_dict(), allow_nan=False)
    found = json.loads(text)
    assert (found["error_rate"], found["events_per_s"], found["constant_error_rate"]) == (None, None, None)
    assert found["settings"]["list"] == [1, 0.5]


def test_runs_are_compared_in_one_table() -> None:
    better = evaluate([0] * 100, [0] * 100, [0] * 90 + [1] * 10)
    fewer = run_report().ledger._replace(matched=79, pending=6, late=7)
    table = comparison([run_report(), run_report(learner="perceptron", wall_s=61.0, errors=better, ledger=fewer)])
    assert table.columns == ("learner", "error", "last fifth", "greedy", "matched", "wall time")
    assert [row[0] for row in table.rows] == ["perceptron", "banditron"], "sorted by error"
    assert [row[-2:] for row in table.rows] == [("79", "1 min 1 s"), ("80", "500 ms")]
    assert table.notes[0] == "The same for all: 15 expired, 6 malformed and 11 duplicate."


def test_note_below_the_table_of_a_single_run_contains_the_counts() -> None:
    table = comparison([run_report()])
    assert table.columns == ("learner", "error", "last fifth", "greedy", "wall time")
    assert table.notes[0] == "80 matched, 15 expired, 6 malformed, 6 late and 11 duplicate."


def test_error_interval_equals_the_binomial_interval_and_is_not_widened_by_a_trend() -> None:
    draws = np.random.default_rng(1)
    steady = half_width(draws.random(20_000) < 0.2)
    assert steady == pytest.approx(1.96 * math.sqrt(0.2 * 0.8 / 20_000), rel=0.25)
    falling = half_width(draws.random(20_000) < np.linspace(0.4, 0.0, 20_000))
    assert falling < 1.25 * steady
    assert math.isnan(half_width(np.ones(99)))


@pytest.mark.parametrize("outcome", ["unmatched", "unshown"])
def test_rare_outcome_has_a_column_only_if_it_occurs(outcome: str) -> None:
    some = run_report(ledger=Ledger(contexts=9, decided=9, matched=2)._replace(**{outcome: 7}))
    table = comparison([run_report(), some])
    assert [row[table.columns.index(outcome)] for row in table.rows] == ["0", "7"]
    assert outcome not in comparison([run_report()]).columns


def test_labels_distinguish_runs_of_a_learner_by_their_parameters() -> None:
    reports = [
        run_report(parameters={"gamma": 0.05, "a": 1.0}),
        run_report(parameters={"gamma": 0.0078125, "a": 1.0}),
        run_report(learner="perceptron", parameters={}),
    ]
    assert labels(reports) == ("banditron gamma=0.05", "banditron gamma=0.0078125", "perceptron")


def test_labels_of_equal_runs_are_numbered() -> None:
    assert labels([run_report(), run_report()]) == ("banditron #1", "banditron #2")
    found = labels([run_report(), run_report(), run_report(parameters={"gamma": 0.1})])
    assert len(set(found)) == 3


@given(st.floats(0, 1))
def test_printed_percentage_has_a_small_rounding_error(rate: float) -> None:
    text = percent(rate)
    if not text.startswith("<"):
        assert float(text.removesuffix("%")) == pytest.approx(100 * rate, rel=0.06, abs=0.0005)


@given(st.floats(0, 1e6))
def test_printed_duration_has_less_than_60_seconds_and_60_minutes(seconds: float) -> None:
    words = duration(seconds).split()
    values = {unit: float(value.replace(",", "")) for value, unit in zip(words[::2], words[1::2], strict=True)}
    assert values.get("s", 0) < 60
    assert values.get("min", 0) < 60
