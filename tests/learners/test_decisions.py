"""The distribution from which decisions are drawn."""

import numpy as np
import pytest

from stream.learners import Learner
from stream.wire.records import Features
from tests.learners.test_battery import Case, each, examples

U = (np.arange(4_000) + 0.5) / 4_000


def trained(case: Case, size: int = 150) -> tuple[Learner, list[Features]]:
    """Return a learner trained on most of its feedback, and five contexts that it has not seen."""
    data = examples(case, size + 5)
    learner = case.create()
    rng = np.random.default_rng(3)
    for t in range(size):
        x = data.features(t)
        decision = learner.predict(x, rng.random())
        learner.observe(x, decision)
        label = int(data.labels[t])
        if rng.random() < 0.8:
            learner.update(x, decision, int(decision.action == label), rng.random(), label)
    return learner, [data.features(t) for t in range(size, size + 5)]


@each
def test_distribution_is_that_of_the_decisions(case: Case) -> None:
    learner, contexts = trained(case)
    before = learner.state()
    for x in contexts:
        p = learner.distribution(x)
        played = np.bincount([learner.predict(x, u).action for u in U], minlength=case.n_classes) / U.size
        assert p.sum() == pytest.approx(1.0, abs=1e-9)
        assert np.abs(p - played).max() <= 1.0 / U.size
    after = learner.state()
    assert all(np.array_equal(np.asarray(before[name]), np.asarray(after[name])) for name in before)


@each
def test_propensity_of_a_decision_is_its_share_of_the_distribution(case: Case) -> None:
    learner, contexts = trained(case)
    for x in contexts:
        p = learner.distribution(x)
        assert [decision.propensity for decision in (learner.predict(x, 0.1), learner.predict(x, 0.9))] == [
            p[learner.predict(x, 0.1).action],
            p[learner.predict(x, 0.9).action],
        ]
