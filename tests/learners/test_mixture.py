"""The exploration floor: decisions, propensities and updates."""

import copy
from typing import Any

import numpy as np
import pytest

from stream.learners import FromLogs, KernelLearner, ParameterError, create, registered
from stream.learners.wrappers.mixture import Mixture
from stream.learners.wrappers.running_scale import RunningScale
from stream.task.settings import TaskSettings
from tests.learners.test_battery import Case, examples
from tests.oracles.floor import FloorOracle

K, D, FLOOR = 4, 9, 0.3

SOUND: dict[str, dict[str, Any]] = {
    "banditron": {}, "late-ucb": {"drift": "off"}, "igw-logistic": {}, "perceptron": {},
}  # fmt: skip
UNSOUND: dict[str, dict[str, Any]] = {"one-sided-banditron": {}, "exp4": {}}


def bare(name: str, parameters: dict[str, Any]) -> KernelLearner:
    learner = create(name, K, D, **parameters)
    assert isinstance(learner, KernelLearner)
    return learner


def assert_same_state(learner: Mixture, oracle: FloorOracle) -> None:
    found = learner.state()
    for key, value in oracle.learner.state().items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


@pytest.mark.parametrize("delay", [0, 100])
@pytest.mark.parametrize(("name", "parameters"), (SOUND | UNSOUND).items(), ids=SOUND | UNSOUND)
def test_decisions_and_updates_agree_with_the_floor_oracle(name: str, parameters: dict[str, Any], delay: int) -> None:
    size, is_sound = 400, name in SOUND
    learner = Mixture(bare(name, parameters), FLOOR)
    assert (learner.from_logs is not FromLogs.UNSOUND) == is_sound
    oracle = FloorOracle(bare(name, parameters), FLOOR, is_sound=is_sound)
    data, rng = examples(Case(name), size), np.random.default_rng(2)
    waiting = []
    for t in range(size + delay):
        if t < size:
            x, u = data.features(t), float(rng.random())
            mine = learner.predict(x, u)
            made, inside = oracle.decide(x, u)
            assert mine[:2] == made[:2]
            assert mine.propensity == pytest.approx(made.propensity, rel=1e-12)
            np.testing.assert_array_equal(mine.scores, made.scores)
            learner.observe(x, mine)
            waiting.append((mine, inside))
        if t >= delay:
            s = t - delay
            mine, inside = waiting[s]
            label = int(data.labels[s])
            reward = int(mine.action == label)
            changed = learner.update(data.features(s), mine, reward, 0.5, label)
            expected = inside is not None and oracle.learner.update(data.features(s), inside, reward, 0.5, label)
            assert changed == expected
    assert_same_state(learner, oracle)
    again = copy.copy(learner)
    assert again.predict(x, 0.1)[:3] == learner.predict(x, 0.1)[:3]


def trained(name: str) -> KernelLearner:
    """Return a trained learner whose greedy class depends on x."""
    learner = bare(name, {})
    train(learner, name)
    return learner


def train(learner: KernelLearner, name: str) -> None:
    data, rng = examples(Case(name), 200), np.random.default_rng(4)
    for t in range(200):
        decision = learner.predict(data.features(t), float(rng.random()))
        learner.observe(data.features(t), decision)
        label = int(data.labels[t])
        learner.update(data.features(t), decision, int(decision.action == label), 0.5, label)


@pytest.mark.parametrize("policy", [2, "late-ucb"])
@pytest.mark.parametrize("name", SOUND | UNSOUND)
def test_propensity_with_floor_and_holdout_equals_probability(name: str, policy: int | str) -> None:
    learner = Mixture(trained(name), 0.1, 0.2, trained(policy) if isinstance(policy, str) else policy)
    x, size = examples(Case(name), 10).features(3), 2_000
    p, played = learner.distribution(x), np.zeros(K)
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    assert p.min() >= 0.8 * 0.1 / K - 1e-12
    for u in (np.arange(size) + 0.5) / size:
        action, _, propensity = learner.predict(x, float(u))[:3]
        assert propensity == pytest.approx(p[action], rel=1e-9)
        played[action] += 1.0 / size
    np.testing.assert_allclose(played, p, atol=2.0 * K / size)


@pytest.mark.parametrize("name", ["banditron", "confidit", "newtron"])  # newtron does not support eligible classes
def test_frozen_model_plays_its_greedy_class_and_never_changes(name: str) -> None:
    frozen = trained(name)
    before = {part: np.array(value) for part, value in frozen.state().items()}
    learner = Mixture(bare("banditron", {}), 0.0, 0.5, frozen)
    data, played = examples(Case(name), 100), set()
    assert learner.state().keys() == learner.inner.state().keys()
    for t in range(100):
        decision = learner.predict(data.features(t), 0.25)
        assert decision.action == frozen.predict(data.features(t), 0.9).greedy
        played.add(decision.action)
        learner.observe(data.features(t), decision)
        learner.update(data.features(t), decision, int(decision.action == data.labels[t]), 0.5)
        few = np.array([1, 3], np.int32)
        among = learner.predict(data.features(t), 0.25, few)
        assert among.action in few
        assert among.propensity == pytest.approx(learner.distribution(data.features(t), few)[among.action], rel=1e-9)
    assert len(played) > 1
    for part, value in frozen.state().items():
        np.testing.assert_array_equal(value, before[part])
    with pytest.raises(ParameterError):
        Mixture(bare("banditron", {}), 0.0, 0.5, create("banditron", K + 1, D))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [(name, {}) for name, cls in registered().items() if cls.greedy_parts is not None]
    + [("late-ucb", given) for given in ({"expand": "quadratic"}, {"expand": "rff", "m": 5}, {"project": 4})],
    ids=str,
)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_greedy_class_depends_only_on_the_declared_parts(
    name: str, parameters: dict[str, Any], is_scaled: bool
) -> None:
    learner, fresh = (
        RunningScale(learner) if is_scaled else learner for learner in (bare(name, parameters), bare(name, parameters))
    )
    train(learner, name)
    assert learner.greedy_parts is not None
    kept = {part: value for part, value in learner.state().items() if part in learner.greedy_parts}
    assert kept.keys() != learner.state().keys()
    fresh.load({**fresh.state(), **kept})
    data, greedy = examples(Case(name), 200), set()
    for t in range(200):
        expected, found = (one.predict(data.features(t), 0.5) for one in (learner, fresh))
        assert found.greedy == expected.greedy
        np.testing.assert_array_equal(found.scores, expected.scores)
        greedy.add(found.greedy)
    assert len(greedy) > 1


def test_feedback_on_a_random_class_is_retracted_only_if_it_was_learned() -> None:
    sound = Mixture(bare("banditron", {"margin": "decision"}), FLOOR)
    x = examples(Case("banditron"), 10).features(3)
    decision = sound.predict(x, 0.01)
    sound.update(x, decision, 0)
    learned = sound.weights()
    assert sound.retract(x, decision, 0, 1)
    assert np.any(sound.weights() != learned)


def test_on_policy_learner_ignores_random_classes() -> None:
    learner = Mixture(bare("exp4", {}), FLOOR)
    x = examples(Case("exp4"), 10).features(3)
    decision = learner.predict(x, 0.01)
    before = {name: np.array(value) for name, value in learner.state().items()}
    learner.observe(x, decision)
    learner.observe_early(x, decision)
    assert not learner.update(x, decision, 1, 0.5)
    assert list(learner.observed_parts(x, decision)) == []
    for name, value in learner.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_floor_outside_0_to_1_is_rejected() -> None:
    for floor in (-0.1, 1.1, float("nan")):
        with pytest.raises(ParameterError):
            TaskSettings("banditron", K, D, floor=floor).make_learner()
