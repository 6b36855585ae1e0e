"""Compare the learners for actions with features to their naive transcriptions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stream.learners import KernelLearner, ParameterError, create
from stream.learners.actions.principal_directions_kernels import principal_directions
from stream.wire.records import FloatArray, IndexArray
from tests.learners.agreement import Round, assert_agree, delays, rounds_of
from tests.oracles.actions import NaiveIgwLog, NaiveJointUcb
from tests.oracles.logged import Oracle

K, ROUNDS, IDS = 5, 160, 12


def offers(c: int, a: int) -> tuple[list[Round], list[IndexArray]]:
    """Return contexts that each offer K of the actions, or fewer, with the best place as the label."""
    rng = np.random.default_rng(3)
    actions, taste = rng.normal(size=(IDS, a)), rng.normal(size=(c, a))
    X, labels, eligible = [], [], []
    for t in range(ROUNDS):
        context, ids = rng.normal(size=c), rng.choice(IDS, K, replace=False)
        context[-1] = 2.0  # a constant column
        among = np.sort(rng.choice(K, int(rng.integers(2, K + 1)), replace=False)).astype(np.int32)
        X.append(np.concatenate([context, *(np.array([1.0 + i, *actions[i]]) for i in ids)]))
        values = context @ taste @ actions[ids].T
        labels.append(among[values[among].argmax()] if t % 3 else among[0])
        eligible.append(among)
    return rounds_of(np.array(X), np.array(labels), rng), eligible


def joint(c: int, a: int, **parameters: Any) -> tuple[KernelLearner, Oracle]:
    learner = create("joint-ucb", n_classes=K, n_features=c + K * (1 + a), context=c, **parameters)
    assert isinstance(learner, KernelLearner)
    waves = (learner.arrays[name] for name in ("omega", "nu", "phases"))
    own = {name: value for name, value in parameters.items() if name not in ("m", "ids")}
    return learner, NaiveJointUcb(K, c, a, *waves, **own)


def igw(c: int, a: int, **parameters: Any) -> tuple[KernelLearner, Oracle]:
    learner = create("igw-log", n_classes=K, n_features=c + K * (1 + a), context=c, **parameters)
    assert isinstance(learner, KernelLearner)
    return learner, NaiveIgwLog(K, c, **parameters)


CASES: dict[str, tuple[Callable[..., tuple[KernelLearner, Oracle]], int, int, dict[str, Any]]] = {
    "joint-ucb": (joint, 3, 2, {}),
    "joint-ucb, other parameters": (
        joint, 4, 3, {"m": 8, "bias": 0.5, "lam": 0.4, "lam_id": 3.0, "eta": 0.3, "shortlist": 2},
    ),
    "joint-ucb, no cosines": (joint, 3, 2, {"m": 0}),
    "joint-ucb, reduced context": (joint, 7, 2, {"p": 4}),
    "joint-ucb, reduced action": (joint, 3, 5, {"p": 3}),
    "igw-log": (igw, 3, 2, {}),
    "igw-log, other parameters": (igw, 4, 3, {"scale": 20.0, "step": 1.0, "bias": 0.6}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_learner_agrees_with_the_transcription_in_every_round(case: str) -> None:
    make, c, a, parameters = CASES[case]
    learner, oracle = make(c, a, **parameters)
    rounds, eligible = offers(c, a)
    mistakes = assert_agree(learner, oracle, rounds, delays(ROUNDS, np.random.default_rng(6)), eligible)
    assert 0 < mistakes < ROUNDS


def test_directions_are_the_top_singular_vectors() -> None:
    rows: FloatArray = np.random.default_rng(1).normal(size=(40, 30))
    directions = np.zeros((30, 6))
    principal_directions(rows, 40, directions)
    expected = np.linalg.svd(rows)[2][:6].T
    np.testing.assert_allclose(np.abs(np.sum(directions * expected, axis=0)), 1.0, atol=1e-12)


def test_directions_without_variance_are_zero() -> None:
    directions = np.ones((4, 3))
    principal_directions(np.ones((5, 4)), 5, directions)
    np.testing.assert_allclose(directions, [[0.5, 0, 0]] * 4, atol=1e-12)


@pytest.mark.parametrize("name", ["joint-ucb", "igw-log"])
def test_sizes_that_are_not_a_context_and_equal_blocks_are_rejected(name: str) -> None:
    with pytest.raises(ParameterError, match="context"):
        create(name, n_classes=3, n_features=10, context=2)
