"""Learners' results in coba's evaluator, compared with the compiled loop's results."""

import copy
from typing import Any

import numpy as np
import pytest
from coba.environments import SupervisedSimulation
from coba.evaluators import SequentialCB

from onebit.adapters.coba import Learner
from stream.learners import ParameterError, create
from stream.offline import run
from stream.randomness.draws import Purpose, uniform
from stream.wire.records import Features
from tests.adapters.rows import N_CLASSES, N_FEATURES, examples, rows

ACTIONS = ["cat", "dog", "cow"]


def rewards_of(learner: Learner, contexts: list[Any], labels: list[int]) -> list[float]:
    environment = SupervisedSimulation(contexts, [ACTIONS[label] for label in labels], "c")
    return [step["reward"] for step in SequentialCB(record=["reward"], seed=1).evaluate(environment, learner)]


@pytest.mark.parametrize(
    ("learner", "sparse"),
    [("late-ucb", False), ("late-ucb", True), ("banditron", False), ("soba-diag", True), ("stack-igw", False)],
)
def test_rewards_in_coba_equal_those_of_the_compiled_loop(learner: str, sparse: bool) -> None:
    size = 150
    x, labels = rows(size)
    contexts = [dict(enumerate(row)) for row in x.tolist()] if sparse else x.tolist()
    rewards = rewards_of(Learner(learner, n_features=N_FEATURES if sparse else None, seed=3), contexts, labels)

    u, v = (
        np.array([uniform(3, purpose, str(number)) for number in range(size)])
        for purpose in (Purpose.ACTION, Purpose.UPDATE)
    )
    classes = np.argsort(np.argsort(ACTIONS))[labels].tolist()  # coba sorts the actions
    actions = run(create(learner, N_CLASSES, N_FEATURES), examples(x, classes), u, v).actions
    assert rewards == (actions == classes).astype(int).tolist()


def test_logged_action_is_learned_with_its_logged_probability() -> None:
    learner = Learner("banditron", gamma=0.3)
    x, labels = rows(40)
    model = create("banditron", N_CLASSES, N_FEATURES, gamma=0.3)
    learner.score(x[0].tolist(), ACTIONS, "cat")
    for row, label in zip(x, labels, strict=True):
        learner.learn(row.tolist(), "dog", float(label == 1), 0.2)
        features = Features(np.arange(N_FEATURES, dtype=np.int32), row)
        model.update(features, model.as_played(features, model.predict(features, 0.0), 1, 0.2), int(label == 1))
    expected = model.distribution(x[0])
    assert [learner.score(x[0].tolist(), ACTIONS, action) for action in ACTIONS] == pytest.approx(expected)


@pytest.mark.parametrize("context", [None, 1.5, "red", [1.0, "red"], {"color": "red"}])
def test_predicted_probability_equals_the_score_of_the_action(context: Any) -> None:
    learner = Learner("banditron", n_features=4)
    action, probability, _ = learner.predict(context, ACTIONS)
    assert probability == pytest.approx(learner.score(context, ACTIONS, action))
    assert sum(learner.score(context, ACTIONS, action) for action in ACTIONS) == pytest.approx(1.0)


def test_deep_copy_continues_identically() -> None:
    x, labels = rows(60)
    learner = Learner("stack-igw")
    rewards_of(learner, x[:30].tolist(), labels[:30])
    twin = copy.deepcopy(learner)
    assert rewards_of(learner, x.tolist(), labels) == rewards_of(twin, x.tolist(), labels)


def test_invalid_learners_and_calls_are_rejected() -> None:
    with pytest.raises(ParameterError):
        Learner("banditron", gamma=7.0)
    with pytest.raises(ValueError, match="true class"):
        Learner("perceptron")
    learner = Learner("selectron")
    with pytest.raises(ValueError, match="call predict"):
        learner.learn([1.0], "cat", 1.0, 0.5)
    learner.score([1.0], ACTIONS, "cat")
    with pytest.raises(ValueError, match="0 or 1"):
        learner.learn([1.0], "cat", 0.5, 0.5)
    with pytest.raises(ValueError, match="own actions"):
        learner.learn([1.0], "cat", 1.0, 0.5)
    with pytest.raises(ValueError, match="same actions"):
        learner.predict([1.0], ACTIONS[:2])
