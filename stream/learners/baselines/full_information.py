"""Full-information baselines, which learn from the true class, for comparison with learning from one bit."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from stream.learners.base import MARGIN, Cost, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    add_scaled,
    argmax,
    argmax_except,
    current_scores,
    kernel,
    linear_greedy,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import NOT_ELIGIBLE, FloatArray


class PerceptronModel(NamedTuple):
    """The weights; see `Perceptron`."""

    W: FloatArray  # [K, d]
    at_feedback: bool


class SecondOrderModel(NamedTuple):
    """The weights, the sums of updates and the correlations; see `SecondOrderPerceptron`."""

    W: FloatArray  # [K, d], as all arrays
    V: FloatArray
    A: FloatArray
    at_feedback: bool


class ArowModel(NamedTuple):
    """The means and variances of the weights; see `Arow`."""

    W: FloatArray  # [K, d], as all arrays
    S: FloatArray
    r: float
    at_feedback: bool


@kernel
def predict_greedy(event: Event, model: PerceptronModel | SecondOrderModel | ArowModel) -> tuple[int, int, float]:
    """Play the greedy class."""
    greedy = linear_greedy(event, model.W)
    return greedy, greedy, 1.0


@kernel
def update_perceptron(event: Decided, model: PerceptronModel) -> bool:
    """On a mistake, apply W_y += x and W_action -= x."""
    action = event.action
    if not usable(event, *model.W.shape):
        return False
    if model.at_feedback:
        action = argmax(current_scores(event, model.W))
    if action == event.label or event.x.indices.size == 0:
        return False
    add_scaled(model.W, event.label, 1.0, event.x)
    add_scaled(model.W, action, -1.0, event.x)
    return True


@register
class Perceptron(KernelLearner):
    """Multiclass perceptron.

    "Bandit Multiclass Classification" (the Notes), Algorithm 1.

        ŷ = argmax_r (Wx)_r;  if ŷ ≠ y: W_y += x, W_ŷ -= x

    Symbols: W weights [K, d]; ŷ the action, which is the greedy class; y the label.

    Delay: ŷ is the greedy class under the current W (margin=feedback) or under W at prediction time (margin=decision).
    With margin=decision, every wrong decision causes a correction, even if earlier updates have already corrected the
    mistake.

    Departures from the paper: none.

    >>> from stream.learners import create
    >>> learner = create("perceptron", n_classes=2, n_features=2)
    >>> decision = learner.predict(np.array([1.0, 2.0]), u=0.5)
    >>> learner.update(np.array([1.0, 2.0]), decision, reward=0, label=1)
    True
    >>> learner.weights().tolist()
    [[-1.0, -2.0], [1.0, 2.0]]
    """

    name: ClassVar[str] = "perceptron"
    summary: ClassVar[str] = "full information: the multiclass perceptron"
    best_for: ClassVar[str] = "comparing one-bit feedback with true labels, for a first-order learner"
    paper: ClassVar[str] = "Notes, Alg. 1"
    supports_eligible: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (MARGIN,)
    from_logs: FromLogs = FromLogs.LABEL
    grows: bool = True
    needs_label: ClassVar[bool] = True
    kernels = Kernels(predict_greedy, update_perceptron)

    def __init__(self, n_classes: int, n_features: int, margin: str) -> None:
        W = np.zeros((n_classes, n_features))
        super().__init__(n_classes, n_features, {"W": W}, PerceptronModel(W, margin == "feedback"))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing the scores (K·nnz products) and updating two rows."""
        return Cost(
            flops_per_event=2 * nnz * (n_classes + 2),
            bytes_per_event=8 * nnz * (n_classes + 4),
            state_bytes=8 * n_classes * n_features,
        )


@kernel
def update_second_order(event: Decided, model: SecondOrderModel) -> bool:
    """On a mistake, apply V_y += x and V_action -= x and, in both rows, A += x² and W = V / A."""
    indices, values = event.x
    action = event.action
    W, V, A = model.W, model.V, model.A
    if not usable(event, *W.shape):
        return False
    if model.at_feedback:
        action = argmax(current_scores(event, W))
    if action == event.label or indices.size == 0:
        return False
    for j in range(indices.size):
        i = indices[j]
        x = values[j]
        V[event.label, i] += x
        V[action, i] -= x
        A[event.label, i] += x * x
        A[action, i] += x * x
        W[event.label, i] = V[event.label, i] / A[event.label, i]
        W[action, i] = V[action, i] / A[action, i]
    return True


@register
class SecondOrderPerceptron(KernelLearner):
    """Second-order perceptron, multiclass and diagonal.

    Cesa-Bianchi, Conconi, Gentile, "A second-order perceptron algorithm", SIAM J. Comput. 34(3), 2005; one of
    Confidit's baselines.

        ŷ = argmax_r (Wx)_r;  if ŷ ≠ y: V_y += x, V_ŷ -= x, A_y += x², A_ŷ += x²;  W = V / A  (elementwise)

    Symbols: W weights [K, d]; V perceptron updates [K, d]; A correlations [K, d], `a` at the start, > 0; ŷ the action;
    y the label.

    Delay: ŷ is the greedy class under the current W (margin=feedback) or under W at prediction time (margin=decision);
    V and A are always the current sums. With margin=decision, the order of updates does not matter.

    Departures from the paper: one diagonal per class replaces the full correlation matrix. The paper's algorithm is
    binary, and adds xxᵀ for the current x before it predicts; this implementation does not.

    >>> from stream.learners import create
    >>> learner = create("second-order-perceptron", n_classes=2, n_features=2, a=1.0)
    >>> decision = learner.predict(np.array([1.0, 2.0]), u=0.5)
    >>> learner.update(np.array([1.0, 2.0]), decision, reward=0, label=1)
    True
    >>> learner.weights().tolist()
    [[-0.5, -0.4], [0.5, 0.4]]
    """

    name: ClassVar[str] = "second-order-perceptron"
    summary: ClassVar[str] = "full information: the second-order perceptron, diagonal"
    best_for: ClassVar[str] = "comparing one-bit feedback with true labels, for a second-order learner"
    paper: ClassVar[str] = "Cesa-Bianchi, Conconi, Gentile 2005"
    supports_eligible: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("a", 1.0, "initial value of the diagonal of A", low=1e-9, high=1e9),
        MARGIN,
    )
    from_logs: FromLogs = FromLogs.LABEL
    grows: bool = True
    needs_label: ClassVar[bool] = True
    kernels = Kernels(predict_greedy, update_second_order)

    def __init__(self, n_classes: int, n_features: int, a: float, margin: str) -> None:
        W, V = np.zeros((n_classes, n_features)), np.zeros((n_classes, n_features))
        A = np.full((n_classes, n_features), a)
        model = SecondOrderModel(W, V, A, margin == "feedback")
        super().__init__(n_classes, n_features, {"W": W, "V": V, "A": A}, model)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing the scores (K·nnz products) and updating two rows in three arrays."""
        return Cost(
            flops_per_event=2 * nnz * (n_classes + 6),
            bytes_per_event=8 * nnz * (n_classes + 12),
            state_bytes=3 * 8 * n_classes * n_features,
        )


@kernel
def update_arow(event: Decided, model: ArowModel) -> bool:
    """Increase the margin between the label and its strongest rival towards 1, then decrease the variances."""
    indices, values = event.x
    scores = event.scores
    W, S = model.W, model.S
    if not usable(event, *W.shape):
        return False
    if model.at_feedback:
        scores = current_scores(event, W)
    rival = argmax_except(scores, event.label)
    margin = scores[event.label] - scores[rival]
    if not margin < 1.0 or indices.size == 0 or scores[event.label] == NOT_ELIGIBLE:
        return False
    variance = 0.0
    for j in range(indices.size):
        i = indices[j]
        variance += values[j] * values[j] * (S[event.label, i] + S[rival, i])
    alpha = (1.0 - margin) / (variance + model.r)
    if not (abs(alpha) < np.inf and variance < np.inf):
        return False
    for j in range(indices.size):
        i = indices[j]
        x = values[j]
        W[event.label, i] += alpha * S[event.label, i] * x
        W[rival, i] -= alpha * S[rival, i] * x
        S[event.label, i] = 1.0 / (1.0 / S[event.label, i] + x * x / model.r)
        S[rival, i] = 1.0 / (1.0 / S[rival, i] + x * x / model.r)
    return True


@register
class Arow(KernelLearner):
    """AROW, adaptive regularisation of weights, multiclass and diagonal.

    Crammer, Kulesza, Dredze, "Adaptive regularization of weight vectors", NIPS 2009, Fig. 1; one of Confidit's
    baselines.

        r̄ = argmax_{i≠y} s_i;  m = s_y - s_r̄;  if m < 1:
        v = Σ_j x_j² (S_y,j + S_r̄,j);  β = 1/(v + r);  α = (1 - m) β
        μ_y += α S_y x;  μ_r̄ -= α S_r̄ x;  then S⁻¹ += x²/r in both rows

    Symbols: μ mean weights [K, d] (array W); S variances [K, d], 1 at the start; `r` regularisation, > 0; s scores; y
    the label. The learner also updates on correct rounds while the margin m is below 1.

    Delay: s, r̄ and m are computed from the current weights (margin=feedback) or are the values at prediction time
    (margin=decision); S is always current.

    Departures from the paper: multiclass, with the label and its strongest rival (the paper's algorithm is binary); one
    diagonal of Σ per class; S⁻¹ += x²/r, the diagonal of the exact inverse update.

    >>> from stream.learners import create
    >>> learner = create("arow", n_classes=2, n_features=2, r=1.0)
    >>> decision = learner.predict(np.array([1.0, 0.0]), u=0.5)
    >>> learner.update(np.array([1.0, 0.0]), decision, reward=1, label=0)
    True
    >>> learner.weights().round(3).tolist()
    [[0.333, 0.0], [-0.333, 0.0]]
    """

    name: ClassVar[str] = "arow"
    summary: ClassVar[str] = "full information: adaptive regularisation of weights, diagonal"
    best_for: ClassVar[str] = "comparing one-bit feedback with true labels, on data with label noise"
    paper: ClassVar[str] = "Crammer, Kulesza, Dredze 2009"
    supports_eligible: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("r", 1.0, "regularisation", low=1e-9, high=1e9, can_change=True),
        MARGIN,
    )
    from_logs: FromLogs = FromLogs.LABEL
    grows: bool = True
    needs_label: ClassVar[bool] = True
    kernels = Kernels(predict_greedy, update_arow)

    def __init__(self, n_classes: int, n_features: int, r: float, margin: str) -> None:
        W, S = np.zeros((n_classes, n_features)), np.ones((n_classes, n_features))
        super().__init__(n_classes, n_features, {"W": W, "S": S}, ArowModel(W, S, r, margin == "feedback"))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing the scores (K·nnz products) and accessing two rows in two arrays."""
        return Cost(
            flops_per_event=2 * nnz * (n_classes + 10),
            bytes_per_event=8 * nnz * (n_classes + 8),
            state_bytes=2 * 8 * n_classes * n_features,
        )
