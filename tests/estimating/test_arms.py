"""The comparison of the learner with its holdout."""

import numpy as np
import pytest

from stream.estimating.arms import Arms, differs
from stream.wire.records import HOLDOUT, Arm, Decision, Example, Outcome, Prediction

NO_SCORES = np.zeros(2)


def prediction(event_id: str, arm: Arm | None) -> Prediction:
    return Prediction(event_id, Decision(0, 0, 0.5, NO_SCORES), 0, arm=arm)


def example(event_id: str, reward: int | None) -> Example:
    return Example(event_id, Outcome.MATCHED if reward is not None else Outcome.EXPIRED, 0, 0.5, reward, 10, 10, None)


def test_decision_of_either_arm_counts_after_all_earlier_decisions_are_settled() -> None:
    arms = Arms(0.5)
    arms.take(0, 1, [prediction("a", HOLDOUT), prediction("b", None), prediction("c", None)], [example("b", 1)])
    assert (arms.now().learner.n, arms.now().waiting) == (0, 3)
    arms.take(0, 2, [], [example("a", 0)])
    found = arms.now()
    assert (found.learner.n, found.learner.rewards, found.holdout.n, found.holdout.rewards) == (1, 1, 1, 0)
    assert found.waiting == 1
    arms.take(0, 3, [], [example("c", None)])
    assert (arms.now().learner.n, arms.now().learner.without_reward) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_interval_covers_the_difference_at_all_times_in_most_streams(share: float) -> None:
    rng = np.random.default_rng(1)
    streams, size, difference, missed = 100, 2_000, 0.2, 0
    for _ in range(streams):
        arms = Arms(share)
        of_holdout = (rng.random(size) < share).astype(np.float64)
        rewards = (rng.random(size) < np.where(of_holdout, 0.5, 0.5 + difference)).astype(np.float64)
        is_missed = False
        for start in range(0, size, 100):
            arms.count(of_holdout[start : start + 100], rewards[start : start + 100])
            bounds = arms.now().difference
            is_missed |= not bounds.low <= difference <= bounds.high
        missed += is_missed
    assert missed <= 0.05 * streams


def test_interval_excludes_0_after_many_decisions_if_the_arms_differ() -> None:
    rng = np.random.default_rng(2)
    arms = Arms(0.05)
    of_holdout = (rng.random(20_000) < 0.05).astype(np.float64)
    arms.count(of_holdout, (rng.random(20_000) < np.where(of_holdout, 0.1, 0.9)).astype(np.float64))
    bounds = arms.now().difference
    assert 0.0 < bounds.low < 0.8 < bounds.high < 1.0


def test_alarm_is_raised_only_if_the_holdout_share_differs_from_the_setting() -> None:
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(200):
        holdouts = np.cumsum(rng.random(5_000) < 0.05)
        alarms += any(differs(int(n), t - int(n), 0.05) for t, n in enumerate(holdouts.tolist(), 1) if t % 50 == 0)
    assert alarms <= 1
    assert differs(400, 9_600, 0.05)
