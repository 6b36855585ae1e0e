"""Policy estimates, compared with naive sums, with another package and with the true values."""

import numpy as np
import pytest
from estimators.bandits import gaussian, ips, snips

from stream.estimating.estimate import Estimates, estimate
from stream.estimating.evaluation import ESTIMATORS, Estimate, Options, PolicyEvaluation
from stream.estimating.policies import EstimateError, Model, Policy, Training, parse_policy
from stream.estimating.rows import Eligible, LogBatch
from stream.learners import create
from tests.estimating.logs import N_CLASSES, N_FEATURES, MemoryLog, a_log, a_world

NAMES = tuple("abcd")


def evaluate(
    rows: LogBatch, *policies: str | Policy, options: Options | None = None, batch_rows: int = 700
) -> Estimates:
    made = [parse_policy(one, NAMES, N_FEATURES, Training()) if isinstance(one, str) else one for one in policies]
    return estimate(MemoryLog(rows, batch_rows=batch_rows), made, options)


def by_name(policy: PolicyEvaluation) -> dict[str, Estimate]:
    return {one.estimator: one for one in policy.estimates}


def value(policy: PolicyEvaluation, estimator: str) -> float:
    found = by_name(policy)[estimator].value
    assert found is not None
    return found


def test_estimates_equal_naive_sums() -> None:
    rows = a_log(900)
    policy = evaluate(rows, "uniform", options=Options(clip=1.2)).policies[0]
    w, r = 0.25 / rows.propensities, rows.rewards
    assert value(policy, "ips") == pytest.approx((w * r).mean())
    assert value(policy, "snips") == pytest.approx((w * r).sum() / w.sum())
    assert value(policy, "clipped-ips") == pytest.approx((np.minimum(w, 1.2) * r).mean())
    assert policy.ess == pytest.approx(w.sum() ** 2 / (w @ w))
    assert policy.weight_max == w.max()
    assert [one.n for one in policy.estimates if one.estimator != "replay"] == [900] * 5
    assert tuple(by_name(policy)) == ESTIMATORS


def test_estimates_and_interval_equal_vw_estimators() -> None:
    rows = a_log(2_000)
    learner = create("igw-logistic", N_CLASSES, N_FEATURES)
    policy = evaluate(rows, Model("model", learner)).policies[0]
    theirs = {"ips": ips.Estimator(), "snips": snips.Estimator()}
    normal = gaussian.Interval()
    x = rows.values.reshape(-1, N_FEATURES)
    for j, (p_log, r) in enumerate(zip(rows.propensities, rows.rewards, strict=True)):
        row = {"p_log": float(p_log), "r": float(r), "p_pred": float(learner.distribution(x[j])[rows.actions[j]])}
        for one in theirs.values():
            one.add_example(**row)
        normal.add_example(**row)
    assert {name: value(policy, name) for name in theirs} == {
        name: pytest.approx(one.get()) for name, one in theirs.items()
    }
    assert by_name(policy)["ips"].bootstrap == pytest.approx(tuple(normal.get(0.05)), abs=0.005)


def among_some(n: int) -> LogBatch:
    """A log from a uniform policy with one to four eligible classes per decision."""
    rows, rng = a_log(n), np.random.default_rng(5)
    sets = [np.sort(rng.choice(N_CLASSES, rng.integers(1, N_CLASSES + 1), replace=False)).tolist() for _ in range(n)]
    actions = np.array([rng.choice(one) for one in sets])
    return rows._replace(
        actions=actions, propensities=np.array([1 / len(one) for one in sets]), eligible=Eligible.of_lists(sets)
    )


def test_uniform_policy_among_eligible_classes_has_the_mean_reward_of_a_uniform_log() -> None:
    rows = among_some(800)
    policy = evaluate(rows, "uniform").policies[0]
    assert [value(policy, name) for name in ("ips", "snips")] == [pytest.approx(rows.rewards.mean())] * 2
    assert (policy.weight_max, list(policy.flags)) == (1.0, [])


def test_learner_without_support_for_eligible_classes_is_rejected() -> None:
    with pytest.raises(EstimateError):
        evaluate(among_some(50), "uniform", "newtron")


def test_minimum_propensity_is_limited_by_the_largest_number_of_eligible_classes() -> None:
    rows = among_some(200)
    pairs = rows._replace(eligible=Eligible.of_lists([sorted({int(a), 3 - int(a)}) for a in rows.actions]))
    evaluate(pairs, "uniform", options=Options(propensity_min=0.5))
    with pytest.raises(EstimateError):
        evaluate(pairs, "uniform", options=Options(propensity_min=0.6))


def test_estimate_of_logged_policy_equals_mean_reward() -> None:
    rows = a_log(800)
    policy = evaluate(rows, "logged").policies[0]
    mean = rows.rewards.mean()
    for name in ("replay", "ips", "snips", "clipped-ips", "dr"):
        assert value(policy, name) == pytest.approx(mean)
    assert (policy.ess, policy.weight_max) == (800, 1.0)


def test_replay_estimator_uses_the_rows_in_which_policy_and_log_agree() -> None:
    rows = a_log(2_000, world=a_world(floor=1.0))
    policy = evaluate(rows, "constant:b").policies[0]
    agree = rows.actions == 1
    assert by_name(policy)["replay"].n == agree.sum()
    assert value(policy, "replay") == pytest.approx(rows.rewards[agree].mean())


def test_doubly_robust_estimate_is_unbiased_even_if_the_reward_model_is_wrong() -> None:
    """All contexts are identical, so the reward model can learn only the mean reward of each action."""
    world = a_world(floor=0.2)
    rows = a_log(20_000, world=world)
    blind = rows._replace(values=np.zeros_like(rows.values))
    policy = evaluate(blind, "constant:a", options=Options(resamples=50)).policies[0]
    truth = world.value("a")
    assert abs(value(policy, "dr") - truth) < 0.02
    assert abs(value(policy, "dm") - truth) > 0.03


def test_learner_has_a_higher_estimate_than_the_uniform_logging_policy() -> None:
    rows = a_log(4_000, world=a_world(floor=1.0))
    found = evaluate(rows, "late-ucb", "logged", options=Options(resamples=50)).policies
    assert found[0].changes
    assert not found[1].changes
    learned, logged = (one["dr"] for one in map(by_name, found))
    assert learned.anytime is not None
    assert logged.value is not None
    assert learned.anytime.low > logged.value
    assert all(one.bernstein is None for one in found[0].estimates)


def test_each_estimator_has_its_documented_intervals() -> None:
    estimates = by_name(evaluate(a_log(1_500), "uniform").policies[0])
    assert {name for name, one in estimates.items() if one.anytime} == {"ips", "dr"}
    assert {name for name, one in estimates.items() if one.bernstein} == set(ESTIMATORS) - {"snips"}
    assert {name for name, one in estimates.items() if one.bootstrap} == set(ESTIMATORS)


def test_intervals_depend_on_the_seed_but_not_on_batch_boundaries() -> None:
    rows = a_log(1_300)
    whole = evaluate(rows, "uniform", "late-ucb").policies
    cut = evaluate(rows, "uniform", "late-ucb", batch_rows=129).policies
    other = evaluate(rows, "uniform", options=Options(seed=1)).policies
    for first, second in zip(whole, cut, strict=True):
        for one, two in zip(first.estimates, second.estimates, strict=True):
            for interval, again in ((one.bootstrap, two.bootstrap), (one.anytime, two.anytime)):
                assert (interval is None) == (again is None)
                assert interval is None or again == pytest.approx(interval, abs=1e-9)
        assert [point.n for point in first.path] == [point.n for point in second.path]
    assert by_name(other[0])["ips"].bootstrap != by_name(whole[0])["ips"].bootstrap
    assert value(other[0], "ips") == value(whole[0], "ips")


def test_rows_without_an_outcome_are_excluded() -> None:
    rows = a_log(1_000)
    lost = rows.rewards.copy()
    lost[600:] = np.nan
    head = next(iter(MemoryLog(rows, batch_rows=600).batches()))
    left = evaluate(rows._replace(rewards=lost), "uniform")
    alone = evaluate(head, "uniform")
    assert (left.events, left.judged) == (1_000, 600)
    assert [one.value for one in left.policies[0].estimates] == [one.value for one in alone.policies[0].estimates]
    assert "outcome-missing" in [flag.name for flag in left.policies[0].flags]


def test_without_propensities_only_dm_has_an_estimate() -> None:
    rows = a_log(300)
    policy = evaluate(rows._replace(propensities=np.full(300, np.nan)), "uniform").policies[0]
    assert {one.estimator for one in policy.estimates if one.value is not None} == {"dm"}
    assert all(one.bootstrap is one.bernstein is one.anytime is None for one in policy.estimates if one.value is None)
    assert [flag.name for flag in policy.flags] == ["propensity-missing"]


def test_wrong_propensities_are_flagged_by_the_mean_weight() -> None:
    rows = a_log(3_000)
    right = evaluate(rows, "uniform", options=Options(resamples=50)).policies[0]
    too_large = rows._replace(propensities=np.minimum(1.25 * rows.propensities, 1.0))
    wrong = evaluate(too_large, "uniform", options=Options(resamples=50)).policies[0]
    assert right.flags == ()
    assert [flag.name for flag in wrong.flags] == ["weights-off-one"]


def test_dr_has_no_intervals_if_the_log_never_plays_the_policys_actions() -> None:
    rows = a_log(900)
    one_class = rows._replace(actions=np.zeros_like(rows.actions), propensities=np.ones_like(rows.propensities))
    guessed = by_name(evaluate(one_class, "constant:b").policies[0])
    assert guessed["dr"].value is not None
    assert (guessed["dr"].bootstrap, guessed["dr"].bernstein, guessed["dr"].anytime) == (None, None, None)
    assert guessed["ips"].anytime == (0.0, 1.0)
    assert by_name(evaluate(rows, "constant:b").policies[0])["dr"].anytime is not None
    given = by_name(evaluate(one_class, "constant:b", options=Options(propensity_min=0.1)).policies[0])
    assert given["dr"].anytime is not None, "the option implies that every class is played"


def test_minimum_propensity_above_one_divided_by_the_number_of_classes_is_rejected() -> None:
    with pytest.raises(EstimateError):
        evaluate(a_log(60), "uniform", options=Options(propensity_min=0.3))


def test_small_effective_sample_size_is_flagged() -> None:
    policy = evaluate(a_log(150), "constant:a").policies[0]
    assert "ess-low" in [flag.name for flag in policy.flags]


def test_propensities_below_the_given_minimum_are_raised_and_flagged() -> None:
    rows = a_log(600)
    policy = evaluate(rows, "uniform", options=Options(propensity_min=0.2)).policies[0]
    w = 0.25 / np.maximum(rows.propensities, 0.2)
    assert value(policy, "ips") == pytest.approx((w * rows.rewards).mean())
    assert "propensity-below-minimum" in [flag.name for flag in policy.flags]


@pytest.mark.parametrize("propensity", [1e-12, 1e-155, 1e-300, 5e-324])
@pytest.mark.parametrize("spec", ["uniform", "constant:a", "logged", "late-ucb", "banditron"])
def test_tiny_propensity_leaves_finite_numbers_and_a_flag(propensity: float, spec: str) -> None:
    rows = a_log(300)
    rows.propensities[5:8] = propensity
    (policy,) = evaluate(rows, spec).policies
    assert np.isfinite([policy.ess, policy.weight_max, *(one.value for one in policy.estimates if one.value)]).all()
    if policy.weight_max > 1e6:
        assert "too uneven" in next(flag.text for flag in policy.flags if flag.name == "ess-low")
    else:
        assert spec != "uniform"
    intervals = [one for estimate in policy.estimates for one in (estimate.bernstein, estimate.anytime)]
    intervals += [one for point in policy.path for one in (point.ips_interval, point.dr_interval)]
    assert all(0.0 <= one.low <= one.high <= 1.0 for one in intervals if one is not None)


@pytest.mark.parametrize("digits", [3, 4])
def test_rounded_minimum_is_not_below_the_given_minimum(digits: int) -> None:
    rows = a_log(600)
    least = float(rows.propensities.min())
    rounded = rows._replace(propensities=np.floor(rows.propensities * 10**digits) / 10**digits - 0.1**digits)
    for propensities, names in (
        (rows.propensities.astype(np.float32).astype(np.float64) * (1 - 5e-8), []),
        (rounded.propensities, ["propensity-below-minimum"]),
    ):
        policy = evaluate(rows._replace(propensities=propensities), "uniform", options=Options(propensity_min=least))
        flags = [flag.name for flag in policy.policies[0].flags]
        assert [name for name in flags if name == "propensity-below-minimum"] == names


def test_log_without_outcomes_is_rejected() -> None:
    rows = a_log(20)
    with pytest.raises(EstimateError):
        evaluate(rows._replace(rewards=np.full(20, np.nan)), "uniform")


def test_last_point_of_the_path_equals_the_final_estimates() -> None:
    policy = evaluate(a_log(1_000), "uniform", options=Options(path_points=100)).policies[0]
    assert [point.n for point in policy.path] == list(range(10, 1_001, 10))
    last, estimates = policy.path[-1], by_name(policy)
    assert last.ips == pytest.approx(value(policy, "ips"))
    assert last.ips_interval == pytest.approx(estimates["ips"].anytime)
    assert last.dr_interval == pytest.approx(estimates["dr"].anytime)


def test_progress_is_reported_in_both_passes() -> None:
    reported: list[tuple[int, int]] = []
    log = MemoryLog(a_log(100), batch_rows=60)
    estimate(log, [parse_policy("uniform", NAMES, N_FEATURES, Training())], None, lambda *at: reported.append(at))
    assert reported == [(60, 0), (100, 0), (60, 100), (100, 100)]


SEEDS = 60


@pytest.mark.slow
def test_intervals_cover_the_truth() -> None:
    """Bootstrap intervals have about the nominal coverage. The other intervals have at least the nominal coverage."""
    world = a_world()
    truths = {policy: world.value(policy) for policy in ("uniform", "a")}
    hits = {"bootstrap": [], "bernstein": [], "anytime": []}  # type: dict[str, list[bool]]
    for seed in range(SEEDS):
        found = evaluate(
            a_log(600, seed), "uniform", "constant:a", options=Options(seed=seed, resamples=200, path_points=600)
        )
        for policy in found.policies:
            truth = truths[policy.policy.split(":")[-1]]
            for one in policy.estimates:
                if one.estimator != "dm":  # intervals of the direct method ignore the bias of the reward model
                    assert one.bootstrap is not None
                    hits["bootstrap"].append(one.bootstrap.low <= truth <= one.bootstrap.high)
                    if one.bernstein is not None:
                        hits["bernstein"].append(one.bernstein.low <= truth <= one.bernstein.high)
            for intervals in ([point.ips_interval for point in policy.path], [p.dr_interval for p in policy.path]):
                assert len(intervals) == 600
                hits["anytime"].append(all(low <= truth <= high for low, high in intervals))
    assert 0.92 <= np.mean(hits["bootstrap"]) <= 0.98
    assert np.mean(hits["bernstein"]) >= 0.95
    assert np.mean(hits["anytime"]) >= 0.95
