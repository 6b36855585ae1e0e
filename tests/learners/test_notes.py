"""Learners from "Bandit Multiclass Classification" (the Notes), compared to naive transcriptions and proven bounds."""

from collections.abc import Callable
from math import log
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream.learners import Learner, ParameterError, create
from stream.learners.notes.one_sided_banditron import project
from stream.learners.notes.version_space import Sampled
from stream.wire.records import FloatArray
from tests.learners.agreement import Round, assert_agree, delays, rounds_of
from tests.oracles import notes
from tests.oracles.confidit import NaiveConfidit, NaiveDualConfidit
from tests.oracles.logged import Oracle

K, D, ROUNDS = 4, 5, 300
SLOW_ROUNDS = {"selectron": 80, "confidit-kernel": 100, "halving": 150, "biased-halving": 150, "exp4": 150}


def hypotheses_of(learner: Learner) -> FloatArray:
    assert isinstance(learner, Sampled)
    return learner.hypotheses


def separable(
    rng: np.random.Generator, rounds: int, K: int, d: int, margin: float
) -> tuple[FloatArray, NDArray[np.int64], FloatArray]:
    """Return points on the unit sphere, their classes, and a matrix W with unit rows that separates the classes.

    Every point has at least the given margin.
    """
    W = rng.normal(size=(K, d))
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    X = rng.normal(size=(200 * rounds, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    scores = np.sort(X @ W.T, axis=1)
    X = X[scores[:, -1] - scores[:, -2] >= margin][:rounds]
    assert len(X) == rounds
    return X, (X @ W.T).argmax(axis=1), W


def events(seed: int, rounds: int = ROUNDS) -> list[Round]:
    """Return points on the unit sphere with 10% label noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rounds, D))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    labels = (X @ rng.normal(size=(D, K))).argmax(axis=1)
    labels = np.where(rng.random(rounds) < 0.1, rng.integers(0, K, rounds), labels)
    return rounds_of(X, labels, rng)


KERNELS: dict[str, dict[str, Any]] = {
    "rational": {"kernel": "rational", "degree": 2, "width": 1.0},
    "polynomial": {"kernel": "polynomial", "degree": 3, "width": 1.0},
    "rbf": {"kernel": "rbf", "degree": 2, "width": 0.7},
}
COMPARATOR = np.random.default_rng(1).normal(size=(K, D))
DUAL: dict[str, Any] = {"eta": 0.3, "alpha": 0.5}
FIT: dict[str, Any] = {"epsilon": 0.3, "eta": 2.0, "alpha": 0.5, "radius": 1.5}

Make = Callable[[Learner], Oracle]


def naive_kernel_perceptron(options: dict[str, Any]) -> Make:
    return lambda _: notes.NaiveOvaKernelPerceptron(K, **options, support_max=40)


def naive_selectron(loss: str) -> Make:
    return lambda _: notes.NaiveSelectron(K, D, loss=loss, **FIT)


def naive_dual_confidit(options: dict[str, Any]) -> Make:
    return lambda _: NaiveDualConfidit(K, **options, **DUAL)


CASES: dict[str, tuple[str, dict[str, Any], Make]] = {
    "ova-perceptron": ("ova-perceptron", {}, lambda _: notes.NaiveOvaPerceptron(K, D)),
    **{
        f"ova-kernel-perceptron {name}": (
            "ova-kernel-perceptron",
            {**options, "support_max": 40},
            naive_kernel_perceptron(options),
        )
        for name, options in KERNELS.items()
    },
    "one-sided-banditron": (
        "one-sided-banditron",
        {"eta": 0.5, "radius": 1.0},
        lambda _: notes.NaiveOneSidedBanditron(K, D, eta=0.5, radius=1.0),
    ),
    **{
        f"selectron {loss}": (
            "selectron",
            {**FIT, "loss": loss},
            naive_selectron(loss),
        )
        for loss in ("quadratic", "logistic")
    },
    "kwik-banditron": (
        "kwik-banditron",
        {"epsilon": 0.3, "radius": 2.0, "comparator": COMPARATOR},
        lambda _: notes.NaiveKwikBanditron(COMPARATOR, epsilon=0.3, D=2.0),
    ),
    "halving": ("halving", {"seed": 4}, lambda learner: notes.NaiveHalving(hypotheses_of(learner))),
    "biased-halving": (
        "biased-halving",
        {"seed": 4, "alpha": 0.4},
        lambda learner: notes.NaiveBiasedHalving(hypotheses_of(learner), alpha=0.4),
    ),
    "exp4": (
        "exp4",
        {"gamma": 0.2, "alpha": 0.05, "hypotheses": 50},
        lambda learner: notes.NaiveExp4(hypotheses_of(learner), gamma=0.2, alpha=0.05),
    ),
    "hypothesis-exhaustion": (
        "hypothesis-exhaustion",
        {"hypotheses": 64},
        lambda learner: notes.NaiveHypothesisExhaustion(hypotheses_of(learner)),
    ),
    "feature-blocks": ("feature-blocks", {"gamma": 2.0}, lambda _: notes.NaiveFeatureBlocks(K, D, gamma=2.0)),
    **{
        f"confidit-kernel {name}": (
            "confidit-kernel",
            {**options, **DUAL},
            naive_dual_confidit(options),
        )
        for name, options in {**KERNELS, "linear": {"kernel": "linear", "degree": 2, "width": 1.0}}.items()
    },
    "confidit-kernel as confidit": (
        "confidit-kernel",
        {"kernel": "linear", **DUAL},
        lambda _: NaiveConfidit(K, D, projection=False, confidence="constant", covariance="full", **DUAL),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_learner_agrees_with_the_pseudocode_in_every_round(case: str) -> None:
    name, parameters, oracle_of = CASES[case]
    learner = create(name, K, D, **parameters)
    oracle = oracle_of(learner)
    rounds = SLOW_ROUNDS.get(case.split()[0], ROUNDS)
    mistakes = assert_agree(learner, oracle, events(3, rounds), delays(rounds, np.random.default_rng(2)))
    assert 0 < mistakes < rounds
    try:
        weights = oracle.weights()
    except NotImplementedError:
        weights = np.zeros(0)
    if weights.size and name != "confidit-kernel":
        np.testing.assert_allclose(learner.weights(), weights, atol=1e-9)
    # In every decision, the scores differ by more than the rounding error.
    assert getattr(oracle, "closest", 1.0) > 1e-9


def mistakes_of(learner: Learner, X: FloatArray, labels: NDArray[np.int64], seed: int = 0) -> int:
    """Return the number of mistakes with immediate feedback."""
    rng = np.random.default_rng(seed)
    mistakes = 0
    for x, label in zip(X, labels, strict=True):
        decision = learner.predict(x, float(rng.random()))
        mistakes += decision.action != label
        learner.update(x, decision, int(decision.action == label), v=float(rng.random()))
    return mistakes


@pytest.mark.parametrize("seed", range(5))
def test_halving_mistakes_are_within_the_bound(seed: int) -> None:
    n = 400
    learner = create("halving", 3, 2, hypotheses=n, seed=seed)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1_000, 2))
    truth = hypotheses_of(learner)[int(rng.integers(n))]
    assert 0 < mistakes_of(learner, X, (X @ truth.T).argmax(axis=1)) <= log(n) / -log(1 - 1 / 3) <= 3 * log(n)


@pytest.mark.parametrize("seed", range(5))
def test_biased_halving_mistakes_and_guesses_are_within_the_bounds(seed: int) -> None:
    n, alpha = 400, 0.25
    learner = create("biased-halving", 3, 2, hypotheses=n, seed=seed, alpha=alpha)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1_000, 2))
    truth = hypotheses_of(learner)[int(rng.integers(n))]
    wrong_majorities = right_guesses = wrong_guesses = 0
    for x, label in zip(X, (X @ truth.T).argmax(axis=1), strict=True):
        decision = learner.predict(x, float(rng.random()))
        right = decision.action == label
        wrong_majorities += decision.propensity == 1.0 and not right
        right_guesses += decision.propensity < 1.0 and right
        wrong_guesses += decision.propensity < 1.0 and not right
        learner.update(x, decision, int(right))
    assert wrong_majorities <= log(n) / log(1 / alpha)
    assert 0 < right_guesses <= log(n) / log(1 / (1 - alpha))
    # On average, there are K - 1 = 2 wrong guesses for each right guess. For 21 right guesses, the number of wrong
    # guesses has a mean of 42 and a standard deviation of 11.
    assert wrong_guesses <= 2 * log(n) / log(1 / (1 - alpha)) + 4 * 11


@pytest.mark.parametrize("seed", range(5))
def test_hypothesis_exhaustion_makes_fewer_mistakes_than_it_has_hypotheses(seed: int) -> None:
    n = 300
    learner = create("hypothesis-exhaustion", 3, 2, hypotheses=n, seed=seed)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3_000, 2))
    truth = int(rng.integers(n))
    assert mistakes_of(learner, X, (X @ hypotheses_of(learner)[truth].T).argmax(axis=1)) <= truth


@pytest.mark.slow
def test_feature_blocks_make_at_most_k_minus_1_mistakes_per_block() -> None:
    margin = 0.3
    X, labels, _ = separable(np.random.default_rng(0), 4_000, 4, 2, margin)
    blocks = {tuple(np.floor(x / (margin / np.sqrt(2)))) for x in X}
    learner = create("feature-blocks", 4, 2, gamma=margin)
    assert 0 < mistakes_of(learner, X, labels) <= 3 * len(blocks)
    assert mistakes_of(learner, X, labels) == 0  # all blocks are known now


def one_versus_all(rng: np.random.Generator, rounds: int, margin: float) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return unit vectors and their classes. Each vector is near one of three orthogonal directions.

    A constant coordinate makes each class separable from the other two with a margin.
    """
    labels = rng.integers(0, 3, rounds)
    X = np.abs(rng.normal(size=(rounds, 3))) * 0.1
    X[np.arange(rounds), labels] = 1.0
    X = np.column_stack([X, np.ones(rounds)])
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    comparator = np.column_stack([np.eye(3), np.full(3, -0.6)])
    comparator /= np.linalg.norm(comparator, axis=1, keepdims=True)
    scores = X @ comparator.T
    scores[np.arange(rounds), labels] *= -1
    kept = scores.max(axis=1) <= -margin / 2
    assert kept.mean() > 0.5
    return X[kept], labels[kept]


@pytest.mark.slow
def test_ova_perceptron_mistakes_are_within_the_expected_bound() -> None:
    margin = 0.3
    # The perceptron's bound for each class gives at most M + N ≤ K (2/γ)² updates. The expected number of mistakes is
    # at most M + KN.
    updates_max = 3 * (2 / margin) ** 2
    mistakes = []
    for seed in range(20):
        X, labels = one_versus_all(np.random.default_rng(seed), 2_000, margin)
        learner = create("ova-perceptron", 3, 4)
        rng = np.random.default_rng(seed)
        updates = made = 0
        for x, label in zip(X, labels, strict=True):
            decision = learner.predict(x, float(rng.random()))
            made += decision.action != label
            updates += learner.update(x, decision, int(decision.action == label))
        assert updates <= updates_max
        mistakes.append(made)
    assert np.mean(mistakes) <= 3 * updates_max


def test_one_sided_banditron_mistakes_are_within_the_bound() -> None:
    rng = np.random.default_rng(3)
    comparator = np.linalg.svd(np.eye(4) - 0.25)[0][:, :3] @ np.linalg.qr(rng.normal(size=(6, 3)))[0].T  # rows sum to 0
    comparator /= np.linalg.norm(comparator, axis=1).max()
    np.testing.assert_allclose(comparator.sum(axis=0), 0, atol=1e-12)
    X = rng.normal(size=(200_000, 6))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    scores = np.sort(X @ comparator.T, axis=1)
    margin = 0.1
    X = X[scores[:, -2] <= -margin]
    assert len(X) > 1_000
    learner = create("one-sided-banditron", 4, 6, eta=margin)
    bound = (comparator**2).sum() / margin**2
    assert 0 < mistakes_of(learner, X, (X @ comparator.T).argmax(axis=1)) <= bound


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 100.0])
def test_joint_projection_is_the_nearest_point(scale: float) -> None:
    rng = np.random.default_rng(0)
    for shape in ((3, 2), (4, 5), (9, 20)):
        W = rng.normal(size=shape) * scale
        expected = notes.project(W, 1.0)
        project(W, 1.0)
        np.testing.assert_allclose(W, expected, atol=1e-10)


def test_retraction_gives_the_model_of_the_actual_feedback() -> None:
    for name, parameters in (("ova-perceptron", {}), ("selectron", {"epsilon": 0.3, "alpha": 0.5})):
        corrected, right = create(name, K, D, **parameters), create(name, K, D, **parameters)
        corrections = []
        for t, (x, label, u, _) in enumerate(events(6)):
            decision = right.predict(x, u)
            reward = int(decision.action == label)
            right.update(x, decision, reward)
            assumed = reward if t % 3 else 1 - reward
            corrected.update(x, decision, assumed)
            corrections.append((x, decision, assumed, reward))
        for x, decision, assumed, reward in corrections:
            corrected.retract(x, decision, assumed, reward)
        np.testing.assert_allclose(corrected.weights(), right.weights(), atol=1e-9, err_msg=name)


def test_logistic_selectron_is_not_retractable() -> None:
    learner = create("selectron", K, D, loss="logistic")
    assert not learner.retractable
    with pytest.raises(NotImplementedError):
        learner.retract(np.ones(D), learner.predict(np.ones(D), 0.5), 0, 1)


@pytest.mark.parametrize("name", ["confidit-kernel", "selectron", "feature-blocks"])
def test_model_does_not_change_after_the_memory_is_full(name: str) -> None:
    parameters: dict[str, dict[str, Any]] = {
        "confidit-kernel": {"support_max": 7},
        "selectron": {"support_max": 7, "loss": "logistic"},
        "feature-blocks": {"blocks_max": 7, "gamma": 0.01},
    }
    learner = create(name, K, D, **parameters[name])
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(20):
        x = rng.normal(size=D)
        changed += learner.update(x, learner.predict(x, 0.5), 1)
    assert changed == 7


def test_kernel_perceptron_with_a_full_memory_keeps_the_newest_examples() -> None:
    small, large = (create("ova-kernel-perceptron", 2, 1, support_max=size, kernel="rbf") for size in (3, 100))
    xs = [np.array([float(i)]) for i in range(10)]
    for x in xs:
        small.update(x, small.predict(x, 0.5)._replace(action=1, scores=np.zeros(2)), 0)
    for x in xs[-3:]:
        large.update(x, large.predict(x, 0.5)._replace(action=1, scores=np.zeros(2)), 0)
    for x in xs:
        np.testing.assert_allclose(small.predict(x, 0.5).scores, large.predict(x, 0.5).scores, atol=1e-12)


@pytest.mark.slow
def test_exp4_draws_from_the_joint_distribution_and_is_unbiased() -> None:
    learner = create("exp4", 3, 2, hypotheses=40, gamma=0.3, alpha=0.2)
    oracle = notes.NaiveExp4(hypotheses_of(learner), gamma=0.3, alpha=0.2)
    rng = np.random.default_rng(0)
    for _ in range(30):
        x = rng.normal(size=2)
        decision = learner.predict(x, float(rng.random()))
        learner.update(x, decision, int(decision.action == 0))
        oracle.update(
            x,
            oracle.predict(x, 0.0)._replace(action=decision.action, greedy=decision.greedy),
            int(decision.action == 0),
            0.0,
        )
    x = rng.normal(size=2)
    n = 40_000
    counts = np.zeros((3, 3))
    for u in (np.arange(n) + 0.5) / n:
        decision = learner.predict(x, float(u))
        counts[decision.action, decision.greedy] += 1
    np.testing.assert_allclose(counts / n, oracle.joint(x), atol=9 / n)  # one grid point for each of 9 intervals
    # Lemma 19: the mean of 1[ỹ = y] / P(ỹ | ŷ) is 1 for every label y and every sampled class ŷ.
    played = 0.7 * np.eye(3) + 0.1
    np.testing.assert_allclose((counts / counts.sum(axis=0) / played).diagonal(), 1.0, atol=0.01)


def test_version_space_rejects_the_state_of_another_sample() -> None:
    one, other = create("halving", 3, 2, seed=1), create("halving", 3, 2, seed=2)
    with pytest.raises(ValueError, match="hypotheses"):
        other.load(one.state())


def test_comparator_must_be_a_matrix_of_the_right_shape() -> None:
    with pytest.raises(ParameterError, match="n_classes"):
        create("kwik-banditron", 3, 2, comparator=[1.0, 2.0])
    with pytest.raises(ParameterError, match="2 rows and 2 columns"):
        create("kwik-banditron", 3, 2, comparator=np.eye(2))
    assert create("kwik-banditron", 2, 2, comparator="[[1, 0], [0, 1]]").name == "kwik-banditron"
