from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from producers.datasets.base import Dataset
from producers.datasets.synthetic import synnonsep, synsep
from stream.learners import ParameterError, create
from stream.learners.second_order.confidit import VARIANTS
from stream.wire.records import FloatArray
from tests.learners.agreement import Round, assert_agree, delays, rounds_of
from tests.oracles.confidit import NaiveConfidit

K, D, ROUNDS = 5, 12, 260


def artificial(rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.int64], float]:
    """Return the artificial data from section 5.2 of the paper, and the squared norm of the models that label it.

    There are five classes and nine features. Five of the features determine the class. The paper does not specify the
    distribution of these five features. This function draws them uniformly from [-1, 1].
    """
    X = rng.normal(size=(1_000, 9))
    X[:, :5] = rng.uniform(-1, 1, size=(1_000, 5))
    models = rng.normal(size=(5, 5))
    return X, (X[:, :5] @ models.T).argmax(axis=1), float((models**2).sum())


def events(seed: int) -> list[Round]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROUNDS, D)) * (rng.random((ROUNDS, D)) < 0.6)
    X[:, 0] = 1.0
    labels = (X @ rng.normal(size=(D, K))).argmax(axis=1)
    return rounds_of(X, labels, rng)


OPTIONS: dict[str, dict[str, Any]] = {
    **{
        f"variant {variant}": {"projection": bool(p), "confidence": conf, "covariance": cov, "eta": 0.5}
        for variant, (p, conf, cov) in VARIANTS.items()
    },
    "modified": {"projection": False, "confidence": "modified", "covariance": "full", "approx_error": 0.3},
    "alpha 0.5": {"projection": False, "confidence": "constant", "covariance": "full", "alpha": 0.5},
    "alpha 0.25, projected": {"projection": True, "confidence": "constant", "covariance": "full", "alpha": 0.25},
    "projected diagonal": {"projection": True, "confidence": "theory", "covariance": "diag", "alpha": 0.25},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_learner_agrees_with_fig_1_in_every_round(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    learner = create("confidit", n_classes=K, n_features=D, **options)
    oracle = NaiveConfidit(K, D, **options)
    assert_agree(learner, oracle, events(seed=11), delays(ROUNDS, rng))
    np.testing.assert_allclose(learner.weights(), oracle.weights(), atol=1e-9)
    # Classes with the same history tie exactly in both implementations. In all other decisions, the scores differ by
    # more than the rounding error.
    assert oracle.closest > 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_equals_its_row_of_table_2(variant: int) -> None:
    projection, confidence, covariance = VARIANTS[variant]
    one = create("confidit", n_classes=K, n_features=D, variant=variant)
    other = create(
        "confidit", n_classes=K, n_features=D, projection=projection, confidence=confidence, covariance=covariance
    )
    for x, label, u, v in events(seed=3)[:50]:
        decision, same = one.predict(x, u), other.predict(x, u)
        one.observe(x, decision)
        other.observe(x, same)
        assert decision.action == same.action
        one.update(x, decision, int(decision.action == label), v=v)
        other.update(x, same, int(decision.action == label), v=v)
    np.testing.assert_array_equal(one.weights(), other.weights())


# The test counts mistakes in 1,000 rounds of the paper's artificial data, averaged over 10 runs. For variants 1 to 5,
# the paper's figure shows over 600, about 300, about 500, slightly under 600, and about 400 mistakes. An independent
# implementation makes 625, 210, 540, 550 to 650, and 235 mistakes. The paper sets ‖U‖ in (9) "to be the squared norm of
# the model", so ‖U‖² is the square of this squared norm. The paper shows variant 4 for η from 0.001 to 1,000. This test
# uses η = 0.01. Single runs of variant 4 differ by 120, so the mean of 10 runs has an error of about 40.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "eta", "low", "high"),
    [(1, 1.0, 590, 650), (2, 1.0, 190, 235), (3, 1.0, 530, 590), (4, 0.01, 480, 650), (5, 1.0, 215, 265)],
)
def test_variants_make_as_many_mistakes_as_in_the_paper(variant: int, eta: float, low: int, high: int) -> None:
    counts = []
    for seed in range(10):
        X, labels, norm_sq = artificial(np.random.default_rng(seed))
        learner = create("confidit", n_classes=5, n_features=9, variant=variant, eta=eta, u_norm_sq=norm_sq**2)
        mistakes = 0
        for x, label in zip(X, labels, strict=True):
            decision = learner.predict(x, 0.5)
            learner.observe(x, decision)
            mistakes += decision.action != label
            learner.update(x, decision, int(decision.action == label))
        counts.append(mistakes)
    assert low <= np.mean(counts) <= high, counts


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_retraction_gives_the_model_of_the_actual_feedback(covariance: str) -> None:
    wrong_first = create("confidit", n_classes=K, n_features=D, covariance=covariance, alpha=0.5)
    right = create("confidit", n_classes=K, n_features=D, covariance=covariance, alpha=0.5)
    rng = np.random.default_rng(5)
    corrections = []
    for x, label, u, v in events(seed=5):
        decision = right.predict(x, u)
        right.observe(x, decision)
        reward = int(decision.action == label)
        right.update(x, decision, reward, v=v)
        if rng.random() < 0.3:
            wrong_first.update(x, decision, 0, v=v)
            corrections.append((x, decision, reward, v))
        else:
            wrong_first.update(x, decision, reward, v=v)
    for x, decision, reward, v in corrections:
        wrong_first.retract(x, decision, 0, reward, v=v)
    np.testing.assert_allclose(wrong_first.weights(), right.weights(), atol=1e-9)


def test_projection_is_not_retractable() -> None:
    learner = create("confidit", n_classes=K, n_features=D, variant=1)
    assert not learner.retractable
    x = np.ones(D)
    decision = learner.predict(x, 0.5)
    learner.observe(x, decision)
    learner.update(x, decision, 0)
    with pytest.raises(NotImplementedError):
        learner.retract(x, decision, 0, 1)


@pytest.mark.parametrize("d", [1, 7, 16, 37])
def test_inverse_stays_accurate_over_many_updates(d: int) -> None:
    rng = np.random.default_rng(2)
    learner = create("confidit", n_classes=2, n_features=d, variant=2)
    A = np.array([4.0 * np.eye(d)] * 2)
    b = np.zeros((2, d))
    for _ in range(3_000):
        x = rng.normal(size=d)
        decision = learner.predict(x, 0.5)
        learner.observe(x, decision)
        reward = int(rng.random() < 0.5)
        learner.update(x, decision, reward)
        unit = x / np.linalg.norm(x)
        A[decision.action] += np.outer(unit, unit)
        b[decision.action] += unit if reward else -unit
    fresh = np.array([np.linalg.solve(A[k], b[k]) for k in range(2)])
    np.testing.assert_allclose(learner.weights(), fresh, atol=1e-11)


def test_projection_satisfies_its_constraints() -> None:
    learner = create("confidit", n_classes=K, n_features=D, variant=4, alpha=0.5)
    for x, label, u, v in events(seed=8)[:80]:
        decision = learner.predict(x, u)
        learner.observe(x, decision)
        inner = learner.weights() @ x / np.linalg.norm(x)
        assert inner.min() >= -0.5 - 1e-12
        np.testing.assert_allclose(inner.sum(), 1 + 0.5 - K * 0.5, atol=1e-12)
        np.testing.assert_allclose(inner, decision.scores, atol=1e-12)
        learner.update(x, decision, int(decision.action == label), v=v)


def test_invalid_option_is_rejected_with_the_accepted_values() -> None:
    for options, accepted in (
        ({"projection": "maybe"}, "on .1, True, yes. or off"),
        ({"variant": 6}, r"\[0, 5\]"),
        ({"alpha": -1.0}, r"\(-1, 1\]"),
        ({"confidence": "none"}, "constant, theory, modified"),
    ):
        with pytest.raises(ParameterError, match=accepted):
            create("confidit", n_classes=K, n_features=D, **options)


def test_oversized_state_error_suggests_the_diagonal() -> None:
    with pytest.raises(ParameterError, match="covariance=diag"):
        create("confidit", n_classes=4, n_features=47_236)
    create("confidit", n_classes=4, n_features=47_236, variant=5)


# The limits are error rates in % after 10⁴ rounds of variant 2. On SynSep and SynNonSep, an independent implementation
# has error rates of 0.6 and 5.7. With seeds 0 to 3, Onebit has 0.69 to 0.74 and 5.5 to 5.8.
@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "low", "high"), [(synsep, 0.35, 0.9), (synnonsep, 4.9, 6.6)])
def test_variant_2_learns_the_synthetic_data_in_10_000_rounds(
    dataset: Callable[[], Dataset], low: float, high: float
) -> None:
    data = dataset()
    learner = create("confidit", data.n_classes, data.n_features, variant=2)
    mistakes = 0
    for row in range(10_000):
        x, label = data.row(row)
        decision = learner.predict(x, 0.5)
        learner.observe(x, decision)
        mistakes += decision.action != label
        learner.update(x, decision, int(decision.action == label))
    assert low <= mistakes / 100 <= high
