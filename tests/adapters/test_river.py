"""Learners as River classifiers: River's own checks, and comparisons with the compiled loop."""

import pickle
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from river import evaluate, metrics, preprocessing
from river.checks import yield_checks

from onebit.adapters.river import Classifier
from stream.learners import ParameterError, create
from stream.offline import run
from stream.randomness.draws import Purpose, uniform
from stream.wire.records import FloatArray
from tests.adapters.rows import N_CLASSES, N_FEATURES, examples, rows

X = {"weight": 2.0, "legs": 4}


def named(x: FloatArray, labels: list[int]) -> list[tuple[dict[Hashable, Any], Any]]:
    return [(dict(enumerate(row)), label) for row, label in zip(x.tolist(), labels, strict=True)]


def classifier(**changes: Any) -> Classifier:
    return Classifier(**{"n_classes": 2, "n_features": 4, "learner": "banditron", **changes})


@pytest.mark.parametrize("learner", ["auto", "banditron", "perceptron"])  # `perceptron` learns from the true class
def test_river_accepts_the_classifier(learner: str) -> None:
    model = Classifier(n_classes=8, n_features=32, learner=learner)
    checks = list(yield_checks(model))
    assert len(checks) >= 53
    for check in checks:
        check(model.clone())


@pytest.mark.parametrize("delay", [None, 40])
@pytest.mark.parametrize("learner", ["late-ucb", "banditron", "soba-diag", "stack-igw"])
def test_delayed_validation_in_river_equals_the_compiled_loop(learner: str, delay: int | None) -> None:
    size = 200
    x, labels = rows(size)
    model = Classifier(N_CLASSES, N_FEATURES, learner, classes=tuple(range(N_CLASSES)), seed=3)
    accuracy = metrics.Accuracy()  # type: ignore[no-untyped-call]
    steps = evaluate.iter_progressive_val_score(
        named(x, labels), model, accuracy, delay=delay, step=1, yield_predictions=True
    )
    predicted = [step["Prediction"] for step in steps]

    u, v = (
        np.array([uniform(3, purpose, str(number)) for number in range(size)])
        for purpose in (Purpose.ACTION, Purpose.UPDATE)
    )
    # In each round, River reveals the labels that are due before it requests the prediction. The loop reveals these
    # labels after the decision, so the loop's delays are one round shorter.
    delays = np.full(size, max((delay or 0) - 1, 0))
    assert predicted == run(create(learner, N_CLASSES, N_FEATURES), examples(x, labels), u, v, delays).actions.tolist()


def test_classifier_with_known_classes_always_predicts_a_class() -> None:
    model = classifier(classes=("cat", "dog"))
    assert model.predict_one(X) in ("cat", "dog")
    assert model.predict_proba_one(X).keys() == {"cat", "dog"}


def test_prediction_is_none_until_a_class_is_known() -> None:
    model = classifier()
    assert model.predict_one(X) is None
    assert model.predict_proba_one(X) == {}
    model.learn_one(X, "cat")
    assert model.predict_proba_one(X) == {"cat": 1.0}


def test_decisions_with_equal_features_are_settled_in_order() -> None:
    twice, apart = classifier(seed=5), classifier(seed=5)
    for model in (twice, apart):
        model.predict_one(X)
    twice.predict_one(dict(reversed(X.items())))
    for label in ("cat", "dog"):
        twice.learn_one(X, label)
    apart.learn_one(X, "cat")
    apart.learn_one(X, "dog")  # no decision is pending, so learn_one makes a decision first
    assert twice.predict_proba_one(X) == apart.predict_proba_one(X)


def test_update_with_an_event_id_uses_the_features_of_its_decision() -> None:
    renamed, exact = classifier(seed=5), classifier(seed=5)
    for model in (renamed, exact):
        model.learn_one(X, "cat")
    renamed.predict_one(X, event_id="a")
    exact.predict_one(X)
    renamed.learn_one({"weight": -3.0}, "dog", event_id="a")
    exact.learn_one(X, "dog")
    assert renamed.predict_proba_one(X) == exact.predict_proba_one(X)


def test_event_ids_settle_decisions_whose_scaled_features_have_changed() -> None:
    x, labels = rows(200)
    stream: list[Any] = [(*row, {"event_id": number}) for number, row in enumerate(named(x, labels))]
    model = Classifier(N_CLASSES, N_FEATURES, "late-ucb", classes=(0, 1, 2), pending_max=30)
    pipeline = preprocessing.StandardScaler() | model
    accuracy = metrics.Accuracy()  # type: ignore[no-untyped-call]
    evaluate.progressive_val_score(stream, pipeline, accuracy, delay=20)
    assert accuracy.get() > 0.5  # type: ignore[no-untyped-call]
    assert len(pickle.dumps(model)) < len(pickle.dumps(Classifier(N_CLASSES, N_FEATURES, "late-ucb"))) + 2_000


def test_oldest_pending_decision_is_evicted_at_the_limit() -> None:
    bounded, unbounded = classifier(seed=5, pending_max=2), classifier(seed=5)
    sizes = []
    for weight in range(1, 40):
        bounded.predict_one({"weight": weight})
        unbounded.predict_one({"weight": weight})
        sizes.append((len(pickle.dumps(bounded)), len(pickle.dumps(unbounded))))
    assert sizes[-1][0] - sizes[2][0] < 20
    assert sizes[-1][1] - sizes[2][1] > 1_000


def test_unpickled_classifier_continues_identically() -> None:
    x, labels = rows(60)
    stream = named(x, labels)
    model = Classifier(N_CLASSES, N_FEATURES, "stack-igw", classes=(0, 1, 2))
    for row, _ in stream[:30]:
        model.predict_one(row)
    for row, label in stream[:20]:
        model.learn_one(row, label)
    copy = pickle.loads(pickle.dumps(model))  # noqa: S301 (pickled by this test)
    for row, label in stream[20:]:
        assert model.predict_one(row) == copy.predict_one(row)
        for each in (model, copy):
            each.learn_one(row, label)


def test_strings_are_categories_and_missing_values_are_omitted() -> None:
    model = classifier(n_features=2)
    model.predict_one({"color": "red", "size": None})
    model.predict_one({"color": "blue"})
    with pytest.raises(ValueError, match="at most 2"):
        model.predict_one({"color": "green"})


def test_non_finite_value_is_rejected() -> None:
    with pytest.raises(ValueError, match="weight"):
        classifier().predict_one({"weight": float("nan")})


def test_class_beyond_the_limit_is_rejected() -> None:
    with pytest.raises(ValueError, match="at most 2"):
        classifier(classes=("cat", "dog")).learn_one(X, "cow")


def test_parameters_are_checked_and_cloned() -> None:
    assert classifier(gamma=0.25).clone().parameters == {"gamma": 0.25}
    with pytest.raises(ParameterError):
        classifier(gamma=7.0)
    with pytest.raises(ValueError, match="pending_max"):
        classifier(pending_max=0)
