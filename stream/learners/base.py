"""What a learner is, and how it declares its parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.learners.kernels import DRIFTS, observe_nothing
from stream.parsing import parse_number, parse_whole
from stream.wire.events import NOTHING_LOGGED, Decision, Features, FloatArray
from stream.wire.records import make

State = dict[str, NDArray[Any] | float | int | str]
"""A learner's state: named arrays and scalars, all that its future depends on beside the parameters."""

Kernel = Callable[..., Any]


class Kernels(NamedTuple):
    """The compiled functions that are a learner's arithmetic; see `stream.learners.kernels`."""

    predict: Kernel
    update: Kernel
    observe: Kernel = observe_nothing


U_STEP = 2.0**-53
"""The first step by which `distribution` looks on where an interval of u has not quite ended."""

U_REST = 1e-12
"""What rounding may leave of [0, 1) when the intervals of all classes have been seen."""


NO_DETECTORS: FloatArray = np.zeros(0)
"""The alarms of a learner that does not watch for drift."""


class ParameterError(OnebitError, ValueError):
    """A learner was asked for with a name, a parameter or a size that it does not accept."""


class Extent(Enum):
    """How much of a part of the state `observe` changes, with one x and one action."""

    WHOLE = auto()
    ACTION = auto()  # what belongs to the action; classes come first in its shape
    FEATURES = auto()  # what belongs to the features that x has; they come first in its shape
    OTHER = auto()  # what `observed_parts` says


class FromLogs(Enum):
    """What a learner needs in order to learn from a decision that it did not make: one of a log."""

    UNSOUND = auto()  # its updates take for granted that it chose the action itself
    NOTHING = auto()  # a regression of the bit of what was played, whoever played it
    PROPENSITY = auto()  # it weighs the bit by the probability with which the log played
    LABEL = auto()  # it learns from the true class, whatever was played


class Cost(NamedTuple):
    """What a learner costs, as counts that follow from K, d and nnz."""

    flops_per_event: int  # floating-point operations of one predict and one update
    bytes_per_event: int  # bytes of state touched by one predict and one update
    state_bytes: int  # size of the whole state


@dataclass(frozen=True, slots=True)
class Parameter:
    """One declared parameter of a learner: its default gives its type; its range or its choices bound it."""

    name: str
    default: float | int | str
    help: str
    low: float = float("-inf")
    high: float = float("inf")
    low_open: bool = False  # the lower end itself is excluded
    high_open: bool = False  # the upper end itself is excluded
    choices: tuple[str, ...] = ()
    correctable: float | int | str | None = None  # its default where updates must be taken back exactly; None: the same
    any_right: float | int | str | None = None  # what it must be where several classes may be right; None: any value

    def accepted(self) -> str:
        """The accepted values, for people."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        if self.low == float("-inf") and self.high == float("inf"):
            return kind
        ends = ("(" if self.low_open else "[", ")" if self.high_open or self.high == float("inf") else "]")
        return f"{kind} in {ends[0]}{self.low:g}, {self.high:g}{ends[1]}"

    def default_where(self, *, correctable: bool, any_right: bool = False) -> float | int | str:
        """The default where updates must be taken back exactly, where several classes may be right, or neither."""
        if any_right and self.any_right is not None:
            return self.any_right
        return self.correctable if correctable and self.correctable is not None else self.default

    def check(self, learner: str, value: object) -> float | int | str:
        """Return the value in the parameter's type, or raise ParameterError saying what is accepted."""
        converted = self._converted(value)
        if converted is None:
            raise ParameterError(f"{learner}: parameter {self.name} is {self.accepted()}; got {value!r}")
        return converted

    def _converted(self, value: object) -> float | int | str | None:
        if isinstance(self.default, str):
            text = str(value)
            return text if not self.choices or text in self.choices else None
        if isinstance(value, bool):
            return None
        parse = parse_whole if isinstance(self.default, int) else parse_number
        number: float | int | None = parse(str(value))
        if number is None:
            return None
        if self.choices and str(number) not in self.choices:
            return None
        above = number > self.low if self.low_open else number >= self.low
        below = number < self.high if self.high_open else number <= self.high
        return number if above and below else None


class Learner(ABC):
    """An online learner for K classes and d features.

    All randomness comes in as `u` and `v`; there is no clock and no hidden state. `predict` decides and changes
    nothing. `observe` is what a decision itself changes (a round counter, a projection, a covariance): it is called
    once for each decision, right after it, so in their order. `update` uses the decision's own figures (action,
    propensity, scores: from prediction time) and the current state, never anything the learner saw last.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `onebit learners`
    best_for: ClassVar[str] = ""  # what it is the best for, as that continues "best for"; most are there for study
    paper: ClassVar[str]  # paper and algorithm
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    needs_label: ClassVar[bool] = False  # a full-information baseline: `update` wants `label`
    randomised_update: ClassVar[bool] = False  # `update` consumes `v`
    retractable: ClassVar[bool] = False  # an update can be taken back, see `retract`
    from_logs: ClassVar[FromLogs] = FromLogs.UNSOUND  # what it needs to learn from a log's decisions
    one_right_class: ClassVar[bool] = True  # whether it takes a right action to say that all others are wrong
    instead: ClassVar[str] = ""  # what to use where the state would be too large
    observed: Mapping[str, Extent] = {}  # the parts of the state that `observe` may change, and how much

    _parameters: Mapping[str, Any]  # what the constructor was called with beside the sizes

    def __new__(cls, *sizes: int, **parameters: Any) -> Self:
        """Make an empty learner that keeps its parameters, from which a copy is made."""
        learner = super().__new__(cls)
        learner._parameters = parameters
        return learner

    def __init__(self, n_classes: int, n_features: int) -> None:
        self.n_classes = n_classes
        self.n_features = n_features

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by sizes, parameters and state: the kernels and the views into one array are made again."""
        return _restored, (type(self), self.n_classes, self.n_features, dict(self._parameters), self.state())

    @abstractmethod
    def predict(self, x: Features | FloatArray, u: float) -> Decision:
        """Decide for x (sparse, or dense float64[d]) with one uniform u in [0, 1); change nothing."""

    def distribution(self, x: Features | FloatArray) -> FloatArray:
        """The probability with which each class would be played for x now, float64[K]; changes nothing.

        It is read off `predict`: a class is played for the u of one interval, as long as the class's propensity. One
        call for each class that can be played, so K calls at most, and one where the decision is not randomised.
        """
        return _distribution(self.n_classes, lambda u: self.predict(x, u)[:3])

    def observe(self, x: Features | FloatArray, decision: Decision) -> None:  # noqa: B027 (most have nothing to do)
        """Take note that `decision` was made for x."""

    def as_played(self, x: Features | FloatArray, decision: Decision, action: int, propensity: float) -> Decision:
        """The decision that was made for x if another played this action, with this probability.

        All that `decision` carries of its action is then of this one. To be called before the model changes.
        """
        return decision._replace(action=action, propensity=propensity)

    @abstractmethod
    def update(
        self, x: Features | FloatArray, decision: Decision, reward: int, v: float = 0.0, label: int | None = None
    ) -> bool:
        """Learn that `decision` for x was right (reward 1) or wrong (0); True when the model changed."""

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int, v: float = 0.0
    ) -> bool:
        """Take back an update made with an assumed reward and make the one with the real reward; True when changed.

        Where the order of updates does not matter, the model is afterwards, to rounding, the one that had the real
        reward in the first place; the docstring of a retractable learner says how far that holds.

        Raises:
            NotImplementedError: the learner's update cannot be taken back (`retractable` is False).
        """
        raise NotImplementedError(f"{self.name}: an update cannot be taken back; use the late policy that ignores")

    @property
    def alarms(self) -> FloatArray:
        """How often each detector of drift has gone off: that of every class, at last that of all; empty for none.

        float64[K + 1], or float64[0]; it is the state itself, not a copy, since it is looked at around every update.
        """
        return NO_DETECTORS

    @abstractmethod
    def state(self) -> State:
        """The state, as copies."""

    def state_into(self, copy: State) -> State:
        """The state, in the arrays of an earlier one of this learner or of its like; they are overwritten.

        For states of 100 MB: new memory can cost ten times what the copy does.
        """
        return self.state()

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `state()` of the same learner, sizes and parameters."""

    @abstractmethod
    def weights(self) -> FloatArray:
        """The current linear weights, float64[K, d], as a copy; learners without such raise NotImplementedError."""

    @classmethod
    @abstractmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """The cost per event at nnz non-zeros, and in all; known before anything is allocated."""


def _restored(
    cls: type[Learner], n_classes: int, n_features: int, parameters: Mapping[str, Any], state: State
) -> Learner:
    """The learner that was copied or pickled."""
    learner = cls(n_classes, n_features, **parameters)
    learner.load(state)
    return learner


def _distribution(n_classes: int, play: Callable[[float], tuple[int, int, float]]) -> FloatArray:
    """The p [K] of what is played for a u, with its propensity."""
    p = np.zeros(n_classes)
    u, step = 0.0, U_STEP
    while u < 1.0 - U_REST:
        action, _, propensity = play(u)
        if p[action] == 0.0 and propensity > 0.0:
            p[action] = propensity
            u, step = u + propensity, U_STEP
        else:  # rounding has left u short of the interval's end
            u, step = u + step, 2.0 * step
    return p


class KernelLearner(Learner):
    """A learner whose arithmetic is a few kernels over flat arrays; see `stream.learners.kernels`.

    An event that a model cannot learn from within float64 (an entry of x beyond 1e100 or not a number, see `usable`)
    is predicted for, and its update is refused: the model stays as it is and `update` returns False.
    """

    predict_kernel: ClassVar[Kernel]
    observe_kernel: ClassVar[Kernel] = staticmethod(observe_nothing)
    update_kernel: ClassVar[Kernel]
    log_kernel: ClassVar[Kernel] = staticmethod(observe_nothing)  # (indices, values, action, scores, *model)
    logged_size: int = 0  # L: how many numbers of its own a decision carries; of the action some, `log_kernel` says
    kernels: Kernels  # the class's, unless a parameter chooses others
    arrays: dict[str, NDArray[Any]]  # the state by name; written in place, never replaced
    model: tuple[Any, ...]  # what the kernels get after the event

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        arrays: Mapping[str, NDArray[Any]],
        model: tuple[Any, ...],
        kernels: Kernels | None = None,
    ) -> None:
        """Take the state's arrays and the kernels' last arguments.

        Args:
            n_classes: K.
            n_features: d.
            arrays: The whole state by name. Each is an array of `model`, or a view into one: an array costs 0.1 µs per
                call, so learners stack arrays of one shape.
            model: What the kernels get after the event: arrays (scratch space among them), then constants.
            kernels: What is used instead of the class's kernels.
        """
        super().__init__(n_classes, n_features)
        self.arrays = dict(arrays)
        self.model = model
        self.kernels = kernels or Kernels(self.predict_kernel, self.update_kernel, self.observe_kernel)
        self._predict, self._update, self._observe = self.kernels
        self._observes = self._observe is not observe_nothing

    def predict(self, x: Features | FloatArray, u: float) -> Decision:
        """Decide for x with one uniform u in [0, 1)."""
        if not 0.0 <= u < 1.0:
            raise ValueError(f"{self.name}: predict takes a uniform u in [0, 1); got {u!r}")
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        K = self.n_classes
        scores = np.empty(K + self.logged_size)
        action, greedy, propensity = self._predict(indices, values, u, scores, *self.model)
        if self.logged_size == 0:
            return make(Decision, (action, greedy, propensity, scores, NOTHING_LOGGED))
        return make(Decision, (action, greedy, propensity, scores[:K], scores[K:]))

    def distribution(self, x: Features | FloatArray) -> FloatArray:
        """See Learner."""
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        scores = np.empty(self.n_classes + self.logged_size)
        return _distribution(self.n_classes, lambda u: self._predict(indices, values, u, scores, *self.model))

    def observe(self, x: Features | FloatArray, decision: Decision) -> None:
        """Take note that `decision` was made for x."""
        if self._observes:
            indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
            self._observe(indices, values, *self._figures(decision), *self.model)

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """What `observe` may change if it is called next: names of arrays, each with an index into it."""
        index = {Extent.WHOLE: ..., Extent.ACTION: decision.action, Extent.FEATURES: x.indices}
        for name, extent in self.observed.items():
            if extent is not Extent.OTHER:
                yield name, index[extent]

    def as_played(self, x: Features | FloatArray, decision: Decision, action: int, propensity: float) -> Decision:
        """See Learner."""
        if not 0 <= action < self.n_classes:
            raise ValueError(f"{self.name}: as_played takes an action in 0..{self.n_classes - 1}; got {action!r}")
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        K = self.n_classes
        row = np.concatenate((decision.scores, decision.logged))
        self.log_kernel(indices, values, action, row, *self.model)
        return Decision(action, decision.greedy, propensity, row[:K], row[K:] if self.logged_size else NOTHING_LOGGED)

    def _figures(self, decision: Decision) -> tuple[int, int, float, FloatArray]:
        """A decision as the kernels get it: what is logged stands behind the scores."""
        action, greedy, propensity, scores, logged = decision
        if logged.size != self.logged_size:
            raise ValueError(f"{self.name}: a decision logs {self.logged_size} numbers; got {logged.size}")
        if logged.size == 0:
            return action, greedy, propensity, scores
        row = logged.base
        if row is None or row is not scores.base:  # not as `predict` made it: it was stored in between
            row = np.concatenate((scores, logged))
        return action, greedy, propensity, row

    def update(
        self, x: Features | FloatArray, decision: Decision, reward: int, v: float = 0.0, label: int | None = None
    ) -> bool:
        """Learn that `decision` for x was right (reward 1) or wrong (0); True when the model changed."""
        if reward != 0 and reward != 1:
            raise ValueError(f"{self.name}: update takes reward 0 or 1; got {reward!r}")
        if self.randomised_update and not 0.0 <= v < 1.0:
            raise ValueError(f"{self.name}: update takes a uniform v in [0, 1); got {v!r}")
        if not self.needs_label:
            label = -1
        elif label is None or not 0 <= label < self.n_classes:
            raise ValueError(
                f"{self.name} learns from the true class: update takes label in 0..{self.n_classes - 1}; got {label!r}"
            )
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        action, greedy, propensity, scores = self._figures(decision)
        changed: bool = self._update(
            indices, values, action, greedy, propensity, scores, 1 if reward else 0, v, label, *self.model
        )
        return changed

    def state(self) -> State:
        """The state, as copies."""
        return {name: array.copy() for name, array in self.arrays.items()}

    def state_into(self, copy: State) -> State:
        """See Learner. What `state` has beside the arrays follows from the parameters, and stays as it is."""
        for name, array in self.arrays.items():
            np.copyto(np.asarray(copy[name]), array)
        return copy

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `state()` of the same learner, sizes and parameters."""
        load_arrays(self.name, self.arrays, state)

    def weights(self) -> FloatArray:
        """The current linear weights, float64[K, d], as a copy."""
        weights: FloatArray = self.arrays["W"].copy()
        return weights


class WatchingLearner(KernelLearner):
    """One that may watch for drift; its state counts `alarms`, float64[K + 1], see `stream.learners.kernels.watch`."""

    @property
    def alarms(self) -> FloatArray:
        """See Learner."""
        return self.arrays["alarms"]


MARGIN = Parameter(
    "margin",
    "feedback",
    "whose scores a late bit is held against: the model's when the bit comes, or the decision's",
    choices=("feedback", "decision"),
)
"""With no delay the two are the same to the bit."""

DRIFT = Parameter(
    "drift",
    "global",
    "what a lasting fall of the reward resets: nothing, every class, or besides a class by itself",
    choices=DRIFTS,
    correctable="off",
)

INVERSE_GAP = (
    Parameter("scale", 300.0, "how fast exploration falls: γ = scale √n", low=0.0, high=1e9),
    Parameter("step", 2.0, "AdaGrad's step", low=0.0, high=1e6),
    Parameter("others", 0.3, "weight of what a bit says of the other classes", low=0.0, high=1.0, any_right=0.0),
    Parameter("bias", 0.1, "the constant entry behind x of unit norm", low=0.0, high=1e9),
)
"""Of learners that play by inverse-gap weighting; their docstrings say what n counts, and which bits say something."""


def sparse(x: object, n_features: int) -> Features:
    """The sparse vector of x: Features as they are, a dense float64[d] by its non-zeros, a pair converted.

    Raises:
        ValueError: x is none of these, or its length is not d.
    """
    if isinstance(x, Features):
        return x
    if isinstance(x, np.ndarray):
        if x.shape != (n_features,):
            raise ValueError(f"x: a dense vector of {n_features} features is expected; got shape {x.shape}")
        indices = np.flatnonzero(x).astype(np.int32)
        return Features(indices, x[indices].astype(np.float64))
    if not isinstance(x, tuple) or len(x) != 2:
        raise ValueError(f"x: a pair (indices, values) or a dense vector is expected; got {type(x).__name__}")
    indices, values = np.asarray(x[0], dtype=np.int32), np.asarray(x[1], dtype=np.float64)
    if indices.ndim != 1 or indices.shape != values.shape:
        raise ValueError(f"x: indices and values of one length are expected; got {indices.shape} and {values.shape}")
    return Features(indices, values)


def load_arrays(name: str, target: Mapping[str, NDArray[Any]], state: Mapping[str, Any]) -> None:
    """Copy named arrays of a stored state into the arrays of a learner, checking names and shapes first."""
    for key, array in target.items():
        if key not in state:
            raise ValueError(f"loading {name}: the state has no {key!r}; it has {', '.join(sorted(state))}")
        if np.shape(state[key]) != array.shape:
            raise ValueError(f"loading {name}: {key} has shape {array.shape}; the state has {np.shape(state[key])}")
    for key, array in target.items():
        array[...] = state[key]
