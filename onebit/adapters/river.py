"""Learners as River classifiers: `pip install 'onebit[river]'`.

>>> from river import datasets, evaluate, metrics
>>> model = Classifier(n_classes=2, n_features=9, classes=(False, True))
>>> evaluate.progressive_val_score(datasets.Phishing().take(500), model, metrics.Accuracy(), delay=100)
Accuracy: 78.80%
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from river import base

from onebit.adapters.named import AUTO, Names, make_learner
from stream.randomness.draws import Purpose, uniform
from stream.wire.records import Decision, Features

PENDING_MAX = 100_000
"""Default limit on stored decisions. It is larger than any delay used in River's evaluations."""


class Pending(NamedTuple):
    """A stored decision that is waiting for its label."""

    number: int  # sequence number of the decision, starting at 0; it determines the random draws
    features: Features
    decision: Decision


class Classifier(base.Classifier):
    """A Onebit learner as a River classifier. It learns only whether its predicted class was right.

    `predict_one` makes a decision and stores it. `learn_one` applies the bit (right or wrong), after any delay, to the
    oldest stored decision for the same x. `river.evaluate` with a `delay` therefore measures learning from late bits.
    If no decision for x is stored, `learn_one` first makes a decision.

    Transformers in a pipeline, such as StandardScaler, may change x between the two calls. In that case, give each
    event an id by using rows of the form `(x, y, {"event_id": "order-17"})`. The label is then applied to the decision
    with that id, and the learner uses that decision's x.

    Features and classes are assigned indices when they first appear, up to `n_features` and `n_classes`. String values
    are categories. If the labels are known, list all of them in `classes`. If the predicted class has no label yet,
    `predict_one` returns None, and River's metrics skip the event.

    Args:
        n_classes: The maximum number of classes.
        n_features: The maximum number of features. Each category counts as one feature.
        learner: A learner's name. The default depends on the numbers of classes and features.
        classes: Labels that are known in advance.
        seed: The seed for all random draws.
        pending_max: The maximum number of stored decisions. The oldest is evicted first.
        parameters: The learner's parameters.
    """

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        learner: str = AUTO,
        classes: tuple[Hashable, ...] | None = None,
        seed: int = 0,
        pending_max: int = PENDING_MAX,
        **parameters: float | int | str,
    ) -> None:
        if pending_max < 1:
            raise ValueError(f"pending_max is {pending_max}; expected at least 1")
        self.n_classes = n_classes
        self.n_features = n_features
        self.learner = learner
        self.classes = classes
        self.seed = seed
        self.pending_max = pending_max
        self.parameters = parameters
        self._model = make_learner(learner, n_classes, n_features, parameters)
        self._labels = Names("class", n_classes, classes or ())
        self._features = Names("feature", n_features)
        self._pending: OrderedDict[Hashable, deque[Pending]] = OrderedDict()
        self._pending_size = 0
        self._decisions = 0

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"n_classes": 8, "n_features": 32}

    @property
    def _multiclass(self) -> bool:
        return True

    def predict_one(self, x: dict[Any, Any], event_id: Hashable = None, **kwargs: Any) -> Any:
        """Make and store a decision for x. Return the label of its class, or None if the class has no label yet."""
        pending = self._decide(self._features.features(x))
        self._pending.setdefault(_key(pending.features, event_id), deque()).append(pending)
        self._pending_size += 1
        if self._pending_size > self.pending_max:
            self._pop(next(iter(self._pending)))
        action, names = pending.decision.action, self._labels.names
        return names[action] if action < len(names) else None

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Return each known label's probability for x. Does not store a decision."""
        names = self._labels.names
        played = self._model.distribution(self._features.features(x))[: len(names)]
        total = float(played.sum())
        if total == 0.0:  # none of the classes that the learner would play has a label
            return dict.fromkeys(names, 1.0 / len(names)) if names else {}
        return dict(zip(names, (played / total).tolist(), strict=True))

    def learn_one(self, x: dict[Any, Any], y: Any, event_id: Hashable = None) -> None:
        """Learn whether the decision for x, or for the event with this id, was right."""
        features, label = self._features.features(x), self._labels.index(y)
        key = _key(features, event_id)
        number, features, decision = self._pop(key) if key in self._pending else self._decide(features)
        v = uniform(self.seed, Purpose.UPDATE, str(number)) if self._model.randomised_update else 0.0
        revealed = label if self._model.needs_label else None
        self._model.update(features, decision, int(decision.action == label), v, revealed)

    def _decide(self, features: Features) -> Pending:
        number = self._decisions
        decision = self._model.predict(features, uniform(self.seed, Purpose.ACTION, str(number)))
        self._model.observe(features, decision)
        self._decisions += 1
        return Pending(number, features, decision)

    def _pop(self, key: Hashable) -> Pending:
        """Remove and return the oldest decision with this key."""
        waiting = self._pending[key]
        oldest = waiting.popleft()
        if not waiting:
            del self._pending[key]
        self._pending_size -= 1
        return oldest


def _key(features: Features, event_id: Hashable) -> Hashable:
    return (features.indices.tobytes(), features.values.tobytes()) if event_id is None else event_id
