"""A service's contexts whose columns have different units, through a whole pipeline."""

from typing import Any

import numpy as np
import pytest

import onebit

EVENTS, D, K = 500, 4, 3


def errors(scale: str, unit: float, **settings: Any) -> float:
    """The error of the second half of the events, with feedback 20 events late and two restarts."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(EVENTS, D))
    labels = (X @ rng.normal(size=(D, K))).argmax(axis=1).tolist()
    X[:, 1] *= unit
    wrong = []
    with onebit.embedded(n_classes=K, n_features=D, learner="late-ucb", scale=scale, **settings) as pipeline:
        for t in range(EVENTS):
            decision = pipeline.decide(f"event-{t}", X[t].tolist())
            pipeline.feedback(f"event-{t}", int(decision.action == labels[t]), after="20s")
            pipeline.advance("1s")
            wrong.append(decision.action != labels[t])
            if t in (150, 400):
                pipeline.restart()
    return float(np.mean(wrong[EVENTS // 2 :]))


@pytest.mark.parametrize("settings", [{}, {"model": "shared", "partitions": 2}], ids=["own", "shared"])
def test_one_column_in_another_unit_does_not_matter_with_a_running_scale(settings: dict[str, Any]) -> None:
    original = errors("none", 1.0, **settings)
    assert errors("none", 1e4, **settings) > original + 0.2
    assert errors("standard", 1e4, **settings) < original + 0.05
