"""igw-log: a logistic regression over hashed products of context and action, with inverse-gap weighting."""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.actions.blocks import action_features
from stream.learners.base import Cost, Extent, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    bounded,
    check_decision,
    check_event,
    kernel,
    limit,
    logistic,
    sample_inverse_gap,
    subroutine,
    unit,
)
from stream.learners.registry import register
from stream.wire.records import Features, FloatArray, IndexArray

KeyArray = NDArray[np.uint64]

A_START = 1e-3
"""Initial value of A. With this value, AdaGrad's first step is about `step`, except for very small gradients."""

PAIRS_MAX = 20_000_000
"""Limit on the pairs of a feature of the context and one of an action. With this number, a decision takes about one
second, which is the gateway's timeout. A record of 1 MB can have 2 billion pairs, which would take minutes."""

CONSTANT, ID = 1, 2
"""Keys of an action's constant and id. The feature j has the key j + FIRST."""
FIRST = 3

ID_MAX = 2.0**53
"""Larger floats are not whole numbers with a distance of 1."""


class Model(NamedTuple):
    """The regression, the number of rounds and the parameters; see `IgwLog`."""

    M: FloatArray  # [2^bits, 2]; a row contains a weight and its A
    rounds: FloatArray  # [1]
    context: int
    width: int  # 1 + a
    scale: float
    step: float
    bias: float
    own: float


@subroutine
def first_of(indices: IndexArray, start: int) -> int:
    """Return the place of the first index that is at least `start`."""
    low, high = 0, indices.size
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < start:
            low = middle + 1
        else:
            high = middle
    return low


class Side(NamedTuple):
    """The context or an action: keys and values, including the constant and the id."""

    keys: KeyArray  # uint64[n]
    values: FloatArray  # [n]


@subroutine
def mixed(key: int | np.uint64) -> np.uint64:
    """Return a hash of a key, uint64 (the finalizer of splitmix64)."""
    z = np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@subroutine
def context_of(x: Features, model: Model) -> Side:
    """Return the context at unit norm, and the constant."""
    indices, values = x
    n = first_of(indices, model.context)
    keys, entries = np.empty(n + 1, np.uint64), np.empty(n + 1)
    u = unit(values[:n])
    for j in range(n):
        keys[j], entries[j] = mixed(indices[j] + FIRST), u[j]
    keys[n], entries[n] = mixed(CONSTANT), model.bias
    return Side(keys, entries)


@subroutine
def action_of(x: Features, place: int, model: Model) -> Side:
    """Return an action at unit norm, the constant and the id."""
    indices, values = x
    start = model.context + place * model.width
    first, stop = first_of(indices, start), first_of(indices, start + model.width)
    key = 0.0
    if first < stop and indices[first] == start:
        key = values[first]
        first += 1
    n = stop - first
    keys, entries = np.empty(n + 2, np.uint64), np.empty(n + 2)
    u = unit(values[first:stop])
    for j in range(n):
        keys[j], entries[j] = mixed(indices[first + j] - start + FIRST), u[j]
    keys[n], entries[n] = mixed(CONSTANT), model.bias
    keys[n + 1], entries[n + 1] = mixed(mixed(ID) + np.uint64(number_of(key))), model.own
    return Side(keys, entries)


@subroutine
def number_of(key: float) -> int:
    """Return an id as a whole number; 0 for a value that is not one, such as NaN."""
    return int(key) if abs(key) <= ID_MAX else 0


@subroutine
def row_of(left: np.uint64, right: np.uint64, rows: int) -> int:
    """Return the row of a pair of keys. `rows` is a power of two."""
    return int(np.int64(mixed(left * np.uint64(0x9E3779B97F4A7C15) + right) & np.uint64(rows - 1)))


@subroutine
def probability(context: Side, action: Side, M: FloatArray) -> float:
    """Return p = σ(w·φ)."""
    total = 0.0
    for i in range(context.keys.size):
        for j in range(action.keys.size):
            total += M[row_of(context.keys[i], action.keys[j], M.shape[0]), 0] * context.values[i] * action.values[j]
    return logistic(bounded(total))


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Sample an action by inverse-gap weighting. The scores are the expected rewards."""
    K = event.scores.size
    check_event(event.x, model.context + K * model.width)
    context = context_of(event.x, model)
    for k in event.eligible:
        event.scores[k] = probability(context, action_of(event.x, k, model), model.M)
    limit(event.scores, event.eligible)
    return sample_inverse_gap(event.scores, event.eligible, model.scale * sqrt(model.rounds[0] + 1.0), event.u)


@kernel
def observe(event: Decided, model: Model) -> None:
    """Count a round."""
    model.rounds[0] += 1.0


@kernel
def update(event: Decided, model: Model) -> bool:
    """Take a gradient step for the played action."""
    M, K = model.M, event.scores.size
    check_decision(event, K, model.context + K * model.width)
    context, action = context_of(event.x, model), action_of(event.x, event.action, model)
    error = probability(context, action, M) - event.reward
    for i in range(context.keys.size):
        for j in range(action.keys.size):
            row = M[row_of(context.keys[i], action.keys[j], M.shape[0])]
            gradient = error * context.values[i] * action.values[j]
            squares = row[1] + gradient * gradient
            row[1] = squares
            row[0] -= model.step * gradient / sqrt(squares)
    return True


@register
class IgwLog(KernelLearner):
    """One logistic regression over products of context and action, trained with AdaGrad; inverse-gap weighting.

    After Foster, Rakhlin, "Beyond UCB: optimal and efficient contextual bandits with regression oracles", ICML 2020
    (SquareCB), and Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.

        φ(x, a)   (x/‖x‖, bias) ⊗ (a/‖a‖, bias, `own` at the action's id), each product at a hashed index
        decide    p_k = σ(w·φ_k);  b = argmax p;  γ_t = scale √t
                  π_k = 1/(n + γ_t (p_b − p_k)) for k ≠ b, π_b the remainder, for n actions
        reward    p from the current w;  A += ((p − r) φ)²;  w −= step (p − r) φ/√A

    Symbols: w, A [2^bits], A = 1e-3 at the start; t the number of decisions, including the current one; r the reward.

    Assumes sparse x and a: the time of a decision is proportional to the number of pairs of non-zeros.

    Delay: an update uses the current w and A, and the decision's action, but no other field of the decision. The order
    of the rewards matters, so an update cannot be retracted.

    Departures from the papers: the regression oracle is logistic, the hash has no sign, and the schedule γ_t is not
    derived from a regret bound.

    >>> from stream.learners import create
    >>> learner = create("igw-log", n_classes=2, n_features=6, context=2)
    >>> x = np.array([0.5, 1.0, 17.0, 1.0, 18.0, -1.0])  # two features, and ids 17 and 18 with one feature each
    >>> decision = learner.predict(x, u=0.2)
    >>> decision.action, decision.propensity
    (0, 0.5)
    >>> learner.observe(x, decision)
    >>> learner.update(x, decision, reward=0)
    True
    >>> learner.predict(x, u=0.2).greedy
    1
    """

    name: ClassVar[str] = "igw-log"
    summary: ClassVar[str] = "a logistic regression over hashed pairs of features; for sparse contexts and actions"
    best_for: ClassVar[str] = "actions with sparse features, such as words"
    paper: ClassVar[str] = "after Foster, Rakhlin 2020"
    supports_eligible: ClassVar[bool] = True
    for_actions: ClassVar[bool] = True
    pairs_max: ClassVar[int | None] = PAIRS_MAX
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("context", 1, "number of the context's features", low=1),
        Parameter(
            "scale", 100.0, "rate at which exploration decreases: γ = scale √t", low=0.0, high=1e9, can_change=True
        ),
        Parameter("step", 0.5, "AdaGrad step size", low=0.0, high=1e6, can_change=True),
        Parameter("bias", 0.2, "constant entry appended to contexts and actions", low=0.0, high=1e3),
        Parameter("own", 0.5, "entry for an action's id", low=0.0, high=1e3),
        Parameter("bits", 20, "the regression has 2^bits weights", low=8, high=28),
    )
    from_logs: FromLogs = FromLogs.NOTHING
    one_right_class: bool = False
    learns_values: bool = True
    is_linear: bool = False
    observed: Mapping[str, Extent] = {"rounds": Extent.WHOLE}
    kernels = Kernels(predict, update, observe)

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        context: int,
        scale: float,
        step: float,
        bias: float,
        own: float,
        bits: int,
    ) -> None:
        M, rounds = np.zeros((1 << bits, 2)), np.zeros(1)
        M[:, 1] = A_START
        width = 1 + action_features(n_classes, n_features, context)
        model = Model(M, rounds, context, width, scale, step, bias, own)
        super().__init__(n_classes, n_features, {"M": M, "rounds": rounds}, model)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost for contexts and actions with the same number of non-zeros."""
        each = nnz // (n_classes + 1) + 2
        return Cost(
            flops_per_event=(n_classes + 4) * each * each * 12,
            bytes_per_event=(n_classes + 2) * each * each * 16,
            state_bytes=16 << int(parameters["bits"]),
        )
