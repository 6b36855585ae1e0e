"""Estimates from graded rewards: they do not depend on the units, and their intervals cover the truth."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from stream.estimating.arms import Arms
from stream.estimating.challengers import ChallengerEstimator
from stream.estimating.estimate import Estimates, estimate
from stream.estimating.evaluation import Options
from stream.estimating.live import LiveEstimator
from stream.estimating.policies import EstimateError, Training, parse_policy
from stream.estimating.prefix import PrefixEstimator
from stream.estimating.rows import LogBatch
from stream.wire.records import HOLDOUT, Challenged, Decision, Example, FloatArray, Outcome, Prediction, Target
from stream.wire.rewards import BITS, RewardRange
from tests.estimating.logs import N_FEATURES, MemoryLog, World, a_log, a_world

NAMES = tuple("abcd")
STARS = RewardRange(1.0, 5.0)


def graded(n: int, seed: int, world: World) -> LogBatch:
    """A log whose rewards are shares with the world's probabilities as means, drawn from beta distributions."""
    rows = a_log(n, seed, world)
    means = world.rewards(rows.values.reshape(n, -1))[np.arange(n), rows.actions]
    return rows._replace(rewards=np.random.default_rng(seed + 1_000).beta(2.0 * means, 2.0 * (1.0 - means)))


def evaluated(rows: LogBatch, rewards: RewardRange, **options: int) -> Estimates:
    training = Training(rewards="graded")
    policies = [parse_policy(spec, NAMES, N_FEATURES, training) for spec in ("uniform", "constant:a", "late-ucb")]
    return estimate(MemoryLog(rows), policies, Options(rewards=rewards, **options))


def test_estimates_and_intervals_are_in_the_units_of_the_rewards() -> None:
    rows = graded(500, 0, a_world())
    of_shares = evaluated(rows, BITS)
    of_stars = evaluated(rows._replace(rewards=STARS.low + STARS.size * rows.rewards), STARS)

    def numbers(found: Estimates) -> FloatArray:
        flat: list[float] = []
        for policy in found.policies:
            for one in policy.estimates:
                assert one.value is not None
                flat += [one.value]
                flat += [end for ends in (one.bootstrap, one.bernstein, one.anytime) for end in ends or ()]
            for point in policy.path:
                flat += [point.ips, *point.ips_interval, point.dr, *point.dr_interval]
        return np.array(flat)

    np.testing.assert_allclose(numbers(of_stars), STARS.low + STARS.size * numbers(of_shares), rtol=1e-9)


def test_bits_as_values_have_the_estimates_of_bits() -> None:
    rows = a_log(400)
    policies = [[parse_policy(spec, NAMES, N_FEATURES, Training()) for spec in ("uniform", "logged")] for _ in range(2)]
    of_bits = estimate(MemoryLog(rows), policies[0], Options())
    of_values = estimate(MemoryLog(rows), policies[1], Options(rewards=RewardRange(0.0, 1.0)))
    assert [one.estimates for one in of_values.policies] == [one.estimates for one in of_bits.policies]


def test_learner_that_learns_only_bits_cannot_be_evaluated() -> None:
    with pytest.raises(EstimateError):
        parse_policy("banditron", NAMES, N_FEATURES, Training(rewards="graded"))


@pytest.mark.slow
def test_intervals_cover_the_mean_of_graded_rewards() -> None:
    world = a_world()
    truths = {policy: world.value(policy) for policy in ("uniform", "a")}
    hits: dict[str, list[bool]] = {"bootstrap": [], "bernstein": [], "anytime": []}
    for seed in range(40):
        policies = [parse_policy(spec, NAMES, N_FEATURES, Training()) for spec in ("uniform", "constant:a")]
        options = Options(seed=seed, resamples=200, path_points=600)
        for policy in estimate(MemoryLog(graded(600, seed, world)), policies, options).policies:
            truth = truths[policy.policy.split(":")[-1]]
            for one in policy.estimates:
                if one.estimator != "dm":
                    assert one.bootstrap is not None
                    hits["bootstrap"].append(one.bootstrap.low <= truth <= one.bootstrap.high)
                    if one.bernstein is not None:
                        hits["bernstein"].append(one.bernstein.low <= truth <= one.bernstein.high)
            for intervals in ([point.ips_interval for point in policy.path], [p.dr_interval for p in policy.path]):
                hits["anytime"].append(all(low <= truth <= high for low, high in intervals))
    assert 0.9 <= np.mean(hits["bootstrap"]) <= 0.99
    assert np.mean(hits["bernstein"]) >= 0.95
    assert np.mean(hits["anytime"]) >= 0.95


def settled(estimator: PrefixEstimator[Any], rewards: list[float]) -> None:
    """Pass decisions with these rewards to an estimator, one per step."""
    for step, reward in enumerate(rewards, 1):
        decision = Decision(step % 2, 0, 0.5, np.zeros(2))
        prediction = Prediction(
            "a", decision, 0, Target(0, 0.5), arm=HOLDOUT if step % 3 == 0 else None,
            challenged=Challenged("old", {"new": 0}),
        )  # fmt: skip
        estimator.take(0, step, [prediction], [Example("a", Outcome.MATCHED, step % 2, 0.5, reward, 0, 0, 0)])


MAKERS: dict[str, Callable[[RewardRange], PrefixEstimator[Any]]] = {
    "own policy": LiveEstimator,
    "holdout": partial(Arms, 0.3),
    "challengers": ChallengerEstimator,
}


def live_numbers(estimator: PrefixEstimator[Any]) -> tuple[FloatArray, FloatArray]:
    """Means and their intervals, and differences."""
    if isinstance(estimator, LiveEstimator):
        found = estimator.now()
        ends = [end for one in found.estimates for ends in (one.normal, one.anytime) if ends for end in ends]
        values = [one.value or 0.0 for one in found.estimates]
        return np.array([found.logged, *values, *ends, *found.path[-1][1:]]), np.zeros(0)
    if isinstance(estimator, Arms):
        compared = estimator.now()
        means = [compared.learner.mean or 0.0, compared.holdout.mean or 0.0]
        return np.array(means), np.array([compared.difference.low, compared.difference.high])
    assert isinstance(estimator, ChallengerEstimator)
    (one,) = estimator.now().challengers
    means = [estimator.now().mean or 0.0, one.ips, one.snips or 0.0, one.reward.low, one.reward.high]
    return np.array(means), np.array([one.difference.low, one.difference.high])


@pytest.mark.parametrize("name", MAKERS)
def test_live_results_are_in_the_units_of_the_rewards(name: str) -> None:
    shares = np.random.default_rng(3).random(300).round(3)
    of_shares, of_stars = MAKERS[name](BITS), MAKERS[name](STARS)
    settled(of_shares, shares.tolist())
    settled(of_stars, [STARS.value(float(share)) for share in shares])
    (means, differences), (of_units, differences_in_units) = live_numbers(of_shares), live_numbers(of_stars)
    np.testing.assert_allclose(of_units, STARS.low + STARS.size * means, rtol=1e-9)
    np.testing.assert_allclose(differences_in_units, STARS.size * differences, rtol=1e-9)
