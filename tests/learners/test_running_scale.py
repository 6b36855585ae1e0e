"""Compare the running scale to the transcription in `tests.oracles.running_scale`, and test its edge cases."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from stream.learners import KernelLearner, State, create
from stream.learners.wrappers.running_scale import FIRST, LIMIT, RunningScale
from stream.offline import Examples, run
from stream.wire.records import Decision, Features, FloatArray
from tests.oracles.running_scale import RunningScaleOracle, Scaled

K, D = 3, 8


def bare(name: str, parameters: dict[str, Any]) -> KernelLearner:
    learner = create(name, K, D, **parameters)
    assert isinstance(learner, KernelLearner)
    return learner


def columns(size: int, seed: int = 1) -> FloatArray:
    """Return contexts with columns of different kinds.

    The columns include large, shifted, sparse, constant, initially zero, heavy-tailed and empty columns.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(size, D))
    X[:, 0] *= 1e4
    X[:, 1] += 2_000.0
    X[:, 2] *= 500.0 * (rng.random(size) < 0.2)
    X[:, 3] = 7.0
    X[:, 4] *= 1e-3 * (np.arange(size) > 70)
    X[:, 5] = np.exp(4.0 * X[:, 5])
    X[:, 6] = 0.0
    return X


def sparse_of(x: FloatArray) -> Features:
    indices = np.flatnonzero(x).astype(np.int32)
    return Features(indices, x[indices])


def arrays_of(state: State) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(value) for name, value in state.items()}


LEARNERS: dict[str, dict[str, Any]] = {
    "banditron": {"gamma": 0.3},
    "late-ucb": {"expand": "none", "drift": "off"},
    "stack-igw": {"vectors": 0},
    "perceptron": {},
}


class Waiting(NamedTuple):
    """A pending decision, as made by the learner and by the oracle."""

    x: FloatArray
    mine: Decision
    expected: Scaled
    label: int


@pytest.mark.parametrize("delay", [0, 300])
@pytest.mark.parametrize("name", LEARNERS)
def test_decisions_and_updates_agree_with_recomputed_scales(name: str, delay: int) -> None:
    size, parameters = 700, LEARNERS[name]
    learner, oracle = RunningScale(bare(name, parameters)), RunningScaleOracle(bare(name, parameters))
    X, rng = columns(size), np.random.default_rng(2)
    labels = (X[:, 0] / 1e4 > 0.5).astype(int) + (X[:, 1] > 2_000.0)
    waiting: list[Waiting] = []
    for t in range(size + delay):
        if t < size:
            u = float(rng.random())
            mine = learner.predict(X[t], u)
            assert mine.logged[-1] == oracle.version
            expected = oracle.decide(X[t], u)
            z, _ = learner.inside(X[t], mine)
            assert z.indices.tolist() == expected.z.indices.tolist()
            np.testing.assert_allclose(z.values, expected.z.values, rtol=1e-9, atol=1e-12)
            assert mine[:2] == expected.decision[:2]
            np.testing.assert_allclose(mine.scores, expected.decision.scores, rtol=1e-6, atol=1e-6)
            learner.observe(X[t], mine)
            waiting.append(Waiting(X[t], mine, expected, int(labels[t])))
        if t >= delay:
            x, mine, expected, label = waiting[t - delay]
            reward = int(mine.action == label)
            learner.update(x, mine, reward, 0.5, label)
            oracle.learn(expected, reward, label)
    assert oracle.version == 6
    found = arrays_of(learner.state())
    for key, value in arrays_of(oracle.learner.state()).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-6, err_msg=key)


def test_retraction_uses_the_scale_of_the_decision() -> None:
    learner = RunningScale(bare("banditron", {"gamma": 0.3, "margin": "decision"}))
    X, rng = columns(300), np.random.default_rng(2)
    before: dict[int, tuple[Decision, FloatArray]] = {}
    for t in range(300):
        decision = learner.predict(X[t], float(rng.random()))
        learner.observe(X[t], decision)
        was = learner.weights()
        learner.update(X[t], decision, 0)
        before[t] = decision, learner.weights() - was
    for t in (3, 20, 150):
        decision, change = before[t]
        was = learner.weights()
        learner.retract(X[t], decision, 0, 1)
        learner.update(X[t], decision, 0)
        again = learner.weights() - was - change
        z, _ = learner.inside(X[t], decision)
        share = np.zeros((K, D))
        share[decision.action, z.indices] = z.values / decision.propensity
        np.testing.assert_allclose(again, share, rtol=1e-9, atol=1e-9)


def test_state_grows_with_the_scales_and_reuses_memory() -> None:
    learner, X = RunningScale(bare("banditron", {})), columns(200)
    copy = learner.state()
    assert arrays_of(copy)["scale.rows"].shape == (0, D, 2)
    for t, scales in ((FIRST - 1, 0), (FIRST, 1), (127, 3), (128, 4), (200, 4)):
        while learner.arrays["scale.counts"][0] < t:
            x = X[int(learner.arrays["scale.counts"][0])]
            learner.observe(x, learner.predict(x, 0.5))
        copy = learner.state_into(copy)
        found = arrays_of(copy)
        assert found["scale.rows"].shape == (scales, D, 2)
        for name, value in learner.state().items():
            np.testing.assert_array_equal(found[name], value)
    found["scale.rows"][:] = 0.0  # `state_into` returns a copy
    assert np.any(arrays_of(learner.state())["scale.rows"])


def test_decision_of_another_model_is_rejected() -> None:
    learner, x = RunningScale(bare("banditron", {})), columns(1)[0]
    decision = learner.predict(x, 0.5)
    for version in (1.0, -1.0, float("nan")):
        unknown = decision._replace(logged=np.array([version]))
        for call in (learner.observe, lambda x, decision: learner.update(x, decision, 1), learner.observe_early):
            with pytest.raises(ValueError, match="scale"):
                call(x, unknown)
    with pytest.raises(ValueError, match="1 logged values; got 0"):
        learner.observe_early(x, decision._replace(logged=np.zeros(0)))


def test_values_are_clipped_and_invalid_values_are_kept() -> None:
    learner = RunningScale(bare("banditron", {}))
    for x in columns(FIRST):
        learner.observe(x, learner.predict(x, 0.5))
    x = Features(np.array([0, 1, 6], np.int32), np.array([1e99, 1e101, -np.inf]))
    decision = learner.predict(x, 0.5)
    z = learner.inside(x, decision)[0]
    assert [z.values[z.indices == i].tolist() for i in (0, 1, 6)] == [[LIMIT], [1e101], [-np.inf]]
    before = arrays_of(learner.state())["scale.moments"]
    learner.observe(x, decision)
    assert not learner.update(x, decision, 1)
    changed = arrays_of(learner.state())["scale.moments"] != before
    assert changed.any(axis=1).tolist() == [True] + [False] * (D - 1)


def test_error_does_not_depend_on_the_unit_of_a_column() -> None:
    """With a running scale, multiplying one of eight columns by 10,000 does not increase the error."""
    size, rng = 3_000, np.random.default_rng(3)
    X = rng.normal(size=(size, D))
    labels = (X @ rng.normal(size=(D, K))).argmax(axis=1).astype(np.int64)
    u = rng.random(size)

    def error(X: FloatArray, learner: KernelLearner) -> float:
        offsets = np.arange(0, size * D + 1, D, dtype=np.int64)
        examples = Examples(offsets, np.tile(np.arange(D, dtype=np.int32), size), X.ravel(), labels)
        return float(np.mean(run(learner, examples, u).actions != labels))

    spoilt = X * np.array([1e4] + [1.0] * (D - 1))
    original = error(X, bare("late-ucb", {}))
    assert error(spoilt, bare("late-ucb", {})) > original + 0.2
    assert error(spoilt, RunningScale(bare("late-ucb", {}))) < original + 0.03
