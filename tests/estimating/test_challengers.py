"""Estimates of each challenger's mean reward from the champion's decisions."""

import numpy as np
import pytest

from stream.estimating.challengers import ChallengerEstimator
from stream.wire.records import Challenged, Decision, Example, Outcome, Prediction

NO_SCORES = np.zeros(2)


def prediction(event_id: str, action: int, propensity: float, challenged: Challenged | None) -> Prediction:
    return Prediction(event_id, Decision(action, action, propensity, NO_SCORES), 0, challenged=challenged)


def example(event_id: str, reward: int | None) -> Example:
    return Example(event_id, Outcome.MATCHED if reward is not None else Outcome.EXPIRED, 0, 0.5, reward, 10, 10, None)


def test_estimates_of_challengers_equal_weighted_means() -> None:
    estimator, rng, size = ChallengerEstimator(), np.random.default_rng(1), 300
    first, second, rewards = rng.integers(0, 2, (3, size)).tolist()
    actions = (rng.random(size) < 0.2).astype(int).tolist()
    propensities = np.where(np.array(actions) == 0, 0.8, 0.2)
    for t in range(size):
        challenged = Challenged("old", {"first": first[t], "second": second[t]})
        made = prediction("a", actions[t], propensities[t], challenged)
        estimator.take(0, t + 1, [made], [example("a", rewards[t])])
    found = estimator.now()
    assert (found.champion, found.n, found.mean) == ("old", size, sum(rewards) / size)
    for one, choices in zip(found.challengers, (first, second), strict=True):
        w = (np.array(choices) == actions) / propensities
        assert (one.ips, one.snips) == pytest.approx((np.mean(w * rewards), np.sum(w * rewards) / np.sum(w)))
        assert one.reward.low <= one.ips <= one.reward.high
        assert one.difference.low <= np.mean((w - 1.0) * rewards) <= one.difference.high
    assert [one.name for one in found.challengers] == ["first", "second"]


def test_challenger_is_not_reported_as_better_if_lost_feedback_depends_on_the_action() -> None:
    estimator, rng = ChallengerEstimator(), np.random.default_rng(1)
    for step in range(1, 601):
        action = int(rng.integers(2))
        made = prediction("a", action, 0.5, Challenged("old", {"new": 1}))
        estimator.take(0, step, [made], [example("a", int(rng.integers(2)) if action else None)])
    found = estimator.now()
    assert found.challengers[0].difference.low > 0.0
    assert (found.challengers[0].is_valid, found.better) == (False, None)


def test_each_champion_has_its_own_estimates() -> None:
    estimator = ChallengerEstimator()
    for step, champion in enumerate(("old", "old", "new", "new", "new"), start=1):
        challenged = Challenged(champion, {"new" if champion == "old" else "old": 0})
        made = prediction(str(step), 0, 0.5, challenged)
        estimator.take(0, step, [made], [example(str(step), None if step == 5 else 1)])
    found = estimator.now()
    assert (found.champion, found.n, found.without_reward) == ("new", 2, 1)
    assert [one.name for one in found.challengers] == ["old"]


def test_each_set_of_challengers_has_its_own_estimates() -> None:
    estimator = ChallengerEstimator()
    for step, names in enumerate((("a",), ("a",), ("a", "b")), start=1):
        made = prediction(str(step), 0, 0.5, Challenged("old", dict.fromkeys(names, 0)))
        estimator.take(0, step, [made], [example(str(step), 1)])
    found = estimator.now()
    assert (found.n, [one.name for one in found.challengers]) == (1, ["a", "b"])


def test_decisions_without_propensity_or_challengers_are_ignored() -> None:
    estimator = ChallengerEstimator()
    for step, (propensity, name) in enumerate([(0.5, "new"), (float("nan"), "new"), (0.5, "")], 1):
        made = prediction("a", 0, propensity, Challenged("old", {name: 0}) if name else None)
        estimator.take(0, step, [made], [example("a", 1)])
    found = estimator.now()
    assert (found.n, [(one.name, one.ips) for one in found.challengers]) == (1, [("new", 2.0)])
    assert found.waiting == 0


@pytest.mark.slow
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_only_a_better_challenger_is_reported_as_better(margin: float) -> None:
    """The champion plays the better class with probability 0.7, and the challenger with probability 0.7 + margin."""
    rng, found = np.random.default_rng(3), 0
    streams, size = 60, 3_000
    for _ in range(streams):
        estimator = ChallengerEstimator()
        played, chosen = (rng.random(size) < 0.7).astype(int), (rng.random(size) < 0.7 + margin).astype(int)
        rewards = (rng.random(size) < np.where(played, 0.8, 0.2)).astype(int)
        for start in range(0, size, 300):
            rows = range(start, start + 300)
            made = [
                prediction(
                    str(t), int(played[t]), 0.7 if played[t] else 0.3, Challenged("old", {"new": int(chosen[t])})
                )
                for t in rows
            ]
            estimator.take(0, start // 300 + 1, made, [example(str(t), int(rewards[t])) for t in rows])
            if estimator.now().better is not None:
                found += 1
                break
    assert found == streams if margin else found <= 0.05 * streams
