"""Learners from other libraries, called from Python with the same rows, draws and delays as Onebit's learners.

`vw` is Vowpal Wabbit's contextual bandit (see `vowpal_wabbit.py`). `river` is one of River's learners: LinUCB with a
model per class, which receives the bit, or one-versus-rest logistic regressions, which receive the true class. Both
libraries are optional: pip install vowpalwabbit==9.11.9 river
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.experiments.definition import Scalar
from onebit.experiments.sets import Loaded
from onebit.experiments.streams import Stream
from onebit.experiments.vowpal_wabbit import SQUARECB, Bandit, Setting, package
from stream.learners import ParameterError
from stream.offline import NEVER, Examples
from stream.wire.records import FloatArray

OPPONENTS: dict[str, frozenset[str]] = {
    "vw": frozenset(("exploration", "cost_right", "cost_wrong", "unit", "learning_rate")),
    "river": frozenset(("model",)),
}
"""The learners from other libraries, by name, with the parameters that each one accepts."""


class Opponent(Protocol):
    """A learner from another library that processes one event at a time."""

    def decide(self, t: int, u: float) -> tuple[int, Any]:
        """Return the action for event t, drawn using the uniform number u, and an object to pass to `learn`."""

    def learn(self, kept: Any, action: int, label: int) -> None:
        """Learn from the bit or, for full-information learners, from the label."""


class Events(Protocol):
    """The parts of a stream that an opponent uses."""

    @property
    def examples(self) -> Examples:
        """The events."""

    @property
    def u(self) -> FloatArray:
        """One uniform draw per event."""

    @property
    def delays(self) -> NDArray[np.int64]:
        """The delay of each bit in decisions, or NEVER."""


def oppose(name: str, parameters: Mapping[str, Scalar], data: Loaded, stream: Stream) -> NDArray[np.int64]:
    """Return the actions of another library's learner on a stream, int64[n].

    Raises:
        ParameterError: the library is not installed, or a parameter is not accepted.
    """
    make = _vowpal_wabbit if name == "vw" else River
    return play(make(parameters, data, stream.examples), stream)


def play(opponent: Opponent, stream: Events) -> NDArray[np.int64]:
    """Run an opponent, with decisions and late bits in the same order as in `stream.offline.run`."""
    size = stream.examples.labels.size
    labels, u = stream.examples.labels.tolist(), stream.u.tolist()
    came = np.flatnonzero(stream.delays != NEVER)
    due = came + stream.delays[came]
    order = np.argsort(due, kind="stable")
    events, due_in_order = came[order].tolist(), [*due[order].tolist(), math.inf]
    waiting: dict[int, Any] = {}
    actions = np.empty(size, dtype=np.int64)
    applied = 0
    for t in range(size):
        actions[t], waiting[t] = opponent.decide(t, u[t])
        while due_in_order[applied] <= t:
            s = events[applied]
            applied += 1
            opponent.learn(waiting.pop(s), int(actions[s]), labels[s])
    return actions


class VowpalWabbit:
    """Vowpal Wabbit as an opponent."""

    def __init__(self, bandit: Bandit, examples: Examples) -> None:
        self._bandit = bandit
        self._examples = examples

    def decide(self, t: int, u: float) -> tuple[int, Any]:
        """See Opponent."""
        example = self._bandit.example(self._examples, t)
        action, probability = self._bandit.decide(example, u)
        return action, (example, action, probability)

    def learn(self, kept: Any, action: int, label: int) -> None:
        """See Opponent."""
        self._bandit.learn(*kept, right=action == label)


def _vowpal_wabbit(parameters: Mapping[str, Scalar], data: Loaded, examples: Examples) -> VowpalWabbit:
    setting = Setting(
        str(parameters.get("exploration", SQUARECB)),
        (int(parameters.get("cost_right", 0)), int(parameters.get("cost_wrong", 1))),
        unit=bool(parameters.get("unit", 1)),
        learning_rate=float(parameters.get("learning_rate", 0.5)),
    )
    return VowpalWabbit(Bandit(data, setting), examples)


class River:
    """A River learner as an opponent."""

    def __init__(self, parameters: Mapping[str, Scalar], data: Loaded, examples: Examples) -> None:
        model = parameters.get("model", "linucb")
        if model not in ("linucb", "logistic"):
            raise ParameterError(f"river: parameter model must be linucb or logistic; got {model!r}")
        self._learns_from_class = model == "logistic"
        self._classes = list(range(data.n_classes))
        self._examples = examples
        if self._learns_from_class:
            linear, multiclass = package("river.linear_model"), package("river.multiclass")
            self._model = multiclass.OneVsRestClassifier(linear.LogisticRegression())
        else:
            self._model = package("river.bandit").LinUCBDisjoint(seed=0)

    def decide(self, t: int, u: float) -> tuple[int, Any]:
        """Return the action for event t. River's own random generator breaks ties. See `Opponent`."""
        indices, values = self._examples.features(t)
        norm = float(np.linalg.norm(values)) or 1.0
        x = dict(zip(indices.tolist(), (values / norm).tolist(), strict=True))
        if self._learns_from_class:
            return int(self._model.predict_one(x) or 0), x
        return int(self._model.pull(self._classes, context=x)), x

    def learn(self, kept: Any, action: int, label: int) -> None:
        """See Opponent."""
        if self._learns_from_class:
            self._model.learn_one(kept, label)
        else:
            self._model.update(action, kept, float(action == label))
