"""One-versus-all perceptrons, in which each class claims or rejects x. If no class claims x, the action is a guess."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from stream.learners.base import Cost, KernelLearner, Parameter
from stream.learners.kernels import (
    SIMILARITIES,
    Decided,
    Event,
    Kernels,
    Similarity,
    add_scaled,
    argmax,
    bounded,
    check_event,
    kernel,
    linear_scores,
    sample_epsilon_greedy,
    similarity,
    squared_length,
    subroutine,
    sum_of_rows,
    unit,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import FloatArray, IndexArray

# Row indices of `marks`: the attributes of a support example.
OWNER, SIGN, NORM_SQ = range(3)

# Indices of `fill`.
USED, NEXT = range(2)


class LinearModel(NamedTuple):
    """The weights; see `OvaPerceptron`."""

    W: FloatArray  # [K, d]


class SupportModel(NamedTuple):
    """The stored examples; see `OvaKernelPerceptron`."""

    S: FloatArray  # [d, support_max], an example per column
    marks: FloatArray  # [3, support_max], a row per attribute
    fill: IndexArray  # the number of examples, and the column of the next one
    similarity: Similarity


@subroutine
def choose(scores: FloatArray, u: float) -> tuple[int, int, float]:
    """Return the class with the highest score, or a random class if that score is negative (lines 3-5 and 8-9)."""
    greedy = argmax(scores)
    if scores[greedy] >= 0.0:
        return greedy, greedy, 1.0
    action, propensity = sample_epsilon_greedy(greedy, scores, 1.0, u)
    return action, greedy, propensity


@subroutine
def direction(scores: FloatArray, reward: float) -> float:
    """Return the sign of the update: -1 for a wrong claim, 1 for a right guess, 0 otherwise (lines 6 and 10)."""
    claimed = scores[argmax(scores)] >= 0.0
    if claimed:
        return 0.0 if reward == 1 else -1.0
    return 1.0 if reward == 1 else 0.0


@kernel
def predict_linear(event: Event, model: LinearModel) -> tuple[int, int, float]:
    """Compute the scores, then call `choose`."""
    check_event(event.x, model.W.shape[1])
    linear_scores(event.x, model.W, event.scores)
    return choose(event.scores, event.u)


@kernel
def update_linear(event: Decided, model: LinearModel) -> bool:
    """Add x to W_action, subtract x from it, or leave it unchanged."""
    if not usable(event, *model.W.shape):
        return False
    sign = direction(event.scores, event.reward)
    if sign == 0.0 or event.x.indices.size == 0:
        return False
    add_scaled(model.W, event.action, sign, event.x)
    return True


@kernel
def retract_linear(event: Decided, assumed_reward: int, model: LinearModel) -> bool:
    """Add the update for the real reward minus the update for the assumed reward."""
    if not usable(event, *model.W.shape):
        return False
    change = direction(event.scores, event.reward) - direction(event.scores, assumed_reward)
    add_scaled(model.W, event.action, change, event.x)
    return event.x.indices.size > 0


@register
class OvaPerceptron(KernelLearner):
    """One perceptron per class. After a wrong claim, x is subtracted; after a right guess, x is added.

    "Bandit Multiclass Classification" (the Notes), Algorithm 3.

        some w_iᵀx ≥ 0:  ỹ = argmax_i w_iᵀx;  if wrong, w_ỹ -= x
        none:            ỹ uniform;            if right, w_ỹ += x

    Symbols: w_i weights [K, d], array W; ỹ the action. A class with w_i = 0 claims every x.

    The bound of O(K²/γ²) expected mistakes assumes that the classes are one-versus-all separable through the origin,
    with w*_yᵀx ≥ γ/2 and w*_iᵀx ≤ -γ/2 for i ≠ y.

    Delay: the scores at prediction time determine whether the action was a claim or a guess.

    Retraction: W is a sum over the events. Up to rounding and in any order, W is the same as if the original update had
    used the real bit, given the same decisions.

    Departures from the paper: none. If several classes claim x, the highest score wins; the paper allows any of them.

    >>> from stream.learners import create
    >>> learner = create("ova-perceptron", n_classes=2, n_features=2)
    >>> x = np.array([1.0, 2.0])
    >>> for _ in range(2):
    ...     _ = learner.update(x, learner.predict(x, u=0.7), reward=0)
    >>> decision = learner.predict(x, u=0.7)
    >>> decision.action, decision.propensity
    (1, 0.5)
    >>> learner.update(x, decision, reward=1)
    True
    >>> learner.weights().tolist()
    [[-1.0, -2.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "ova-perceptron"
    summary: ClassVar[str] = "one perceptron per class; guesses if no class claims x"
    paper: ClassVar[str] = "Notes, Alg. 3"
    retractable: bool = True
    grows: bool = True
    kernels = Kernels(predict_linear, update_linear, retract=retract_linear)

    def __init__(self, n_classes: int, n_features: int) -> None:
        W = np.zeros((n_classes, n_features))
        super().__init__(n_classes, n_features, {"W": W}, LinearModel(W))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing the scores (K·nnz products) and updating one row."""
        return Cost(
            flops_per_event=2 * nnz * (n_classes + 1),
            bytes_per_event=8 * nnz * (n_classes + 2),
            state_bytes=8 * n_classes * n_features,
        )


@kernel
def predict_kernelised(event: Event, model: SupportModel) -> tuple[int, int, float]:
    """Compute s_i = Σ_{p of class i} sign_p k(x_p, x), then call `choose`."""
    indices, values = event.x
    marks = model.marks
    scores = event.scores
    check_event(event.x, model.S.shape[0])
    x = unit(values) if model.similarity.kind == 1 else values
    norm_sq = squared_length(x)
    n = model.fill[USED]
    inner = np.empty(n)  # ⟨x, x_p⟩
    sum_of_rows(model.S, indices, x, inner)
    scores[:] = 0.0
    for p in range(n):
        k = similarity(model.similarity, inner[p], norm_sq, marks[NORM_SQ, p])
        scores[int(marks[OWNER, p])] += marks[SIGN, p] * k
    for i in range(scores.size):
        scores[i] = bounded(scores[i])
    return choose(scores, event.u)


@kernel
def update_kernelised(event: Decided, model: SupportModel) -> bool:
    """Store x with its sign for the action's class. If the support is full, replace the oldest example."""
    indices, values = event.x
    S = model.S
    if not usable(event, event.scores.size, S.shape[0]):
        return False
    sign = direction(event.scores, event.reward)
    if sign == 0.0:
        return False
    x = unit(values) if model.similarity.kind == 1 else values
    place = model.fill[NEXT]
    if model.fill[USED] > place:  # replaces the oldest example
        S[:, place] = 0.0
    for j in range(indices.size):
        S[indices[j], place] = x[j]
    model.marks[OWNER, place] = event.action
    model.marks[SIGN, place] = sign
    model.marks[NORM_SQ, place] = squared_length(x)
    model.fill[USED] = max(model.fill[USED], place + 1)
    model.fill[NEXT] = (place + 1) % S.shape[1]
    return True


@register
class OvaKernelPerceptron(KernelLearner):
    """The one-versus-all perceptron in a kernel's feature space, where linear separability suffices.

    "Bandit Multiclass Classification" (the Notes), sect. 5, with Algorithm 3.

        s_i = Σ_{p in the support of i} sign_p k(x_p, x)
        some s_i ≥ 0:  ỹ = argmax_i s_i;  if wrong, (x, -1) joins the support of ỹ
        none:          ỹ uniform;          if right, (x, +1) joins the support of ỹ

        rational    k(x, x') = 1 / (1 - ½⟨x, x'⟩), both scaled to unit norm
        polynomial  k(x, x') = (1 + ⟨x, x'⟩)^degree
        rbf         k(x, x') = exp(-‖x - x'‖² / (2 width²))

    Symbols: x_p support examples, the columns of S [d, support_max]; sign_p and i, an example's sign and class, rows of
    `marks`; ỹ the action; a class with a score of 0 claims x, so a class with empty support claims every x.

    The bound assumes linear separability with a margin as in (1) of the Notes. In the space of the rational kernel,
    this becomes one-versus-all separability with a smaller margin.

    Memory: all classes together store at most `support_max` examples. Further examples replace the oldest ones. The
    mistake bound, which assumes unlimited support, then no longer applies.

    Delay: the scores at prediction time determine whether the action was a claim or a guess.

    Departures from the paper: the support is limited.

    >>> from stream.learners import create
    >>> learner = create("ova-kernel-perceptron", n_classes=2, n_features=2, kernel="rational")
    >>> x = np.array([3.0, 4.0])
    >>> learner.update(x, learner.predict(x, u=0.5), reward=0)
    True
    >>> learner.predict(x, u=0.5).scores.round(6).tolist()
    [-2.0, 0.0]
    """

    name: ClassVar[str] = "ova-kernel-perceptron"
    summary: ClassVar[str] = "one kernel perceptron per class; guesses if no class claims x"
    paper: ClassVar[str] = "Notes, sect. 5"
    is_linear = False
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("kernel", "rational", "k(x, x')", choices=("rational", "polynomial", "rbf")),
        Parameter("degree", 2, "degree of the polynomial kernel", low=1, high=32),
        Parameter("width", 1.0, "width of the rbf kernel", low=1e-9, high=1e9),
        Parameter(
            "support_max",
            1_000,
            "maximum number of stored examples; new examples replace the oldest",
            low=1,
            high=1_000_000,
        ),
    )
    grows: bool = True
    kernels = Kernels(predict_kernelised, update_kernelised)

    def __init__(
        self, n_classes: int, n_features: int, kernel: str, degree: int, width: float, support_max: int
    ) -> None:
        S = np.zeros((n_features, support_max))
        marks = np.zeros((3, support_max))
        fill = np.zeros(2, dtype=np.int32)
        model = SupportModel(S, marks, fill, Similarity(SIMILARITIES.index(kernel), degree, width))
        super().__init__(n_classes, n_features, {"S": S, "marks": marks, "fill": fill}, model)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost for a full support: nnz products and one kernel evaluation per stored example."""
        support_max = int(parameters["support_max"])
        return Cost(
            flops_per_event=2 * support_max * (nnz + 4),
            bytes_per_event=8 * support_max * (nnz + 3) + 16 * n_features,
            state_bytes=8 * support_max * (n_features + 3) + 8,
        )
