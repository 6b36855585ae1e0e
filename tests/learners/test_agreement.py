"""Compare the linear learners to their naive transcriptions in every round."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream.learners import create
from stream.wire.records import FloatArray
from tests.learners.agreement import Round, assert_agree, delays, rounds_of
from tests.oracles.banditron import NaiveBanditron
from tests.oracles.full_information import NaiveArow, NaivePerceptron, NaiveSecondOrderPerceptron
from tests.oracles.logged import LabelledOracle, Oracle
from tests.oracles.newtron import NaiveNewtron
from tests.oracles.rdue import NaiveRdue
from tests.oracles.soba import NaiveSoba

K, D, ROUNDS = 4, 9, 300
IMMEDIATE: NDArray[np.int64] = np.zeros(ROUNDS, np.int64)

NEWTON: dict[str, Any] = {"gamma": 0.1, "alpha": 3.0, "beta": 0.05, "radius": 0.7}
Case = tuple[str, dict[str, Any], Callable[[], Oracle | LabelledOracle]]
LOOSE: dict[str, Any] = {"gamma": 0.1, "alpha": 0.3, "beta": 0.05, "radius": 30.0}


def margin_cases(margin: str) -> "dict[str, Case]":
    """Return the learners with a `margin` parameter.

    The parameter determines whether an update uses the scores from decision time or from feedback time.
    """
    m = {"margin": margin}
    return {
        "perceptron": ("perceptron", m, lambda: NaivePerceptron(K, D, margin)),
        "second-order-perceptron": (
            "second-order-perceptron",
            {"a": 2.0, **m},
            lambda: NaiveSecondOrderPerceptron(K, D, a=2.0, margin=margin),
        ),
        "arow": ("arow", {"r": 0.5, **m}, lambda: NaiveArow(K, D, r=0.5, margin=margin)),
        "banditron": ("banditron", {"gamma": 0.2, **m}, lambda: NaiveBanditron(K, D, gamma=0.2, margin=margin)),
        "soba": ("soba", {"gamma": 0.2, "a": 2.0, **m}, lambda: NaiveSoba(K, D, gamma=0.2, a=2.0, margin=margin)),
        "soba without the condition": (
            "soba",
            {"gamma": 0.2, "condition": "none", **m},
            lambda: NaiveSoba(K, D, gamma=0.2, margin=margin, condition=False),
        ),
        "soba-diag": (
            "soba-diag",
            {"gamma": 0.2, "a": 0.5, **m},
            lambda: NaiveSoba(K, D, gamma=0.2, a=0.5, diagonal=True, margin=margin),
        ),
        "soba-adaptive full": (
            "soba-adaptive",
            {"covariance": "full", **m},
            lambda: NaiveSoba(K, D, adaptive=True, margin=margin),
        ),
        "soba-adaptive diag": (
            "soba-adaptive",
            {"covariance": "diag", **m},
            lambda: NaiveSoba(K, D, adaptive=True, diagonal=True, margin=margin),
        ),
    }


CASES: dict[str, Case] = {
    **margin_cases("feedback"),
    **{f"{title}, margin=decision": case for title, case in margin_cases("decision").items()},
    "newtron": ("newtron", NEWTON, lambda: NaiveNewtron(K, D, **NEWTON)),
    "newtron, few projections": ("newtron", LOOSE, lambda: NaiveNewtron(K, D, **LOOSE)),
    "pnewtron": ("pnewtron", NEWTON, lambda: NaiveNewtron(K, D, diagonal=True, **NEWTON)),
    "pnewtron, few projections": ("pnewtron", LOOSE, lambda: NaiveNewtron(K, D, diagonal=True, **LOOSE)),
    "rdue": ("rdue", {"q": 0.2, "diameter": 5.0}, lambda: NaiveRdue(K, D, q=0.2, diameter=5.0)),
    "rdue without exploration": ("rdue", {"q": 0.0, "diameter": 1.0}, lambda: NaiveRdue(K, D, q=0.0, diameter=1.0)),
}


def events(seed: int, scale: float, binary: bool = False) -> list[Round]:
    rng = np.random.default_rng(seed)
    X: FloatArray = rng.normal(size=(ROUNDS, D)) * (rng.random((ROUNDS, D)) < 0.7)
    if binary:
        X = (X > 0).astype(np.float64)
    labels = (X @ rng.normal(size=(D, K))).argmax(axis=1)
    noisy = rng.random(ROUNDS) < 0.1
    labels[noisy] = rng.integers(0, K, int(noisy.sum()))
    return rounds_of(X * scale, labels, rng)


@pytest.mark.parametrize("data", ["gaussian", "small", "binary"])
@pytest.mark.parametrize("case", CASES)
def test_learner_agrees_with_the_transcription_in_every_round(case: str, data: str) -> None:
    name, parameters, make = CASES[case]
    learner, oracle = create(name, n_classes=K, n_features=D, **parameters), make()
    scale = 0.05 if data == "small" else 1.0
    rounds = events(seed=5, scale=scale, binary=data == "binary")
    assert_agree(learner, oracle, rounds, delays(ROUNDS, np.random.default_rng(6)))
    np.testing.assert_allclose(learner.weights(), oracle.weights(), atol=1e-9, rtol=1e-9)
    assert np.any(learner.weights() != 0.0)
    if isinstance(oracle, NaiveSoba):
        assert oracle.closest > 1e-12  # rounding did not affect any comparison in line 13 of SOBA


@pytest.mark.parametrize(("scale", "diagonal"), [(1.0, True), (0.05, True), (1.0, False), (0.05, False)])
def test_events_activate_the_condition_of_soba(scale: float, diagonal: bool) -> None:
    oracle = NaiveSoba(K, D, gamma=0.2, diagonal=diagonal)
    learner = create("soba-diag" if diagonal else "soba", n_classes=K, n_features=D, gamma=0.2)
    assert_agree(learner, oracle, events(seed=5, scale=scale), IMMEDIATE)
    assert oracle.refused >= 10


@pytest.mark.parametrize(
    ("name", "parameters", "fewest", "most"),
    [("newtron", NEWTON, 290, 300), ("newtron", LOOSE, 20, 290), ("pnewtron", NEWTON, 290, 300)],
)
def test_events_require_the_projection_in_some_rounds(
    name: str, parameters: dict[str, Any], fewest: int, most: int
) -> None:
    oracle = NaiveNewtron(K, D, diagonal=name == "pnewtron", **parameters)
    learner = create(name, n_classes=K, n_features=D, **parameters)
    assert_agree(learner, oracle, events(seed=5, scale=1.0), IMMEDIATE)
    assert fewest <= oracle.projections <= most


def test_pnewtron_norm_is_unchanged_by_a_refresh() -> None:
    learner = create("pnewtron", n_classes=K, n_features=D, **NEWTON)
    oracle = NaiveNewtron(K, D, diagonal=True, **NEWTON)
    rounds = [r for seed in range(4) for r in events(seed=seed, scale=1.0)]
    assert_agree(learner, oracle, rounds, np.zeros(len(rounds), dtype=np.int64))
    np.testing.assert_allclose(learner.weights(), oracle.weights(), atol=1e-9)
    assert float(np.linalg.norm(learner.weights())) == pytest.approx(NEWTON["radius"], rel=1e-12)
