"""The learner interface, and the class that declares a learner's parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.learners.entries import entry_points, handle_of
from stream.learners.kernels import DRIFTS, Kernels, observe_nothing
from stream.parsing import parse_number, parse_whole
from stream.wire.records import NOTHING_LOGGED, Decision, Features, FloatArray, IndexArray, make

State = dict[str, NDArray[Any] | float | int | str]
"""A learner's state: named arrays and scalars that, together with the parameters, determine its future behaviour."""

U_STEP = 2.0**-53
"""Initial increment of u in `distribution` if, because of rounding, u is still in the previous class's interval."""

U_REST = 1e-12
"""`distribution` stops when 1 - u is at most this value."""


NO_DETECTORS: FloatArray = np.zeros(0)
"""Empty array of alarms, for learners without drift detection."""


class ParameterError(OnebitError, ValueError):
    """Raised for an unknown learner, or for a parameter or size that the learner does not accept."""


class Extent(Enum):
    """The part of a state array that `observe` may change."""

    WHOLE = auto()
    ACTION = auto()  # the action's entries; the first axis is the class
    FEATURES = auto()  # the entries for the features in x; the first axis is the feature
    OTHER = auto()  # reported by `observed_parts`


class FromLogs(Enum):
    """Whether a learner can learn from another policy's logged decisions, and what it needs from the log."""

    UNSOUND = auto()  # the updates assume that the learner chose the action
    NOTHING = auto()  # estimates the reward of each action, and needs nothing else from the log
    PROPENSITY = auto()  # weights the reward by the propensity in the log
    LABEL = auto()  # learns from the true class, regardless of the chosen action


class Cost(NamedTuple):
    """A learner's cost, computed from K, d and nnz."""

    flops_per_event: int  # floating-point operations of one `predict` and one `update`
    bytes_per_event: int  # bytes of state that one `predict` and one `update` access
    state_bytes: int  # maximum size of the state
    unused_bytes: int = 0  # part of `state_bytes` that a new state omits; see `KernelLearner.in_use`


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that a learner declares.

    The default determines the type. The value can be limited to a range or to a list of choices.

    A parameter can change in a running pipeline if a new model and the logged values do not depend on it, and if every
    update and retraction may use the current value, even for decisions that were made with a different value.
    """

    name: str
    default: float | int | str
    help: str
    low: float = float("-inf")
    high: float = float("inf")
    low_open: bool = False  # excludes `low`
    high_open: bool = False  # excludes `high`
    choices: tuple[str, ...] = ()
    correctable: float | int | str | None = None  # default if updates must be retractable; None means `default`
    any_right: float | int | str | None = None  # only value accepted if several classes may be right; None means any
    sparse: float | int | str | None = None  # default if the data are known to be sparse; None means `default`
    can_change: bool = False  # whether it can change in a running pipeline; see `stream.task.carry`

    def accepted(self) -> str:
        """Describe the accepted values."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        if self.low == float("-inf") and self.high == float("inf"):
            return kind
        ends = ("(" if self.low_open else "[", ")" if self.high_open or self.high == float("inf") else "]")
        return f"{kind} in {ends[0]}{self.low:g}, {self.high:g}{ends[1]}"

    def default_where(self, *, correctable: bool, any_right: bool = False) -> float | int | str:
        """Return the default, given whether updates must be retractable and whether several classes may be right."""
        if any_right and self.any_right is not None:
            return self.any_right
        return self.correctable if correctable and self.correctable is not None else self.default

    def check(self, learner: str, value: object) -> float | int | str:
        """Convert a value to the parameter's type. Raise ParameterError if the value is not accepted."""
        converted = self._converted(value)
        if converted is None:
            raise ParameterError(
                f"{learner}: invalid value for parameter {self.name}; expected {self.accepted()}, got {value!r}"
            )
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

    The caller passes random numbers as `u` and `v`. A learner has no clock and no hidden state. `predict` returns a
    decision and changes nothing. `observe` makes the changes that a decision causes before its bit arrives: it may
    count a round, project the weights or update a covariance. The caller calls `observe` once for each decision, in
    order, immediately after `predict`. `update` uses the decision's own action, propensity and scores, and the current
    state. The result of `update` must not depend on the most recent decision or context.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `onebit learners`
    best_for: ClassVar[str] = ""  # use case, printed after "best for"; empty for learners meant only for study
    paper: ClassVar[str]  # paper and algorithm
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    needs_label: ClassVar[bool] = False  # full-information baseline: `update` requires `label`
    randomised_update: ClassVar[bool] = False  # `update` uses `v`
    retractable: bool = False  # an update can be reversed with `retract`
    reversible_rewards: tuple[int, ...] = (0, 1)  # bits whose updates a retractable learner can reverse
    learns_values: bool = False  # `update` also accepts a share from 0 to 1, and `retract` reverses any share
    from_logs: FromLogs = FromLogs.UNSOUND  # requirements for learning from logged decisions
    supports_eligible: ClassVar[bool] = False  # can decide among a subset of the classes
    for_actions: ClassVar[bool] = False  # decides among actions with features; see `stream.learners.actions`
    pairs_max: ClassVar[int | None] = None  # limit on pairs of features of a context and its actions; None: no limit
    one_right_class: bool = True  # assumes that all other classes are wrong if the action is right
    members: int = 1  # number of learners that choose a class, including challengers
    instead: ClassVar[str] = ""  # alternative that an error message suggests if the state would be too large
    grows: bool = False  # a trained model can be extended to more features and, with `supports_eligible`, more classes
    greedy_parts: tuple[str, ...] | None = None  # parts of the state that determine the greedy class; None means all
    observed: Mapping[str, Extent] = {}  # which part of a state array `observe` may change, by array name

    _parameters: Mapping[str, Any]  # the constructor's arguments except the sizes

    def __new__(cls, *sizes: int, **parameters: Any) -> Self:
        """Create an uninitialised learner and store the parameters so that the learner can be copied."""
        learner = super().__new__(cls)
        learner._parameters = parameters
        return learner

    def __init__(self, n_classes: int, n_features: int) -> None:
        self.n_classes = n_classes
        self.n_features = n_features

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copying and pickling. Kernels and array views are recreated from the sizes, parameters and state."""
        return _restored, (type(self), self.n_classes, self.n_features, dict(self._parameters), self.state())

    @abstractmethod
    def predict(self, x: Features | FloatArray, u: float, eligible: IndexArray | None = None) -> Decision:
        """Return a decision, without side effects.

        Args:
            x: Features, sparse or dense float64[d].
            u: Uniform draw in [0, 1).
            eligible: Classes that may be played, int32[m] in increasing order; None means all. Exploration uses m
                instead of K. The other classes have the score `kernels.NOT_ELIGIBLE`.

        Raises:
            ParameterError: the learner does not support eligible classes.
            ValueError: u or the eligible classes are invalid.
        """

    def distribution(self, x: Features | FloatArray, eligible: IndexArray | None = None) -> FloatArray:
        """Return the probability of playing each class for x, float64[K], without side effects.

        `predict` plays a class if u is in that class's interval, whose length is the class's propensity. This method
        therefore calls `predict` once for each class with positive probability.
        """
        return _distribution(self.n_classes, lambda u: self.predict(x, u, eligible)[:3])

    def among(self, eligible: IndexArray | None) -> IndexArray:
        """Check the eligible classes and return them as int32[m]; see `predict`."""
        if eligible is None:
            return all_classes(self.n_classes)
        if not self.supports_eligible:
            raise ParameterError(f"{self.name} cannot decide among a subset of the classes; use a different learner")
        if not eligible.size or eligible[0] < 0 or eligible[-1] >= self.n_classes or (np.diff(eligible) <= 0).any():
            raise ValueError(
                f"{self.name}: expected classes from 0 to {self.n_classes - 1} in increasing order; "
                f"got {eligible.tolist()}"
            )
        return eligible

    @property
    def decides(self) -> int:
        """The index of the learner that makes the decisions in a `Challenge`; 0 for a single learner."""
        return 0

    @property
    def deciding(self) -> "Learner":
        """The learner that makes the decisions in a `Challenge`; otherwise, this learner."""
        return self

    def promote(self, number: int) -> None:  # noqa: B027 (a single learner always decides)
        """Let the learner with this index make all further decisions; see `decides`."""

    def set_baseline(self, action: int) -> None:  # noqa: B027 (only a holdout can play the baseline)
        """Set the class that the service's own rule plays for the next context; see `Mixture`."""

    def choices(self, decision: Decision) -> tuple[int, tuple[int, ...]]:
        """Return the index of the learner that made a decision, and the class that each learner chose."""
        return 0, (decision.action,)

    def observe(self, x: Features | FloatArray, decision: Decision) -> None:  # noqa: B027 (most have nothing to do)
        """Record that `decision` was made for x."""

    def needs_offer(self, decision: Decision) -> bool:
        """Return whether `observe` and updates for a decision need the features of actions that were not played."""
        return False

    def observe_early(self, x: Features | FloatArray, decision: Decision) -> None:
        """Record a decision that the shared model's log does not contain yet.

        A task with a shared model decides with the log's model plus the effects of the task's own decisions that are
        not in the log yet. Before `observe` applies such a decision from the log, the task removes these effects.
        """
        self.observe(x, decision)

    def as_played(self, x: Features | FloatArray, decision: Decision, action: int, propensity: float) -> Decision:
        """Return the decision that results if another policy plays `action` with probability `propensity` for x.

        All action-dependent fields of `decision` are replaced. Call this method before the model changes.
        """
        return decision._replace(action=action, propensity=propensity)

    @abstractmethod
    def update(
        self, x: Features | FloatArray, decision: Decision, reward: float, v: float = 0.0, label: int | None = None
    ) -> bool:
        """Learn whether `decision` for x was right (reward 1) or wrong (0). Return True if the model changed.

        If `learns_values` is True, the reward may also be a float from 0 to 1, a share of a range of graded rewards.
        """

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: float, reward: float, v: float = 0.0
    ) -> bool:
        """Reverse an update made with an assumed reward and apply the real reward. Return True if the model changed.

        If the order of updates does not matter, the model is, up to rounding, the same as if the original update had
        used the real reward. Each retractable learner documents the conditions.

        Raises:
            NotImplementedError: the learner is not retractable.
        """
        raise NotImplementedError(f"{self.name} cannot retract an update; use the late policy `ignore`")

    @property
    def alarms(self) -> FloatArray:
        """The number of alarms from each drift detector. Each class has a detector; the last detector is global.

        The array is float64[K + 1], or float64[0] without drift detection. It is part of the state, not a copy, because
        tasks read the alarms before and after every update.
        """
        return NO_DETECTORS

    @abstractmethod
    def state(self) -> State:
        """Return a copy of the state."""

    def state_into(self, copy: State) -> State:
        """Return the state. The arrays in `copy`, an earlier state of the same learner, may be reused.

        For states of 100 MB, allocating the memory can take ten times as long as copying the data.
        """
        return self.state()

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `state()` of a learner with the same sizes and parameters."""

    @abstractmethod
    def weights(self) -> FloatArray:
        """Return a copy of the current linear weights, float64[K, d].

        Raises:
            NotImplementedError: the learner is not linear in x.
        """

    @classmethod
    @abstractmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of an event with nnz non-zeros, and the size of the state, without allocating memory."""


def _restored(
    cls: type[Learner], n_classes: int, n_features: int, parameters: Mapping[str, Any], state: State
) -> Learner:
    """Recreate a learner that was copied or pickled."""
    learner = cls(n_classes, n_features, **parameters)
    learner.load(state)
    return learner


def _distribution(n_classes: int, play: Callable[[float], tuple[int, int, float]]) -> FloatArray:
    """Return the probability of each class, float64[K]. `play` maps u to an action, a greedy class and a propensity."""
    p = np.zeros(n_classes)
    u, step = 0.0, U_STEP
    while u < 1.0 - U_REST:
        action, _, propensity = play(u)
        if p[action] == 0.0 and propensity > 0.0:
            p[action] = propensity
            u, step = u + propensity, U_STEP
        else:  # because of rounding, u has not reached the end of the interval
            u, step = u + step, 2.0 * step
    return p


class KernelLearner(Learner):
    """A learner implemented as kernels; see `stream.learners.kernels`.

    If an update cannot be represented in float64 (an entry of x is NaN or above 1e100; see `usable`), `predict` still
    decides, but `update` leaves the model unchanged and returns False.
    """

    kernels: Kernels
    logged_size: int = 0  # number L of learner-specific values per decision
    is_linear: bool = True  # the scores are linear in x, with the weights in the state's array W
    arrays: dict[str, NDArray[Any]]  # the state arrays by name; written in place, never replaced
    model: Any  # the kernels' last argument: a NamedTuple of arrays, numbers and such NamedTuples
    entries: Kernels  # the kernels' entry points
    handle: FloatArray  # the entry points' last argument

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        arrays: Mapping[str, NDArray[Any]],
        model: Any,
        kernels: Kernels | None = None,
    ) -> None:
        """Set the state's arrays and the kernels' model.

        Args:
            n_classes: K.
            n_features: d.
            arrays: All arrays in the state, by name. Each is an array in `model`, or a view of such an array.
            model: The kernels' last argument, a NamedTuple of contiguous arrays and numbers.
            kernels: Kernels to use instead of the class's own.
        """
        super().__init__(n_classes, n_features)
        self.arrays = dict(arrays)
        self.model = model
        if kernels is not None:
            self.kernels = kernels
        self.handle = handle_of(model)
        self.entries = entry_points(self.kernels, model)
        self._predict, self._update, self._observe, self._log, self._retract = self.entries
        self._observes = self.kernels.observe is not observe_nothing
        self._every = all_classes(n_classes)
        self._of_scores, self._of_logged = slice(n_classes), slice(n_classes, None)

    def predict(self, x: Features | FloatArray, u: float, eligible: IndexArray | None = None) -> Decision:
        """See `Learner.predict`."""
        if not 0.0 <= u < 1.0:
            raise ValueError(f"{self.name}: expected u in [0, 1); got {u!r}")
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        scores = np.empty(self.n_classes + self.logged_size)
        among = self._every if eligible is None else self.among(eligible)
        action, greedy, propensity = self._predict(indices, values, u, scores, among, self.handle)
        if self.logged_size == 0:
            return make(Decision, (action, greedy, propensity, scores, NOTHING_LOGGED))
        return make(Decision, (action, greedy, propensity, scores[self._of_scores], scores[self._of_logged]))

    def distribution(self, x: Features | FloatArray, eligible: IndexArray | None = None) -> FloatArray:
        """See `Learner.distribution`."""
        among = self.among(eligible)
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        scores = np.empty(self.n_classes + self.logged_size)
        return _distribution(self.n_classes, lambda u: self._predict(indices, values, u, scores, among, self.handle))

    def observe(self, x: Features | FloatArray, decision: Decision) -> None:
        """Record that `decision` was made for x."""
        if self._observes:
            indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
            self._observe(indices, values, *self._kernel_arguments(decision), self.handle)

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """Yield the name of each array that `observe_early` may change, and the index of the changed part."""
        index = {Extent.WHOLE: ..., Extent.ACTION: decision.action, Extent.FEATURES: x.indices}
        for name, extent in self.observed.items():
            if extent is not Extent.OTHER:
                yield name, index[extent]

    def as_played(self, x: Features | FloatArray, decision: Decision, action: int, propensity: float) -> Decision:
        """See `Learner.as_played`."""
        if not 0 <= action < self.n_classes:
            raise ValueError(f"{self.name}: expected an action in 0..{self.n_classes - 1}; got {action!r}")
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        K = self.n_classes
        row = np.concatenate((decision.scores, decision.logged))
        self._log(indices, values, action, decision.greedy, propensity, row, self.handle)
        return Decision(action, decision.greedy, propensity, row[:K], row[K:] if self.logged_size else NOTHING_LOGGED)

    def _kernel_arguments(self, decision: Decision) -> tuple[int, int, float, FloatArray]:
        """Return a decision's fields as kernel arguments. One array has the scores, followed by the logged values."""
        action, greedy, propensity, scores, logged = decision
        if logged.size != self.logged_size:
            raise ValueError(
                f"{self.name}: expected a decision with {self.logged_size} logged values; got {logged.size}"
            )
        if logged.size == 0:
            return action, greedy, propensity, scores
        row = logged.base
        if row is None or row is not scores.base:  # the decision was read from storage
            row = np.concatenate((scores, logged))
        return action, greedy, propensity, row

    def update(
        self, x: Features | FloatArray, decision: Decision, reward: float, v: float = 0.0, label: int | None = None
    ) -> bool:
        """See `Learner.update`."""
        is_share = self.learns_values and type(reward) is float and 0.0 <= reward <= 1.0
        if not is_share and reward != 0 and reward != 1:
            accepted = "from 0 to 1, as a float, or a bit" if self.learns_values else "of 0 or 1"
            raise ValueError(f"{self.name}: expected a reward {accepted}; got {reward!r}")
        if self.randomised_update and not 0.0 <= v < 1.0:
            raise ValueError(f"{self.name}: expected v in [0, 1); got {v!r}")
        if not self.needs_label:
            label = -1
        elif label is None or not 0 <= label < self.n_classes:
            raise ValueError(f"{self.name}: expected a label from 0 to {self.n_classes - 1}; got {label!r}")
        indices, values = x if isinstance(x, Features) else sparse(x, self.n_features)
        action, greedy, propensity, scores = self._kernel_arguments(decision)
        changed: bool = self._update(
            indices, values, action, greedy, propensity, scores, reward if is_share else 1 if reward else 0, v, label,
            self.handle,
        )  # fmt: skip
        return changed

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: float, reward: float, v: float = 0.0
    ) -> bool:
        """See `Learner.retract`. Calls the retract kernel, unless the rewards are equal."""
        if not self.retractable:
            return super().retract(x, decision, assumed_reward, reward, v)
        if assumed_reward == reward:
            return False
        indices, values = sparse(x, self.n_features)
        is_share = self.learns_values and type(reward) is float
        rewards = (reward, v, -1, float(assumed_reward)) if is_share else (int(reward), v, -1, int(assumed_reward))
        return bool(self._retract(indices, values, *self._kernel_arguments(decision), *rewards, self.handle))

    @property
    def alarms(self) -> FloatArray:
        """See `Learner.alarms`. Learners with drift detection store the alarms in an array with this name."""
        return self.arrays.get("alarms", NO_DETECTORS)

    def state(self) -> State:
        """Return a copy of the state."""
        return {name: array.copy() for name, array in self.in_use(self.arrays).items()}

    def state_into(self, copy: State) -> State:
        """See `Learner.state_into`. An array is reallocated if the part in use has grown.

        Entries that are not arrays depend only on the parameters, and do not change.
        """
        for name, array in self.in_use(self.arrays).items():
            if np.shape(copy[name]) == array.shape:
                np.copyto(np.asarray(copy[name]), array)
            else:
                copy[name] = array.copy()
        return copy

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        load_arrays(self.name, self.in_use(state), state)

    def in_use(self, state: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """Return the learner's arrays by name, limited to the parts that a state uses."""
        return self.arrays

    def load_smaller(self, smaller: Self) -> None:
        """Restore the state of a learner with fewer classes or features, which has the same parameters.

        The entries for the added classes and features are those of a new model. Call this method on a new learner whose
        `grows` is True.
        """
        if smaller.n_classes < self.n_classes and smaller.n_features < self.n_features:
            between = type(self)(self.n_classes, smaller.n_features, **self._parameters)
            between.load_smaller(smaller)
            smaller = between
        state = smaller.state()
        by_class = smaller.n_classes < self.n_classes
        grown = {name: self._grown(array, state[name], smaller, by_class) for name, array in self.in_use(state).items()}
        self.load({**self.state(), **grown})

    def _grown(self, array: NDArray[Any], old: Any, smaller: "KernelLearner", by_class: bool) -> NDArray[Any]:
        """Return a copy of an array with the entries of a smaller learner's array.

        On an axis for the classes (if `by_class`) or the features, entries after those of the last class or feature
        stay at the end. An axis of K·d entries contains d entries for each class. On all other axes, indices stay the
        same.
        """
        K, d = smaller.n_classes, smaller.n_features
        if by_class:
            leading, added, flat = np.arange(K), self.n_classes - K, (0, 0)
        else:
            leading, added = smaller.feature_places(self.n_features)
            flat = K * d, K * self.n_features
        places = []
        for size, larger in zip(np.shape(old), array.shape, strict=True):
            at = np.arange(size)
            if larger - size == added and size >= leading.size:
                at = np.concatenate((leading, at[leading.size :] + added))
            elif larger > size and (size, larger) == flat:
                at = at // d * self.n_features + at % d
            places.append(at)
        grown = array.copy()
        grown[np.ix_(*places)] = old
        return grown

    def feature_places(self, n_features: int) -> tuple[NDArray[np.int64], int]:
        """Return where the entries of an axis for the features are in a learner with `n_features` features.

        The second result is the number of entries that are added to such an axis.
        """
        return np.arange(self.n_features), n_features - self.n_features

    def weights(self) -> FloatArray:
        """See `Learner.weights`. If the learner appends a constant to x, the constant's weight is omitted."""
        if not self.is_linear:
            raise NotImplementedError(f"{self.name} is not linear in x and has no weights; see state()")
        weights: FloatArray = self.arrays["W"][:, : self.n_features].copy()
        return weights


MARGIN = Parameter(
    "margin",
    "feedback",
    "scores used for an update with a late bit: those of the current model, or those from the time of the decision",
    choices=("feedback", "decision"),
    can_change=True,
)
"""If bits arrive without delay, both values give identical results. Kernels receive `at_feedback`, which is True for
`feedback`."""

DRIFT = Parameter(
    "drift",
    "global",
    "resets after a sustained drop in reward: none, of all classes together, or also of single classes",
    choices=DRIFTS,
    correctable="off",
)

INVERSE_GAP = (
    Parameter("scale", 300.0, "rate at which exploration decreases: γ = scale √n", low=0.0, high=1e9, can_change=True),
    Parameter("step", 2.0, "AdaGrad step size", low=0.0, high=1e6, can_change=True),
    Parameter(
        "others",
        0.3,
        "weight of a bit's evidence about the other classes",
        low=0.0,
        high=1.0,
        any_right=0.0,
        can_change=True,
    ),
    Parameter("bias", 0.1, "constant entry appended to x after x is scaled to unit norm", low=0.0, high=1e9),
)
"""Parameters for learners that use inverse-gap weighting. n is defined in each learner's docstring."""


@lru_cache
def all_classes(n_classes: int) -> IndexArray:
    """Return the indices of all classes, int32[K]. The array must not be modified."""
    return np.arange(n_classes, dtype=np.int32)


def sparse(x: object, n_features: int) -> Features:
    """Convert Features, a dense float64[d], or a pair (indices, values) to sparse Features.

    Raises:
        ValueError: x has the wrong type or length.
    """
    if isinstance(x, Features):
        return x
    if isinstance(x, np.ndarray):
        if x.shape != (n_features,):
            raise ValueError(f"x: expected a dense vector of {n_features} features; got shape {x.shape}")
        indices = np.flatnonzero(x).astype(np.int32)
        return Features(indices, x[indices].astype(np.float64))
    if not isinstance(x, tuple) or len(x) != 2:
        raise ValueError(f"x: expected a pair (indices, values) or a dense vector; got {type(x).__name__}")
    indices, values = np.asarray(x[0], dtype=np.int32), np.asarray(x[1], dtype=np.float64)
    if indices.ndim != 1 or indices.shape != values.shape:
        raise ValueError(f"x: expected indices and values of equal length; got {indices.shape} and {values.shape}")
    return Features(indices, values)


def load_arrays(name: str, target: Mapping[str, NDArray[Any]], state: Mapping[str, Any]) -> None:
    """Copy the named arrays from a stored state into a learner, after checking all names and shapes."""
    for key, array in target.items():
        if key not in state:
            raise ValueError(f"cannot load {name}: the state has no array {key!r}; it has {', '.join(sorted(state))}")
        if np.shape(state[key]) != array.shape:
            raise ValueError(f"cannot load {name}: expected {key} of shape {array.shape}; got {np.shape(state[key])}")
    for key, array in target.items():
        array[...] = state[key]
