"""Retraction of assumed feedback, compared to the same run with the actual bits."""

from typing import Any

import numpy as np
import pytest

from stream.learners import Learner, create
from stream.wire.records import Decision, Features
from tests.learners.test_battery import CASES, examples

ORDER_FREE: dict[str, dict[str, Any]] = {
    "banditron": {"gamma": 0.3, "margin": "decision"},
    "pnewtron": {"gamma": 0.3, "alpha": 2.0},
    "newtron": {"gamma": 0.3, "alpha": 2.0},
}


def decisions(learner: Learner, size: int) -> list[tuple[Features, Decision, int]]:
    """Run a learner with immediate feedback. Return each decision with its context and its actual bit."""
    data = examples(CASES["banditron"], size, seed=8)
    u = np.random.default_rng(9).random(size)
    made = []
    for t in range(size):
        decision = learner.predict(data.features(t), float(u[t]))
        reward = int(decision.action == data.labels[t])
        learner.update(data.features(t), decision, reward)
        made.append((data.features(t), decision, reward))
    return made


@pytest.mark.parametrize(("name", "parameters"), ORDER_FREE.items(), ids=ORDER_FREE)
def test_order_independent_retraction_gives_the_model_of_the_actual_feedback(
    name: str, parameters: dict[str, Any]
) -> None:
    real, late = (create(name, n_classes=4, n_features=9, **parameters) for _ in range(2))
    made = decisions(real, 120)
    expired = set(range(10, 120, 7))
    for t, (x, decision, reward) in enumerate(made):
        late.update(x, decision, 0 if t in expired else reward)
    assert any(made[t][2] for t in expired)
    for t in sorted(expired, reverse=True):
        x, decision, reward = made[t]
        assert late.retract(x, decision, 0, reward) == (reward == 1 and x.indices.size > 0)
    np.testing.assert_allclose(late.weights(), real.weights(), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("name", "parameters"), ORDER_FREE.items(), ids=ORDER_FREE)
def test_assumed_reward_of_1_is_retracted(name: str, parameters: dict[str, Any]) -> None:
    real, late = (create(name, n_classes=4, n_features=9, **parameters) for _ in range(2))
    for t, (x, decision, reward) in enumerate(decisions(real, 60)):
        late.update(x, decision, 1 if t == 20 else reward)
        if t == 20:
            late.retract(x, decision, 1, reward)
    np.testing.assert_allclose(late.weights(), real.weights(), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["soba", "soba-diag"])
def test_soba_retraction_is_exact_while_its_condition_is_inactive(name: str) -> None:
    real, late = (create(name, n_classes=4, n_features=9, gamma=0.3, margin="decision") for _ in range(2))
    data = examples(CASES["banditron"], 80, seed=8)
    events = [(data.features(t), 0.1 + 0.01 * t) for t in range(80) if data.features(t).indices.size]
    # Each decision plays the right class by exploration. Another class has the highest score, so m is positive.
    hits = [(x, Decision(t % 4, (t + 1) % 4, p, np.eye(4)[(t + 1) % 4])) for t, (x, p) in enumerate(events)]
    for t, (x, decision) in enumerate(hits):
        assert real.update(x, decision, 1)
        assert late.update(x, decision, 0 if t % 5 == 0 else 1) == (t % 5 != 0)
    for x, decision in hits[::5]:
        assert late.retract(x, decision, 0, 1)
    np.testing.assert_allclose(late.weights(), real.weights(), atol=1e-9)


@pytest.mark.parametrize("margin", ["feedback", "decision"])
def test_banditron_retraction_is_independent_of_later_updates(margin: str) -> None:
    learner = create("banditron", n_classes=4, n_features=9, gamma=0.3, margin=margin)
    made = decisions(create("banditron", n_classes=4, n_features=9, gamma=0.3), 60)
    for x, decision, reward in made:
        learner.update(x, decision, reward)
    x, decision, _ = made[20]
    before = learner.weights()
    assert learner.retract(x, decision, 0, 1)
    share = np.zeros((4, 9))
    share[decision.action, x.indices] = x.values / decision.propensity
    np.testing.assert_allclose(learner.weights() - before, share, atol=1e-12)


@pytest.mark.parametrize("name", ["soba", "soba-diag", "soba-adaptive"])
def test_soba_rejects_retraction_of_an_assumed_reward_of_1(name: str) -> None:
    learner = create(name, n_classes=4, n_features=9)
    x = Features(np.array([1], dtype=np.int32), np.ones(1))
    with pytest.raises(ValueError, match="reward"):
        learner.retract(x, learner.predict(x, 0.5), 1, 0)
