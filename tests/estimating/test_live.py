"""Live estimates of the learner's own policy during a log replay."""

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from stream.estimating.estimate import estimate
from stream.estimating.intervals import Interval
from stream.estimating.live import LiveEstimator
from stream.estimating.live_results import LiveEstimate, LiveEstimates
from stream.estimating.policies import Policy
from stream.estimating.rows import Chunk
from stream.wire.records import Decision, Example, FloatArray, Outcome, Prediction, Target
from tests.estimating.logs import N_CLASSES, MemoryLog, a_log

NO_SCORES = np.zeros(3)


def decided(event_id: str, action: int, propensity: float, target: int | None) -> Prediction:
    own = None if target is None else Target(target, 0.5)
    return Prediction(event_id, Decision(action, 0, propensity, NO_SCORES), 0, own)


def matched(event_id: str, reward: int) -> Example:
    return Example(event_id, Outcome.MATCHED, 0, 0.5, reward, 10, 10, 0)


def expired(event_id: str, assumed: int | None = None) -> Example:
    return Example(event_id, Outcome.EXPIRED, 0, 0.5, assumed, None, 10, None)


def agreeing(*ids: str) -> list[Prediction]:
    """Decisions with a weight of 2, in which the learner's action equals the logged action."""
    return [decided(event_id, 1, 0.5, 1) for event_id in ids]


def value(found: LiveEstimates, estimator: str = "ips") -> float | None:
    return next(one.value for one in found.estimates if one.estimator == estimator)


def names(found: LiveEstimates) -> list[str]:
    return [flag.name for flag in found.flags if flag.name != "ess-low"]


def test_reward_does_not_count_while_an_earlier_decision_is_pending() -> None:
    live = LiveEstimator()
    live.take(0, 1, agreeing("a", "b", "c"), [matched("b", 1), matched("c", 1)])
    assert (live.now().n, live.now().waiting, live.now().estimates) == (0, 3, ())
    assert math.isnan(live.now().logged)
    live.take(0, 2, agreeing("d"), [matched("a", 0)])
    found = live.now()
    assert (found.n, found.waiting, found.logged) == (3, 1, 2 / 3)
    assert value(found) == pytest.approx(4 / 3)


def test_estimate_is_unbiased_if_positive_rewards_arrive_sooner() -> None:
    rng = np.random.default_rng(5)
    rewards = (rng.random(4_000) < 0.3).astype(int)
    at = np.arange(4_000) + np.where(rewards == 1, 10, 1_000)  # one decision per unit of time
    live, quick = LiveEstimator(), list[int]()
    by_time = np.argsort(at, kind="stable")
    predictions = [decided(str(number), 1, 1.0, 1) for number in range(4_000)]
    live.take(0, 1, predictions, [])
    for number in by_time[at[by_time] < 2_000]:
        live.take(0, 2 + len(quick), [], [matched(str(number), int(rewards[number]))])
        quick.append(int(rewards[number]))
    assert np.mean(quick) > 0.42, "the mean of all known rewards must be biased"
    assert value(live.now()) == pytest.approx(0.3, abs=0.03)
    assert live.now().n == pytest.approx(1_000, abs=10)


def test_decisions_without_an_outcome_are_skipped_and_flagged() -> None:
    live = LiveEstimator()
    live.take(0, 1, agreeing("a", "b", "c"), [expired("a"), expired("b", assumed=0), matched("c", 1)])
    found = live.now()
    assert (found.n, found.without_outcome, found.waiting, value(found)) == (1, 2, 0, 2.0)
    assert found.flags[0].text == "2 of 3 settled decisions have no outcome; the estimate covers the others"


def test_decisions_without_a_weight_are_excluded_and_flagged() -> None:
    live = LiveEstimator()
    predictions = [decided("a", 1, math.nan, 1), decided("own", 1, 0.5, None), *agreeing("b")]
    live.take(0, 1, predictions, [matched("a", 1), matched("b", 1)])
    found = live.now()
    assert (found.n, found.waiting) == (1, 0), "a decision that is not logged must not block others"
    assert names(found) == ["propensity-missing", "not-logged"]


def test_examples_of_earlier_decisions_are_skipped() -> None:
    live = LiveEstimator()
    live.take(0, 71, agreeing("b"), [matched("a", 1), matched("b", 0)])
    assert (live.now().n, live.now().logged) == (1, 0.0)


def test_equal_ids_in_different_partitions_are_different_decisions() -> None:
    live = LiveEstimator()
    live.take(0, 1, agreeing("a"), [])
    live.take(1, 1, agreeing("a"), [matched("a", 1)])
    assert live.now().n == 0
    live.take(0, 2, [], [matched("a", 0)])
    assert (live.now().n, live.now().logged) == (2, 0.5)


@pytest.mark.parametrize("how", ["gone", "processed elsewhere for one step"])
def test_reassigned_partition_does_not_block_estimates(how: str) -> None:
    live = LiveEstimator()
    live.take(0, 1, agreeing("a", "quick"), [matched("quick", 1)])
    live.take(1, 1, agreeing("b", "c"), [matched("b", 0)])
    assert live.now().n == 0
    if how == "gone":
        live.keep({1, 2})
    else:
        live.take(0, 3, agreeing("d"), [matched("a", 1)])
    found = live.now()
    assert (found.n, found.logged) == (1, 0.0), "the lost partition's early reward must not count"
    assert names(found) == ["handed-over"]
    assert "2 decisions" in found.flags[0].text
    live.take(0, 4, agreeing("e"), [matched("e", 1), matched("c", 0), matched("d", 1)])
    live.take(1, 2, [], [matched("c", 0)])
    assert live.now().n == (3 if how == "gone" else 4)


def test_ips_is_unbiased_although_the_target_action_is_drawn_at_random() -> None:
    """Each case occurs in proportion to its probability, so the estimate must equal the true value."""
    logging, own = ((1, 3), (2, 2)), ((3, 1), (1, 3))  # action probabilities in quarters, by context and class
    rewards = ((1, 2), (4, 3))  # reward probabilities in quarters
    live, truth, cases = LiveEstimator(), 0.0, 0
    for x in (0, 1):
        truth += sum(own[x][k] * rewards[x][k] for k in (0, 1)) / 32
        for action, target, reward in product((0, 1), repeat=3):
            right = rewards[x][action]
            likely = logging[x][action] * own[x][target] * (right if reward else 4 - right)
            ids = [f"{x}{action}{target}{reward}-{number}" for number in range(likely)]
            predictions = [decided(event_id, action, logging[x][action] / 4, target) for event_id in ids]
            cases += 1
            live.take(0, cases, predictions, [matched(event_id, reward) for event_id in ids])
    found = live.now()
    assert (found.n, found.waiting) == (128, 0)
    assert value(found) == pytest.approx(truth, abs=1e-12)
    assert value(found, "snips") == pytest.approx(truth, abs=1e-12), "the mean weight is 1"


class PredrawnPolicy(Policy):
    """A deterministic policy. The action for each event was drawn in advance."""

    name = "drawn"
    changes = True

    def __init__(self, targets: NDArray[np.int64]) -> None:
        self._targets = targets

    def probabilities(self, chunk: Chunk) -> FloatArray:
        places = [int(event_id.removeprefix("event-")) for event_id in chunk.ids]
        p: FloatArray = np.eye(N_CLASSES)[self._targets[places]]
        return p


def test_live_estimates_equal_the_offline_estimates_of_the_same_log() -> None:
    rows = a_log(1_500)
    targets = np.random.default_rng(3).integers(N_CLASSES, size=1_500)
    (judged,) = estimate(MemoryLog(rows), [PredrawnPolicy(targets)]).policies
    live = LiveEstimator()
    for step, start in enumerate(range(0, 1_500, 70), start=1):
        places = range(start, min(start + 70, 1_500))
        predictions = [
            decided(rows.ids[j], int(rows.actions[j]), float(rows.propensities[j]), int(targets[j])) for j in places
        ]
        live.take(0, step, predictions, [matched(rows.ids[j], int(rows.rewards[j])) for j in reversed(places)])
    found = live.now()
    assert (found.n, found.without_outcome, found.waiting) == (1_500, 0, 0)
    assert found.ess == pytest.approx(judged.ess)
    assert found.weight_max == judged.weight_max
    assert found.logged == rows.rewards.mean()
    assert names(found) == [flag.name for flag in judged.flags if flag.name == "weights-off-one"]
    of_log = {one.estimator: one for one in judged.estimates}
    for one in found.estimates:
        same = of_log[one.estimator]
        assert one.value == pytest.approx(same.value)
        assert one.normal is not None
        assert same.bootstrap is not None
        assert one.normal == pytest.approx(same.bootstrap, abs=0.015)
        assert (one.anytime is None) == (same.anytime is None)
    ips = found.estimates[0].anytime
    assert ips is not None
    assert ips == pytest.approx(of_log["ips"].anytime)


@pytest.mark.slow
def test_snips_interval_has_about_the_nominal_coverage() -> None:
    """Uses 200 uniform two-class logs of 400 rows. The evaluated policy plays class 0 with probability 0.7."""
    rng = np.random.default_rng(1)
    shape, truth, held = (200, 400), 0.7 * 0.2 + 0.3 * 0.6, 0
    actions, targets = (rng.random(shape) < 0.5).astype(int), (rng.random(shape) < 0.3).astype(int)
    rewards = (rng.random(shape) < np.where(actions == 1, 0.6, 0.2)).astype(int)
    of_case = {case: decided("", case[0], 0.5, case[1]) for case in product((0, 1), repeat=2)}
    for log in range(200):
        live = LiveEstimator()
        cases = zip(actions[log].tolist(), targets[log].tolist(), strict=True)
        predictions = [of_case[case]._replace(id=str(j)) for j, case in enumerate(cases)]
        live.take(0, 1, predictions, [matched(str(j), reward) for j, reward in enumerate(rewards[log].tolist())])
        interval = live.now().estimates[1].normal
        assert interval is not None
        held += interval.low <= truth <= interval.high
    assert 0.9 <= held / 200 <= 0.99


def test_few_rows_are_flagged_and_have_no_normal_interval() -> None:
    live = LiveEstimator()
    live.take(0, 1, agreeing(*map(str, range(40))), [matched(str(number), number % 2) for number in range(40)])
    found = live.now()
    assert [one.normal for one in found.estimates] == [None, None]
    assert [flag.name for flag in found.flags] == ["ess-low"], "there are too few rows to test the mean weight"
    live.take(0, 2, agreeing(*map(str, range(160))), [matched(str(number), number % 2) for number in range(160)])
    assert [flag.name for flag in live.now().flags] == ["weights-off-one"]


def test_there_is_no_snips_estimate_if_the_policy_and_the_log_never_agree() -> None:
    live = LiveEstimator()
    live.take(0, 1, [decided("a", 1, 0.5, 0)], [matched("a", 1)])
    assert live.now().estimates[1] == LiveEstimate("snips", None, None, None)
    assert live.now().estimates[0].anytime == Interval(0.0, 1.0)


def test_json_of_live_estimates_has_the_documented_fields() -> None:
    live = LiveEstimator()
    live.take(0, 1, agreeing("a"), [matched("a", 1)])
    found = live.now().as_json()
    assert list(found) == ["n", "without_outcome", "waiting", "ess", "weight_max", "logged", "flags", "estimates"]
    assert found["estimates"] == [
        {"estimator": "ips", "value": 2.0, "low": None, "high": None, "anytime_low": 0.0, "anytime_high": 1.0},
        {"estimator": "snips", "value": 1.0, "low": None, "high": None, "anytime_low": None, "anytime_high": None},
    ]


def test_estimator_remembers_only_decisions_since_the_first_pending_decision() -> None:
    live = LiveEstimator()
    for step in range(1, 500):
        predictions = agreeing(f"{step}a", f"{step}b")
        live.take(0, step, predictions, [matched(f"{step - 1}a", 1), matched(f"{step}b", 0)])
        assert live.now().waiting == 2


@pytest.mark.parametrize("batch", [1, 7, 3_000])
def test_path_of_live_estimates_does_not_depend_on_batch_sizes(batch: int) -> None:
    live, last = LiveEstimator(), dict[int, LiveEstimates]()
    for step, first in enumerate(range(0, 1_400, batch), 1):
        ids = [f"e{number}" for number in range(first, min(first + batch, 1_400))]
        live.take(0, step, agreeing(*ids), [matched(one, int(one[1:]) % 3 == 0) for one in ids])
        last[live.now().n] = live.now()
    found = live.now()
    assert [point.n for point in found.path] == list(range(4, 1_401, 4)), "expected every fourth row"
    for point in found.path:
        if point.n in last:
            before = last[point.n]
            assert point.ips == pytest.approx(value(before))
            assert (point.low, point.high) == pytest.approx(before.estimates[0].anytime)
            assert point.logged == pytest.approx(before.logged)
