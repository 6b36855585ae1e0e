"""Parsing of delay specifications, quantiles of the delay distributions, and an event's feedback plan."""

import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stream.parsing import DURATION_MS_MAX
from stream.randomness.delays import (
    NO_DELAY,
    DelayError,
    DelayModel,
    Empirical,
    Exponential,
    FeedbackPlan,
    Fixed,
    Geometric,
    Law,
    LogNormal,
    Weibull,
    parse_delay,
)

LARGEST_U = 1.0 - 2.0**-53
UNIFORMS = st.integers(0, 2**53 - 1).map(lambda bits: bits * 2.0**-53)
FALSE_ALARM = 1e-6
"""False-alarm rate of a statistical test. The seeds are fixed, so the result changes only if the code changes."""

EVENT_IDS = [f"synsep-0-{row:06}" for row in range(20_000)]


def laws() -> st.SearchStrategy[Law]:
    duration_ms = st.integers(1, DURATION_MS_MAX)
    return st.one_of(
        st.builds(Fixed, st.integers(0, DURATION_MS_MAX)),
        st.builds(Geometric, duration_ms),
        st.builds(Exponential, duration_ms),
        st.builds(LogNormal, duration_ms, st.floats(0.0, 1e6)),
        st.builds(Weibull, duration_ms, st.floats(1e-6, 1e6)),
        st.builds(Empirical, st.lists(st.integers(0, DURATION_MS_MAX), min_size=1).map(lambda d: tuple(sorted(d)))),
    )


@pytest.mark.parametrize(
    ("spec", "law"),
    [
        ("none", Fixed(0)),
        ("fixed:10s", Fixed(10_000)),
        ("geometric:10s", Geometric(10_000)),
        ("exponential:10s", Exponential(10_000)),
        ("lognormal:10s,1.0", LogNormal(10_000, 1.0)),
        ("lognormal: 1m , 0", LogNormal(60_000, 0.0)),
        ("weibull:10s,0.7", Weibull(10_000, 0.7)),
        (" fixed:1s ", Fixed(1_000)),
    ],
)
def test_delay_specification_is_parsed_into_a_law(spec: str, law: Law) -> None:
    assert parse_delay(spec) == DelayModel(spec, law)


def test_delay_specification_can_have_one_law_per_class() -> None:
    spec = "0=fixed:1s; 1 = lognormal:1m,1.0;*=none"
    assert parse_delay(spec) == DelayModel(spec, Fixed(0), {0: Fixed(1_000), 1: LogNormal(60_000, 1.0)})
    assert [parse_delay(spec).draw_ms(label, 0.5) for label in range(4)] == [1_000, 60_000, 0, 0]


def test_empirical_delays_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "delays;of=may,1.txt"
    path.write_text("30\n\n10.4\n 20 \n10\n")
    assert parse_delay(f"empirical:{path}").otherwise == Empirical((10, 10, 20, 30))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "expected none, fixed:10s, geometric:10s"),
        ("poisson:10s", "lognormal:10s,1.0, weibull:10s,0.7, empirical:FILE, or per class 0=fixed:1s"),
        ("none:1s", "got 'none:1s'"),
        ("fixed", "got 'fixed'"),
        ("fixed:", "expected a duration"),
        ("fixed:10", "delay 'fixed:10': expected a duration"),
        ("fixed:1s,2s", "got 'fixed:1s,2s'"),
        ("geometric:0s", "at least 1ms"),
        ("lognormal:10s", "got 'lognormal:10s'"),
        ("lognormal:10s,-1", "sigma must be a number of at least 0, such as 1.0; got '-1'"),
        ("lognormal:10s,inf", "sigma must be a number"),
        ("lognormal:10s,1_0", "sigma must be a number"),
        ("weibull:10s,0", "the shape must be a number above 0"),
        ("weibull:10s,x", "got 'x'"),
        ("empirical:", "expected none"),
        ("empirical:/no/such/file", "cannot read the delays in /no/such/file"),
        ("0=fixed:1s", "add ;*=none"),
        ("0=fixed:1s;0=none;*=none", "duplicate class 0"),
        ("*=none;*=none", "duplicate class *"),
        ("0=fixed:1s;;*=none", "expected CLASS=DELAY or *=DELAY; got ''"),
        ("0=fixed:1s;-1=none;*=none", "got '-1=none'"),
        ("0=1s;*=none", "delay '0=1s;*=none': expected none"),
    ],
)
def test_error_for_an_invalid_delay_specification_shows_the_expected_form(spec: str, message: str) -> None:
    with pytest.raises(DelayError, match=re.escape(message)):
        parse_delay(spec)


@pytest.mark.parametrize("line", ["-1", "nan", "1s", "x", "1e300", "1_0", "١"])
def test_invalid_line_in_a_file_of_delays_is_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / "delays.txt"
    path.write_text(f"10\n{line}\n")
    with pytest.raises(DelayError, match=re.escape(f"{path}, line 2: expected a number of milliseconds")):
        parse_delay(f"empirical:{path}")


def test_file_without_delays_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "delays.txt"
    path.write_text("\n")
    with pytest.raises(DelayError):
        parse_delay(f"empirical:{path}")


def test_delay_specification_with_an_unknown_class_is_rejected() -> None:
    delay = parse_delay("3=fixed:1s;*=none")
    delay.check_classes(4)
    with pytest.raises(DelayError, match="class 3"):
        delay.check_classes(3)


@given(laws(), UNIFORMS, UNIFORMS)
def test_delay_is_a_bounded_integer_that_never_decreases_with_u(law: Law, one: float, other: float) -> None:
    low, high = sorted((one, other))
    delays_ms = [law.quantile_ms(u) for u in (0.0, low, high, LARGEST_U)]
    assert all(type(delay_ms) is int for delay_ms in delays_ms)
    assert delays_ms == sorted(delays_ms)
    assert delays_ms[0] >= 0
    assert delays_ms[-1] <= DURATION_MS_MAX


@given(UNIFORMS.filter(lambda u: u > 0.0))
def test_delay_quantiles_agree_with_scipy(u: float) -> None:
    expected: dict[Law, float] = {
        Exponential(10_000): stats.expon.ppf(u, scale=10_000),
        LogNormal(10_000, 1.5): stats.lognorm.ppf(u, s=1.5, scale=10_000),
        Weibull(10_000, 0.7): stats.weibull_min.ppf(u, c=0.7, scale=10_000),
    }
    for law, quantile_ms in expected.items():
        assert law.quantile_ms(u) == pytest.approx(float(quantile_ms), rel=1e-9, abs=0.5 + 1e-9)


@given(st.integers(1, 10_000), UNIFORMS)
def test_geometric_delay_is_the_smallest_number_with_a_probability_of_at_least_u(mean_ms: int, u: float) -> None:
    n = Geometric(mean_ms).quantile_ms(u)
    survival_log = math.log1p(-1.0 / mean_ms) if mean_ms > 1 else -math.inf
    assert n == 1 or survival_log * (n - 1) > math.log1p(-u) * (1.0 + 1e-12)
    assert n >= 1
    assert survival_log * n <= math.log1p(-u) * (1.0 - 1e-12)


@pytest.mark.parametrize(
    ("spec", "mean_ms", "standard_deviation_ms"),
    [
        ("geometric:100ms", 100.0, math.sqrt(100 * 99)),
        ("exponential:10s", 10_000.0, 10_000.0),
        ("lognormal:10s,0.5", 10_000 * math.exp(0.125), 10_000 * math.sqrt(math.expm1(0.25) * math.exp(0.25))),
        ("weibull:10s,2", 10_000 * math.gamma(1.5), 10_000 * math.sqrt(math.gamma(2) - math.gamma(1.5) ** 2)),
    ],
)
def test_mean_of_drawn_delays_equals_mean_of_the_law(spec: str, mean_ms: float, standard_deviation_ms: float) -> None:
    plan = FeedbackPlan(1, parse_delay(spec))
    delays_ms = [plan(event_id, 0)[0] for event_id in EVENT_IDS]
    tolerance = stats.norm.isf(FALSE_ALARM / 2) * standard_deviation_ms / math.sqrt(len(EVENT_IDS))
    assert np.mean(delays_ms) == pytest.approx(mean_ms, abs=tolerance)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=20).map(sorted))
def test_empirical_law_draws_each_delay_with_its_frequency(delays_ms: list[int]) -> None:
    law = Empirical(tuple(delays_ms))
    assert [law.quantile_ms((rank + 0.5) / len(delays_ms)) for rank in range(len(delays_ms))] == delays_ms


def test_plan_without_delay_sends_one_feedback_record_immediately() -> None:
    assert FeedbackPlan(1, NO_DELAY)("a", 0) == [0]


def test_feedback_plan_does_not_depend_on_call_order() -> None:
    spec = "0=fixed:1s;*=exponential:10s"
    plans = [FeedbackPlan(3, parse_delay(spec), loss=0.2, duplicates=0.3) for _ in range(2)]
    forwards = [plans[0](event_id, row % 3) for row, event_id in enumerate(EVENT_IDS[:500])]
    backwards = [plans[1](event_id, row % 3) for row, event_id in reversed(list(enumerate(EVENT_IDS[:500])))]
    assert forwards == backwards[::-1]


def test_rates_of_losses_and_duplicates_equal_the_settings() -> None:
    plan = FeedbackPlan(1, parse_delay("exponential:10s"), loss=0.02, duplicates=0.01)
    sent = [len(plan(event_id, 0)) for event_id in EVENT_IDS]
    assert stats.binomtest(sent.count(0), len(sent), 0.02).pvalue > FALSE_ALARM
    assert stats.binomtest(sent.count(2), len(sent) - sent.count(0), 0.01).pvalue > FALSE_ALARM


def test_duplicate_has_an_independent_delay() -> None:
    plan = FeedbackPlan(1, parse_delay("exponential:10s"), duplicates=1.0)
    first, copy = np.array([plan(event_id, 0) for event_id in EVENT_IDS], dtype=float).T
    bound = stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(len(EVENT_IDS))
    assert abs(np.corrcoef(first, copy)[0, 1]) < bound
    assert stats.ks_2samp(first, copy).pvalue > FALSE_ALARM


def test_loss_and_duplicates_do_not_change_delays() -> None:
    delay = parse_delay("lognormal:10s,1.0")
    alone = FeedbackPlan(1, delay)
    among = FeedbackPlan(1, delay, loss=0.5, duplicates=0.5)
    for event_id in EVENT_IDS[:500]:
        assert among(event_id, 0)[:1] in ([], alone(event_id, 0))


def test_all_feedback_is_lost_or_duplicated_at_probability_1() -> None:
    assert FeedbackPlan(1, loss=1.0)("a", 0) == []
    assert FeedbackPlan(1, parse_delay("fixed:1s"), duplicates=1.0)("a", 0) == [1_000, 1_000]


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_loss_or_duplicates_out_of_range_is_rejected(value: float) -> None:
    with pytest.raises(DelayError, match="loss"):
        FeedbackPlan(1, loss=value)
    with pytest.raises(DelayError, match="duplicates"):
        FeedbackPlan(1, duplicates=value)


@pytest.mark.parametrize("spec", ["none", "fixed:1s", "lognormal:10s,1.0", "0=fixed:1s;*=none"])
def test_unpickled_plan_is_identical(spec: str) -> None:
    plan = FeedbackPlan(3, parse_delay(spec), loss=0.2, duplicates=0.2)
    ids = [f"event-{number}" for number in range(50)]
    copied = pickle.loads(pickle.dumps(plan))  # noqa: S301
    assert [copied(event_id, 0) for event_id in ids] == [plan(event_id, 0) for event_id in ids]
