"""A holdout that plays the service's own rule, whose class each context names."""

from copy import copy
from typing import Any

import numpy as np
import pytest

import onebit
from onebit.pipelines import RejectedError
from stream.learners import FromLogs, create, registered
from stream.learners.base import KernelLearner
from stream.learners.wrappers.challenge import Challenge
from stream.learners.wrappers.mixture import BASELINE, Mixture
from stream.task.settings import PolicyError, TaskSettings

X = np.array([1.0, 0.5])
RULED: dict[str, Any] = {"n_classes": 3, "n_features": 2, "learner": "late-ucb", "holdout_policy": BASELINE}


def mixture(holdout: float, floor: float = 0.0) -> Mixture:
    inner = create("late-ucb", 3, 2)
    assert isinstance(inner, KernelLearner)
    return Mixture(inner, floor, holdout, BASELINE)


@pytest.mark.parametrize("baseline", [0, 1, 2])
def test_propensity_is_that_of_the_rule_and_the_learner_together(baseline: int) -> None:
    learner, alone = mixture(0.4, 0.3), mixture(0.0, 0.3)
    learner.set_baseline(baseline)
    expected = 0.6 * alone.distribution(X) + 0.4 * (np.arange(3) == baseline)
    np.testing.assert_allclose(learner.distribution(X), expected, rtol=1e-12)
    for u in np.linspace(0.0, 0.999, 50).tolist():
        decision = learner.predict(X, u)
        assert decision.propensity == pytest.approx(expected[decision.action], rel=1e-12)
        assert u >= 0.4 or decision.action == baseline


def test_each_copy_has_its_own_baseline() -> None:
    learner = mixture(1.0)
    learner.set_baseline(1)
    other = copy(learner)
    other.set_baseline(2)
    assert (learner.predict(X, 0.5).action, other.predict(X, 0.5).action) == (1, 2)


def test_rule_makes_all_decisions_and_the_learner_learns_from_them() -> None:
    with onebit.embedded(**RULED, holdout=1.0, reward="any") as pipeline:
        for number in range(60):
            decided = pipeline.decide(f"a{number}", [1.0, number % 2], baseline=number % 3)
            assert (decided.action, decided.propensity) == (number % 3, 1.0)
            pipeline.feedback(f"a{number}", int(number % 3 == 2))
        assert pipeline.decide("last", [1.0, 1.0], baseline=0).greedy == 2
        assert pipeline.example("a7")["arm"] == "holdout"
        assert pipeline.test.prediction("a7")["baseline"] == 1
        pipeline.restart()
        assert pipeline.decide("later", [1.0, 1.0], baseline=1).action == 1


def test_learner_takes_over_after_a_change_of_the_holdout() -> None:
    with onebit.embedded(**RULED, holdout=1.0, reward="any") as pipeline:
        for number in range(60):
            pipeline.decide(f"a{number}", [1.0, 0.0], baseline=number % 2)
            pipeline.feedback(f"a{number}", number % 2)
        pipeline.change(holdout=0.05)
        actions = [pipeline.decide(f"b{number}", [1.0, 0.0], baseline=0).action for number in range(40)]
        assert np.mean(np.array(actions) == 1) > 0.5
        pipeline.change(holdout=0.0)
        assert pipeline.decide("c", [1.0, 0.0]).propensity > 0.0


def test_champion_and_challengers_have_the_same_baseline() -> None:
    champion, challenger = mixture(1.0), mixture(1.0)
    Challenge(champion, challenger).set_baseline(2)
    assert [one.predict(X, 0.5).action for one in (champion, challenger)] == [2, 2]


@pytest.mark.parametrize("model", ["own", "shared"])
def test_partitions_decide_with_the_baseline_of_their_own_contexts(model: str) -> None:
    with onebit.embedded(**RULED, holdout=1.0, partitions=3, model=model) as pipeline:
        actions = [pipeline.decide(f"a{number}", [1.0, 0.0], baseline=number % 3).action for number in range(12)]
        assert actions == [0, 1, 2] * 4


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        ({}, {}),
        ({}, {"baseline": 3}),
        ({}, {"baseline": "a"}),
        ({}, {"baseline": 0, "eligible": [1, 2]}),
        ({"holdout": 0.0}, {"baseline": 3}),
        ({"n_classes": None, "classes_max": 3}, {"baseline": "help", "eligible": ["news", "offers"]}),
        ({"n_classes": None, "classes_max": 3}, {"baseline": 0, "eligible": ["news", "offers"]}),
    ],
)
def test_context_without_a_valid_baseline_is_malformed(settings: dict[str, Any], context: dict[str, Any]) -> None:
    with onebit.embedded(**{**RULED, "holdout": 0.5, **settings}) as pipeline, pytest.raises(RejectedError):
        pipeline.decide("a", [1.0, 0.0], **context)


def test_rejected_baseline_adds_no_open_class() -> None:
    with onebit.embedded(**{**RULED, "n_classes": None, "classes_max": 2, "holdout": 1.0}) as pipeline:
        with pytest.raises(RejectedError):
            pipeline.decide("a", [1.0, 0.0], eligible=["news", "offers"], baseline="help")
        assert pipeline.decide("b", [1.0, 0.0], eligible=["help", "sale"], baseline="sale").class_name == "sale"


def test_learner_of_its_own_decisions_is_refused_if_the_rule_makes_them_all() -> None:
    name = next(name for name, cls in registered().items() if cls.from_logs is FromLogs.UNSOUND)
    for policy in (BASELINE, "uniform"):
        with pytest.raises(PolicyError):
            TaskSettings(name, 3, 2, holdout=1.0, holdout_policy=policy).make_learner()
    assert TaskSettings(name, 3, 2, holdout=0.5, holdout_policy=BASELINE).make_learner().n_classes == 3
