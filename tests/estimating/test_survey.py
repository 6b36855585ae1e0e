"""Warnings about problems in a log, such as missing propensities."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from producers.datasets.log import MISSING
from stream.estimating.rows import LogBatch, chunks
from stream.estimating.survey import (
    FLOAT32_ERROR,
    Rounding,
    Survey,
    effective_sample_size,
    independence,
    mean_of_weights,
    survey,
)
from stream.randomness.draws import Draws, Purpose
from tests.estimating.logs import N_CLASSES, N_FEATURES, MemoryLog, a_log


def surveyed(rows: LogBatch) -> Survey:
    return survey(chunks(MemoryLog(rows).batches(), Draws(0, Purpose.ESTIMATE)), N_FEATURES, N_CLASSES)


def flags_of(rows: LogBatch) -> list[str]:
    return [flag.name for flag in surveyed(rows).flags]


def with_some(rows: LogBatch, column: str, value: float, every: int = 10) -> LogBatch:
    """A copy of the log in which every nth entry of a column is replaced by `value`, where n is `every`."""
    changed = getattr(rows, column).copy()
    changed[::every] = value
    return rows._replace(**{column: changed})


def test_valid_log_has_no_flags() -> None:
    found = surveyed(a_log(2_000))
    assert found.flags == ()
    assert (found.events, found.judged, found.weighted) == (2_000, 2_000, 2_000)
    assert found.propensity_min == a_log(2_000).propensities.min()


@pytest.mark.parametrize(
    ("column", "value", "flag"),
    [
        ("propensities", np.nan, "propensity-missing"),
        ("propensities", 0.0, "propensity-zero"),
        ("propensities", -0.1, "propensity-zero"),
        ("propensities", 1.5, "propensity-above-one"),
        ("rewards", np.nan, "outcome-missing"),
        ("actions", MISSING, "action-missing"),
    ],
)
def test_unusable_rows_are_counted(column: str, value: float, flag: str) -> None:
    found = surveyed(with_some(a_log(1_000), column, value))
    assert [one.name for one in found.flags] == [flag]
    assert found.flags[0].text.startswith("100 of 1,000 events")
    assert found.weighted == 900
    assert found.judged == (1_000 if column == "propensities" else 900)


@pytest.mark.parametrize(
    ("propensity", "text"),
    [(0.25, "plausible only for uniform play"), (0.249, "plausible only for uniform play"), (0.5, "implausible")],
)
def test_constant_propensities_are_flagged(propensity: float, text: str) -> None:
    rows = a_log(500)
    found = surveyed(rows._replace(propensities=np.full(500, propensity)))
    assert [flag.name for flag in found.flags] == ["propensity-constant"]
    assert text in found.flags[0].text


def test_censoring_that_depends_on_the_action_is_flagged() -> None:
    rows = a_log(3_000)
    lost = (np.random.default_rng(0).random(3_000) < np.where(rows.actions == 1, 0.3, 0.1)).nonzero()[0]
    rewards = rows.rewards.copy()
    rewards[lost] = np.nan
    assert flags_of(rows._replace(rewards=rewards)) == ["outcome-missing", "censoring-by-action"]


def test_censoring_that_depends_on_the_class_is_flagged() -> None:
    rows = a_log(3_000)
    rng = np.random.default_rng(1)
    labels = rng.integers(0, N_CLASSES, 3_000)
    rewards = np.where(rng.random(3_000) < np.where(labels == 2, 0.4, 0.1), np.nan, rows.rewards)
    assert flags_of(rows._replace(rewards=rewards, labels=labels)) == ["outcome-missing", "censoring-by-class"]


def test_random_censoring_is_rarely_flagged() -> None:
    rng = np.random.default_rng(2)
    p_values = [
        independence(np.stack((losses := rng.binomial(200, 0.1, 30), 200 - losses), axis=1)) for _ in range(800)
    ]
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.08


def test_independence_test_equals_pearsons_chi_squared_test() -> None:
    table = np.array([[50, 950], [31, 669], [9, 41]])
    assert independence(table) == pytest.approx(chi2_contingency(table, correction=False).pvalue, rel=1e-12)


def test_independence_test_pools_rare_classes() -> None:
    table = np.array([[50, 950], [0, 3], [1, 2], [0, 1]])
    pooled = np.array([[50, 950], [1, 6]])
    assert independence(table) == pytest.approx(independence(pooled))
    assert independence(np.array([[0, 10], [0, 20]])) == 1.0


def test_p_value_of_the_mean_weight_is_small_only_if_the_mean_is_not_1() -> None:
    assert mean_of_weights(10_000, 1.02, 4.0) == pytest.approx(0.3173, abs=1e-3)
    assert mean_of_weights(10_000, 1.2, 4.0) < 1e-10
    assert mean_of_weights(100, 1.0, 0.0) == 1.0
    assert mean_of_weights(100, 0.5, 0.0) == 0.0


def test_effective_sample_size_equals_kishs_formula() -> None:
    weights = np.array([1.0, 1.0, 2.0, 0.0])
    assert effective_sample_size(weights.sum(), weights @ weights) == pytest.approx(16 / 6)
    assert effective_sample_size(0.0, 0.0) == 0.0


@pytest.mark.parametrize("digits", [3, 4, 6])
@pytest.mark.parametrize("classes", [3, 7, 90])
def test_rounded_propensities_of_a_uniform_log_raise_no_flag(digits: int, classes: int) -> None:
    exact = 1.0 / classes
    for rounded in (round(exact, digits), float(f"{exact:.{digits - 1}e}"), float(np.float32(exact))):
        found = surveyed(a_log(2_000)._replace(propensities=np.full(2_000, rounded)))
        weight = exact / rounded
        error = float(found.rounding.errors(np.array([rounded]))[0]) * weight
        assert mean_of_weights(2_000, weight, 0.0, error) == 1.0
        assert mean_of_weights(2_000, weight + 3 * error, 0.0, error) == 0.0


def test_exact_propensities_are_not_taken_for_rounded_ones() -> None:
    propensities = np.random.default_rng(1).uniform(0.1, 1.0, 1_000)
    rows = a_log(1_000)
    assert surveyed(rows._replace(propensities=propensities)).rounding == Rounding(0.0, FLOAT32_ERROR)
    assert surveyed(rows._replace(propensities=propensities.round(4))).rounding.absolute == 0.5e-4
