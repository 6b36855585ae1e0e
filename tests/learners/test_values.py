"""Learners that learn from graded rewards, which are shares from 0 to 1."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stream.learners import check_parameters, create, registered
from stream.learners.late_bits.late_ucb import WAVES_SEED, random_waves
from stream.wire.records import FloatArray
from tests.learners.agreement import Round, assert_agree, delays, rounds_of
from tests.oracles.confidit import NaiveConfidit, NaiveDualConfidit
from tests.oracles.late_bits import NaiveIgwLogistic, NaiveLateUcb, NaiveStackIgw
from tests.oracles.logged import Oracle

K, D, ROUNDS = 4, 6, 150

VALUED = [name for name, cls in registered().items() if cls.learns_values]


def waves(m: int) -> tuple[FloatArray, FloatArray]:
    """The random matrices σω [m, d] and β [m] that late-ucb uses."""
    omega, phases = random_waves(D, m, WAVES_SEED)
    return omega.T, phases


CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Oracle]]] = {
    "late-ucb": ("late-ucb", {"m": 16}, lambda: NaiveLateUcb(K, D, waves=waves(16), drift="global")),
    "igw-logistic": ("igw-logistic", {"others": 0.0}, lambda: NaiveIgwLogistic(K, D, others=0.0, drift="global")),
    "stack-igw": ("stack-igw", {"others": 0.0}, lambda: NaiveStackIgw(K, D, others=0.0, drift="global")),
    "confidit": (
        "confidit",
        {"alpha": 0.5},
        lambda: NaiveConfidit(K, D, projection=False, confidence="constant", covariance="full", alpha=0.5, eta=1.0),
    ),
    "confidit-kernel": (
        "confidit-kernel",
        {"kernel": "linear", "alpha": 0.5},
        lambda: NaiveDualConfidit(K, kernel="linear", degree=2, width=1.0, eta=1.0, alpha=0.5),
    ),
}


def events() -> tuple[list[Round], FloatArray]:
    """Contexts without labels, and the reward of each class [n, K]; some rewards are exactly 0 or 1."""
    rng = np.random.default_rng(5)
    X: FloatArray = rng.normal(size=(ROUNDS, D)) * (rng.random((ROUNDS, D)) < 0.7)
    X[:, 0] = 1.0
    shares = np.clip(0.5 + 0.4 * (X @ rng.normal(size=(D, K))), 0.0, 1.0)
    return rounds_of(X, np.full(ROUNDS, -1), rng), shares


def test_every_learner_that_learns_values_is_compared() -> None:
    assert sorted(name for name, _, _ in CASES.values()) == [
        name for name in VALUED if not registered()[name].for_actions
    ]


@pytest.mark.parametrize("case", CASES)
def test_learner_agrees_with_the_transcription_on_values(case: str) -> None:
    name, parameters, make = CASES[case]
    rounds, shares = events()
    assert 0 < ((shares > 0.0) & (shares < 1.0)).sum() < shares.size
    learner = create(name, n_classes=K, n_features=D, **parameters)
    assert_agree(learner, make(), rounds, delays(ROUNDS, np.random.default_rng(6)), shares=shares)


@pytest.mark.parametrize("name", VALUED)
def test_bit_as_a_value_gives_the_same_model_as_the_bit(name: str) -> None:
    is_for_actions = registered()[name].for_actions  # two actions with one feature, and two features of the context
    parameters = check_parameters(name, {"context": 2} if is_for_actions else {}, any_right=True)
    states = []
    for kind in (int, float):
        learner = create(name, n_classes=2 if is_for_actions else K, n_features=D, **parameters)
        for number, (x, _, u, v) in enumerate(events()[0][:60]):
            decision = learner.predict(x, u)
            learner.observe(x, decision)
            learner.update(x, decision, kind(number % 3 == 0), v)
        states.append({part: np.asarray(array).tobytes() for part, array in learner.state().items()})
    assert states[0] == states[1]


@pytest.mark.parametrize("name", ["late-ucb", "confidit"])
def test_value_replaces_an_earlier_value_exactly(name: str) -> None:
    parameters = check_parameters(name, {}, correctable=True, any_right=True)
    corrected, direct = (create(name, n_classes=K, n_features=D, **parameters) for _ in range(2))
    rounds, shares = events()
    for t, (x, _, u, v) in enumerate(rounds[:60]):
        first, last = float(shares[t, 0]), float(shares[t, 1])
        decision = corrected.predict(x, u)
        for learner, reward in ((corrected, first), (direct, last)):
            learner.observe(x, decision)
            learner.update(x, decision, reward, v)
        corrected.retract(x, decision, first, last, v)
    for part, array in direct.state().items():
        np.testing.assert_allclose(np.asarray(corrected.state()[part]), np.asarray(array), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "reward"), [("banditron", 0.5), *((name, reward) for name in ("late-ucb",) for reward in (-0.1, 1.1, 2))]
)
def test_learner_rejects_a_value_that_it_cannot_learn(name: str, reward: float) -> None:
    learner = create(name, n_classes=K, n_features=D)
    x = np.ones(D)
    decision = learner.predict(x, 0.5)
    with pytest.raises(ValueError, match="reward"):
        learner.update(x, decision, reward)
