from math import sqrt

import numpy as np
import pytest

from stream.learners import Learner, create
from stream.wire.records import FloatArray
from tests.oracles.adversary import Adversary, probability_of_first_class, separator_norm

ROUNDS = 400


def play(learner: Learner, adversary: Adversary, rounds: int, seed: int) -> tuple[int, FloatArray, list[int]]:
    """Return the number of mistakes, and all rows with their labels."""
    rng = np.random.default_rng(seed)
    probability = probability_of_first_class(learner)
    mistakes, rows, labels = 0, [], []
    for _ in range(rounds):
        x, label = adversary.next_row(probability)
        decision = learner.predict(x, float(rng.random()))
        learner.observe(x, decision)
        learner.update(x, decision, int(decision.action == label))
        adversary.answered(decision.action)
        mistakes += decision.action != label
        rows.append(x.values)
        labels.append(label)
    return mistakes, np.array(rows), labels


@pytest.mark.parametrize("name", ["soba-diag", "banditron", "selectron", "ova-perceptron", "confidit"])
def test_rows_stay_separable_with_the_margin(name: str) -> None:
    adversary = Adversary(n_features=4, margin=0.1, rounds=150, seed=1)
    _, X, labels = play(create(name, 2, 4), adversary, 150, seed=2)
    signs = np.where(np.array(labels) == 0, 1.0, -1.0)
    assert set(labels) == {0, 1}
    assert separator_norm(X, signs, adversary.margin) <= 2.0 + 1e-9
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0)


def test_every_point_is_separable_from_the_others_with_the_margin() -> None:
    adversary = Adversary(n_features=3, margin=0.02, rounds=100, seed=0)
    n = len(adversary.points)
    assert n > 10
    for odd in range(n):
        signs = np.where(np.arange(n) == odd, -1.0, 1.0)
        assert separator_norm(adversary.points, signs, 0.02) <= 2.0 + 1e-9


def test_adversary_repeats_a_row_after_a_wrong_answer() -> None:
    adversary = Adversary(n_features=3, margin=0.05, rounds=100, seed=3)
    first = adversary.next_row(lambda _: 0.5)
    adversary.answered(1 - first.label)
    again = adversary.next_row(lambda _: 0.5)
    np.testing.assert_array_equal(again.x.values, first.x.values)
    adversary.answered(first.label)
    assert not np.array_equal(adversary.next_row(lambda _: 0.5).x.values, first.x.values)


def test_free_point_gets_the_label_that_the_learner_considers_unlikely() -> None:
    for probability, label in ((1.0, 1), (0.5, 0), (0.0, 0)):
        adversary = Adversary(n_features=3, margin=0.05, rounds=100, seed=3)
        adversary.answered(adversary.next_row(lambda _: 1.0).label)
        assert adversary.next_row(lambda _, p=probability: p).label == label  # type: ignore[misc]


def test_adversary_does_not_change_the_learner() -> None:
    learner = create("confidit", 2, 3, confidence="theory")  # confidit counts its rounds
    before = learner.state()
    x = Adversary(n_features=3, margin=0.05, rounds=100, seed=0).next_row(lambda _: 0.0).x
    assert probability_of_first_class(learner)(x) == 1.0
    after = learner.state()
    assert all(np.array_equal(before[key], after[key]) for key in before)


# These algorithms update only after right answers (Assumption 3). The lower bound is Ω(min(√T, √n)). The test requires
# at least ½ min(√T, √n) mistakes.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["soba-diag", "soba", "selectron"])
def test_learner_that_updates_only_on_right_answers_reaches_the_lower_bound(name: str) -> None:
    mistakes = []
    for seed in range(20):
        adversary = Adversary(n_features=4, margin=0.05, rounds=ROUNDS, seed=seed)
        mistakes.append(play(create(name, 2, 4), adversary, ROUNDS, seed)[0])
        bound = min(sqrt(ROUNDS), sqrt(len(adversary.points)))
    assert np.mean(mistakes) >= 0.5 * bound


def test_adversary_continues_without_free_points() -> None:
    adversary = Adversary(n_features=3, margin=0.3, rounds=100, seed=3)
    shown = set()
    for _ in range(100):
        x, label = adversary.next_row(lambda _: 0.5)
        adversary.answered(label)
        shown.add(x.values.tobytes())
    assert len(shown) == len(adversary.points) < 100
