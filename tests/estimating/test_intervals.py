"""Confidence intervals for the mean of terms that are bounded on one or both sides."""

import numpy as np
import pytest
from estimators.bandits import cs
from hypothesis import given
from hypothesis import strategies as st

from stream.estimating.intervals import (
    LAMBDAS,
    Cumulated,
    LowerSequence,
    Sequence01,
    bernstein_low,
    mixture_bound,
)
from stream.wire.records import FloatArray


def all_lows(side: LowerSequence, terms: FloatArray) -> FloatArray:
    return side.low(side.extend(terms))


def weighted_bits(seeds: int, n: int, weight_max: float, value: float) -> tuple[FloatArray, FloatArray]:
    """Terms w·r and w·(1 − r). The weights w are 0 or `weight_max` and have mean 1. The bits r have mean `value`."""
    rng = np.random.default_rng(5)
    weights = np.where(rng.random((seeds, n)) < 1.0 / weight_max, weight_max, 0.0)
    rewards = (rng.random((seeds, n)) < value).astype(np.float64)
    return weights * rewards, weights * (1.0 - rewards)


def test_bernstein_bound_equals_the_formula_of_the_theorem() -> None:
    n, v, b, delta = 50, 0.2, 4.0, 0.05
    log_term = np.log(2 / delta)
    assert bernstein_low(n, 1.0, v, b, delta) == pytest.approx(
        1.0 - np.sqrt(2 * v * log_term / n) - b * 7 * log_term / (3 * (n - 1))
    )


def test_error_rate_of_the_bernstein_bound_is_below_delta() -> None:
    terms, _ = weighted_bits(2_000, 400, 5.0, 0.3)
    lows = [bernstein_low(400, one.mean(), one.var(ddof=1), 5.0, 0.025) for one in terms]
    assert np.mean(np.array(lows) > 0.3) <= 0.025


@given(st.floats(0.0, 1e7), st.floats(0.001, 0.5))
def test_mixture_martingale_equals_one_over_delta_at_its_bound(variance_sum: float, delta: float) -> None:
    s = mixture_bound(np.array([variance_sum]), delta)[0]
    psi = -np.log1p(-LAMBDAS) - LAMBDAS
    exponents = LAMBDAS * s - psi * variance_sum - np.log(LAMBDAS.size)
    assert np.logaddexp.reduce(exponents) == pytest.approx(np.log(1.0 / delta), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("weight_max", "value"), [(1.0, 0.02), (5.0, 0.3), (20.0, 0.9)])
def test_confidence_sequence_covers_the_mean_at_all_times(weight_max: float, value: float) -> None:
    seeds, n = 100, 800
    of_reward, of_failure = weighted_bits(seeds, n, weight_max, value)
    missed = 0
    for seed in range(seeds):
        found = np.array(Sequence01(0.0, 0.05).extend(of_reward[seed], of_failure[seed], range(n)))
        missed += bool((found[:, 0] > value).any() or (found[:, 1] < value).any())
    assert missed / seeds <= 0.05


@pytest.mark.slow
def test_confidence_sequence_covers_the_running_mean_if_the_mean_changes() -> None:
    seeds, n = 300, 800
    rng = np.random.default_rng(2)
    means = np.where(np.arange(n) < 300, 0.9, 0.1)
    running = means.cumsum() / np.arange(1, n + 1)
    missed = 0
    for _ in range(seeds):
        lows = all_lows(LowerSequence(0.0, 0.05), (rng.random(n) < means).astype(np.float64))
        missed += bool((lows > running).any())
    assert missed / seeds <= 0.05


@pytest.mark.slow
def test_confidence_sequence_covers_the_mean_of_negative_and_positive_terms() -> None:
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(300):
        terms = np.where(rng.random(800) < 0.75, 1.0, -3.0)  # mean 0
        missed += bool((all_lows(LowerSequence(3.0, 0.05), terms) > 0.0).any())
    assert missed / 300 <= 0.05


def test_term_below_the_declared_minimum_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"expected terms of at least -2; got .*-2\.5"):
        LowerSequence(2.0, 0.05).extend(np.array([1.0, -2.5]))


def test_confidence_sequence_does_not_depend_on_batch_boundaries() -> None:
    terms = np.random.default_rng(0).random(500)
    whole, cut = LowerSequence(1.0, 0.05), LowerSequence(1.0, 0.05)
    at_once = all_lows(whole, terms)
    in_parts = np.concatenate([all_lows(cut, part) for part in np.split(terms, [1, 7, 8, 300])])
    np.testing.assert_allclose(in_parts, at_once, atol=1e-9)
    assert cut.now() == pytest.approx(at_once[-1])


def test_prediction_of_a_term_uses_only_earlier_rows() -> None:
    terms = np.array([1.0, 0.0, 1.0])
    cumulated: Cumulated = LowerSequence(0.0, 0.05).extend(terms)
    squares = np.diff(cumulated.variance_sums, prepend=0.0)
    assert squares.tolist() == pytest.approx([(1.0 - 0.5) ** 2, (0.0 - 0.75) ** 2, (1.0 - 0.5) ** 2])


@pytest.mark.parametrize(("weight_max", "value"), [(1.0, 0.3), (5.0, 0.3), (5.0, 0.02)])
def test_confidence_sequence_is_about_as_narrow_as_that_of_vw_estimators(weight_max: float, value: float) -> None:
    of_reward, of_failure = (terms[0] for terms in weighted_bits(1, 3_000, weight_max, value))
    theirs = cs.Interval()
    for of_bit, of_other in zip(of_reward, of_failure, strict=True):
        w = float(of_bit + of_other)
        theirs.add_example(p_log=1.0, r=float(of_bit) / w if w else 0.0, p_pred=w)
    ours = Sequence01(0.0, 0.05)
    ours.extend(of_reward, of_failure)
    low, high = theirs.get(0.05)
    assert ours.now().high - ours.now().low <= 1.1 * (high - low)
    assert ours.now().low < high
    assert low < ours.now().high
