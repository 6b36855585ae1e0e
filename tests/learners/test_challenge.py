"""A champion with challengers. Each learner learns exactly as if it learned alone from a log of the decisions."""

import copy
from typing import Any

import numpy as np
import pytest
from scipy import stats

from stream.learners import KernelLearner, ParameterError, create
from stream.learners.wrappers.challenge import Challenge
from stream.learners.wrappers.mixture import Mixture
from stream.learners.wrappers.running_scale import RunningScale
from stream.shared.view import Overlay
from stream.wire.records import Decision, Features
from tests.learners.test_battery import Case, examples

K, D = 4, 9

LEARNERS: dict[str, dict[str, Any]] = {
    "igw-logistic": {}, "late-ucb": {"m": 4, "drift": "off"}, "banditron": {"gamma": 0.3}, "soba-diag": {},
    "stack-igw": {"vectors": 0},
}  # fmt: skip


def bare(name: str) -> KernelLearner:
    learner = create(name, K, D, **LEARNERS[name])
    assert isinstance(learner, KernelLearner)
    return learner


def nested() -> tuple[list[KernelLearner], Challenge]:
    """Return a champion and two challengers, first as separate learners, then as one Challenge.

    The champion has a floor and a holdout. The first challenger has a running scale.
    """

    def members() -> list[KernelLearner]:
        return [
            Mixture(bare("igw-logistic"), 0.2, 0.1, 1),
            RunningScale(bare("soba-diag")),
            bare("banditron"),
        ]

    champion, first, second = members()
    return members(), Challenge(Challenge(champion, first), second)


def pair(champion: str, challenger: str) -> tuple[list[KernelLearner], Challenge]:
    return [bare(champion), bare(challenger)], Challenge(bare(champion), bare(challenger))


TOGETHER = {
    "sparse": lambda: pair("igw-logistic", "stack-igw"),
    "logged by the challenger": lambda: pair("banditron", "late-ucb"),
    "logged by the champion": lambda: pair("late-ucb", "banditron"),
    "nested": nested,
}


def as_logged(learner: KernelLearner, x: Features, decision: Decision) -> Decision:
    """Return another learner's decision as `learner` reads it from a log. Its scores do not depend on u."""
    return learner.as_played(x, learner.predict(x, 0.5), decision.action, decision.propensity)


@pytest.mark.parametrize("delay", [0, 50])
@pytest.mark.parametrize("case", TOGETHER)
def test_each_learner_in_a_challenge_learns_as_if_alone(case: str, delay: int) -> None:
    alone, together = TOGETHER[case]()
    size, data, rng = 300, examples(Case("banditron"), 300), np.random.default_rng(5)
    waiting: list[tuple[Decision, list[Decision]]] = []
    for t in range(size + delay):
        if t < size:
            x, u = data.features(t), float(rng.random())
            if t % 100 == 99:
                together.promote(t // 100)
                together = copy.copy(together)
            mine, champion = together.predict(x, u), together.decides
            own = alone[champion].predict(x, u)
            assert (mine[:3], mine.scores.tolist()) == (own[:3], own.scores.tolist())
            assert together.choices(mine)[0] == champion
            logged = [own if n == champion else as_logged(one, x, mine) for n, one in enumerate(alone)]
            together.observe(x, mine)
            for one, decision in zip(alone, logged, strict=True):
                one.observe(x, decision)
            waiting.append((mine, logged))
        if t >= delay:
            s = t - delay
            x, (mine, logged) = data.features(s), waiting[s]
            reward = int(mine.action == data.labels[s])
            changed = [one.update(x, decision, reward, 0.5) for one, decision in zip(alone, logged, strict=True)]
            assert together.update(x, mine, reward, 0.5) == any(changed)
    found = together.state()
    for number, one in enumerate(alone):
        for name, value in one.state().items():
            np.testing.assert_array_equal(found[f"challenger{number}.{name}" if number else name], value, name)


def test_copy_shares_no_state_with_its_original() -> None:
    _, together = nested()
    x, before = examples(Case("banditron"), 1).features(0), together.state()
    other = copy.copy(together)
    decision = other.predict(x, 0.3)
    other.observe(x, decision)
    other.update(x, decision, 1, 0.5)
    for name, value in together.state().items():
        np.testing.assert_array_equal(value, before[name], name)


def test_each_learner_is_extended_as_if_alone() -> None:
    _, together = pair("banditron", "late-ucb")
    data = examples(Case("banditron"), 30)
    for t in range(30):
        decision = together.predict(data.features(t), t / 30)
        together.observe(data.features(t), decision)
        together.update(data.features(t), decision, t % 2)
    together.promote(1)
    first, second, alone, beside = (
        create(name, K + 1, D, **LEARNERS[name]) for name in ("banditron", "late-ucb", "banditron", "late-ucb")
    )
    assert isinstance(first, KernelLearner)
    assert isinstance(second, KernelLearner)
    assert isinstance(alone, KernelLearner)
    assert isinstance(beside, KernelLearner)
    larger = Challenge(first, second)
    larger.load_smaller(together)
    alone.load_smaller(together.inner)
    beside.load_smaller(together.challenger)
    assert larger.decides == 1
    for one, other in ((first, alone), (second, beside)):
        for name, value in other.state().items():
            np.testing.assert_array_equal(one.state()[name], value, name)


def test_retraction_applies_to_both_learners() -> None:
    alone, together = pair("banditron", "late-ucb")
    x, u = examples(Case("banditron"), 1).features(0), 0.3
    mine = together.predict(x, u)
    logged = [alone[0].predict(x, u), as_logged(alone[1], x, mine)]
    together.observe(x, mine)
    together.update(x, mine, 0, 0.5)
    together.retract(x, mine, 0, 1, 0.5)
    for number, (one, decision) in enumerate(zip(alone, logged, strict=True)):
        one.observe(x, decision)
        one.update(x, decision, 0, 0.5)
        one.retract(x, decision, 0, 1, 0.5)
        for name, value in one.state().items():
            np.testing.assert_array_equal(together.state()[f"challenger{number}.{name}" if number else name], value)


@pytest.mark.parametrize("case", TOGETHER)
def test_overlay_of_decisions_is_removed_exactly(case: str) -> None:
    _, together = TOGETHER[case]()
    together.promote(1)
    before, overlay, data = together.state(), Overlay(together), examples(Case("banditron"), 20)
    for t in range(20):
        overlay.observe(data.features(t), together.predict(data.features(t), t / 20))
    overlay.restore()
    for name, value in together.state().items():
        np.testing.assert_array_equal(value, before[name], name)


def test_challenger_chooses_independently_of_the_decision() -> None:
    together = Challenge(Mixture(bare("banditron"), 0.5), Mixture(bare("banditron"), 0.5))
    x = examples(Case("banditron"), 1).features(0)
    counts = np.zeros((K, K))
    for u in np.random.default_rng(1).random(40_000):
        counts[together.choices(together.predict(x, float(u)))[1]] += 1
    assert stats.chi2_contingency(counts).pvalue > 0.001
    p = together.inner.distribution(x)
    assert stats.chisquare(counts.sum(axis=0), p * counts.sum()).pvalue > 0.001


def test_eligible_classes_limit_all_learners() -> None:
    _, together = nested()
    eligible = np.array([1, 3], np.int32)
    x = examples(Case("banditron"), 1).features(0)
    for u in np.linspace(0.0, 0.999, 50):
        assert set(together.choices(together.predict(x, float(u), eligible))[1]) <= {1, 3}


@pytest.mark.parametrize("name", ["perceptron", "exp4"])
def test_learner_that_cannot_learn_from_decisions_of_others_is_rejected(name: str) -> None:
    other = create(name, K, D)
    assert isinstance(other, KernelLearner)
    for members in ((other, bare("banditron")), (bare("banditron"), other)):
        with pytest.raises(ParameterError):
            Challenge(*members)
