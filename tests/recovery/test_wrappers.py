"""The running scale and the exploration floor in a complete pipeline."""

from typing import Any

import numpy as np

import onebit

EVENTS, D, K = 300, 4, 3


def errors(scale: str, unit: float) -> float:
    """Return the error rate in the second half of a run with two restarts and feedback that is 20 events late."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(EVENTS, D))
    labels = (X @ rng.normal(size=(D, K))).argmax(axis=1).tolist()
    X[:, 1] *= unit
    wrong = []
    with onebit.embedded(n_classes=K, n_features=D, learner="late-ucb", scale=scale) as pipeline:
        for t in range(EVENTS):
            decision = pipeline.decide(f"event-{t}", X[t].tolist())
            pipeline.feedback(f"event-{t}", int(decision.action == labels[t]), after="20s")
            pipeline.advance("1s")
            wrong.append(decision.action != labels[t])
            if t in (100, 250):
                pipeline.restart()
    return float(np.mean(wrong[EVENTS // 2 :]))


def test_running_scale_makes_the_error_independent_of_column_units() -> None:
    original = errors("none", 1.0)
    assert errors("none", 1e4) > original + 0.2
    assert errors("standard", 1e4) < original + 0.05


def test_floor_gives_every_class_its_propensity_across_a_restart() -> None:
    x = [1.0, 0.0, 0.5, 0.2]
    settings: dict[str, Any] = {"learner": "late-ucb", "floor": 0.3, "scale": "standard"}
    with onebit.embedded(n_classes=K, n_features=D, **settings) as pipeline:
        decisions = []
        for t in range(60):
            decisions.append(pipeline.decide(f"event-{t}", x))
            if t == 30:
                pipeline.restart()
    assert {round(decision.propensity, 9) for decision in decisions} == {0.1, 0.8}
    assert {decision.action for decision in decisions} == set(range(K))
