"""Decisions among a subset of the classes."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from stream.learners import KernelLearner, ParameterError, create, registered
from stream.learners.wrappers.mixture import Mixture
from stream.learners.wrappers.running_scale import RunningScale
from stream.wire.records import NOT_ELIGIBLE, IndexArray
from tests.learners import test_agreement, test_confidit, test_late_bits
from tests.learners.agreement import Round, assert_agree, delays
from tests.learners.test_battery import CASES, Case, examples, learn
from tests.oracles.confidit import NaiveConfidit
from tests.oracles.logged import LabelledOracle, Oracle

SUPPORTING = [name for name, cls in registered().items() if cls.supports_eligible]

Made = tuple[Any, Oracle | LabelledOracle, list[Round]]


def sets_of(n_classes: int, size: int) -> list[IndexArray]:
    """Return a random set of eligible classes for each event."""
    rng = np.random.default_rng(4)
    return [
        np.sort(rng.choice(n_classes, rng.integers(1, n_classes + 1), replace=False)).astype(np.int32)
        for _ in range(size)
    ]


def linear(case: str) -> Made:
    name, parameters, make = test_agreement.CASES[case]
    K, D = test_agreement.K, test_agreement.D
    return create(name, K, D, **parameters), make(), test_agreement.events(seed=5, scale=1.0)


def late(case: str) -> Made:
    name, parameters, make = test_late_bits.CASES[case]
    return create(name, test_late_bits.K, test_late_bits.D, **parameters), make(), test_late_bits.events("gaussian")


def confidit(case: str) -> Made:
    options, K, D = test_confidit.OPTIONS[case], test_confidit.K, test_confidit.D
    return create("confidit", K, D, **options), NaiveConfidit(K, D, **options), test_confidit.events(seed=11)


def named(make: Callable[[str], Made], cases: Sequence[str]) -> dict[str, tuple[Callable[[str], Made], str]]:
    return {case: (make, case) for case in cases}


MADE = (
    named(linear, [case for case, (name, *_) in test_agreement.CASES.items() if name in SUPPORTING])
    | named(late, ["late-ucb", "late-ucb, plain, projected", "igw-logistic", "stack-igw"])
    | named(confidit, ["variant 2", "projected diagonal"])
)


@pytest.mark.parametrize(("make", "case"), MADE.values(), ids=MADE)
def test_learner_agrees_with_the_transcription_for_random_eligible_classes(
    make: Callable[[str], Made], case: str
) -> None:
    learner, oracle, events = make(case)
    rng = np.random.default_rng(6)
    assert_agree(learner, oracle, events, delays(len(events), rng), sets_of(learner.n_classes, len(events)))


WRAPPERS: dict[str, Callable[[KernelLearner], KernelLearner]] = {
    "scaled": RunningScale,
    "floor": lambda learner: Mixture(learner, 0.3),
    "floor and holdout": lambda learner: Mixture(learner, 0.2, 0.3, policy=1),
}
WRAPPED = [(name, None) for name in SUPPORTING] + list(product(("banditron", "late-ucb", "igw-logistic"), WRAPPERS))


@pytest.mark.parametrize(("name", "wrapper"), WRAPPED)
def test_decisions_are_among_the_eligible_classes_with_exact_propensities(name: str, wrapper: str | None) -> None:
    size = 60
    data, rng = examples(Case(name), size), np.random.default_rng(3)
    learner = CASES[name].create()
    assert isinstance(learner, KernelLearner)
    if wrapper is not None:
        learner = WRAPPERS[wrapper](learner)
    for t, eligible in enumerate(sets_of(learner.n_classes, size)):
        x, outside = data.features(t), np.setdiff1d(np.arange(learner.n_classes), eligible)
        p = learner.distribution(x, eligible)
        decision = learner.predict(x, float(rng.random()), eligible)
        assert p.sum() == pytest.approx(1.0)
        assert (p[outside] == 0.0).all()
        assert decision.propensity == pytest.approx(p[decision.action], rel=1e-9)
        assert {decision.action, decision.greedy} <= set(eligible.tolist())
        assert (np.flatnonzero(decision.scores == NOT_ELIGIBLE) == outside).all()
        learner.observe(x, decision)
        learn(learner, data, t, decision)


@pytest.mark.parametrize("name", SUPPORTING)
def test_decisions_are_unchanged_if_all_classes_are_eligible(name: str) -> None:
    learner = CASES[name].create()
    x, whole = examples(Case(name), 1).features(0), np.arange(learner.n_classes, dtype=np.int32)
    one, other = learner.predict(x, 0.4), learner.predict(x, 0.4, whole)
    assert one[:3] == other[:3]
    np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.parametrize("name", sorted(registered().keys() - set(SUPPORTING)))
def test_learners_without_support_reject_eligible_classes(name: str) -> None:
    learner = CASES[name].create()
    with pytest.raises(ParameterError):
        learner.predict(np.ones(learner.n_features), 0.5, np.array([0, 1], np.int32))


@pytest.mark.parametrize("eligible", [[], [1, 0], [1, 1], [-1, 0], [3, 4]])
def test_invalid_eligible_classes_are_rejected(eligible: list[int]) -> None:
    with pytest.raises(ValueError, match="in increasing order"):
        create("banditron", 4, 9).predict(np.ones(9), 0.5, np.array(eligible, np.int32))
