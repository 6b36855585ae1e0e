"""Selectron, which explores if x is unfamiliar and otherwise plays the greedy class. Right answers trigger a refit."""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import Cost, KernelLearner, Parameter
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    add_scaled,
    argmax,
    check_event,
    kernel,
    linear_scores,
    sample_epsilon_greedy,
    softmax,
    squared_length,
    squared_norm,
    subroutine,
    symmetric_product,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import Features, FloatArray, IndexArray

TOLERANCE = 1e-11
"""Step length at which the logistic refit stops. Because the objective is 1/η-strongly convex, W is then within about
η L · 1e-11 of the minimiser, where L is the smoothness constant.
"""

STEPS_MAX = 20_000
"""Limit on the number of steps. A fit starts from the last W and usually takes 20 to 500 steps."""

ENTRIES_PER_EXAMPLE = 256
"""Memory is allocated for this mean number of entries per stored example. In the text data sets, the mean is lower."""

# Indices in `fill`.
EXAMPLES, ENTRIES = range(2)


class QuadraticModel(NamedTuple):
    """The model with the quadratic loss; see `Selectron`."""

    W: FloatArray  # [K, d]
    inverses: FloatArray  # [2, d, d], the inverses of M and of I/η + Σ xxᵀ/(α+1)
    epsilon: float
    alpha: float


class LogisticModel(NamedTuple):
    """The model with the logistic loss, and the examples that are fitted; see `Selectron`."""

    W: FloatArray  # [K, d]
    inverses: FloatArray  # [1, d, d], the inverse of M
    epsilon: float
    starts: IndexArray  # [support_max + 1], the examples' offsets in the next two arrays
    kept_indices: IndexArray
    kept_values: FloatArray
    labels: IndexArray  # [support_max]
    fill: IndexArray  # the number of examples, and the number of their entries
    eta: float
    radius: float


@subroutine
def add_outer(inverse: FloatArray, x: Features, weight: float) -> FloatArray:
    """Replace M⁻¹ with (M + weight · xxᵀ)⁻¹ (Sherman-Morrison) and return the new M⁻¹x.

    Mirrored entries are computed from the same product, so the matrix remains exactly symmetric.
    """
    indices, values = x
    z = symmetric_product(inverse, x)
    inner = 0.0
    for a in range(indices.size):
        inner += values[a] * z[indices[a]]
    shrink = 1.0 / (1.0 + weight * inner)
    root = sqrt(abs(weight * shrink))
    sign = 1.0 if weight > 0.0 else -1.0
    for i in range(z.size):
        row = inverse[i]
        left = root * z[i]
        for j in range(z.size):
            row[j] -= sign * (left * (root * z[j]))
    for j in range(z.size):
        z[j] *= shrink
    return z


@kernel
def predict(event: Event, model: QuadraticModel | LogisticModel) -> tuple[int, int, float]:
    """Explore uniformly if x is unfamiliar; otherwise, play the greedy class (lines 8-11)."""
    check_event(event.x, model.W.shape[1])
    linear_scores(event.x, model.W, event.scores)
    greedy = argmax(event.scores)
    if sqrt(squared_norm(model.inverses[0], event.x)) >= model.epsilon:  # line 8
        action, propensity = sample_epsilon_greedy(greedy, event.scores, 1.0, event.u)
        return action, greedy, propensity
    return greedy, greedy, 1.0


@subroutine
def _shift(event: Decided, sign: float, model: QuadraticModel) -> None:
    """Add one right answer (sign 1) or remove it (sign -1), as in lines 14 and 15."""
    W, alpha = model.W, model.alpha
    current = np.empty(W.shape[0])
    linear_scores(event.x, W, current)
    add_outer(model.inverses[0], event.x, sign)  # line 14
    z = add_outer(model.inverses[1], event.x, sign / (alpha + 1.0))
    for i in range(current.size):
        residual = (1.0 if i == event.action else 0.0) - (alpha + current[i]) / (alpha + 1.0)
        row = W[i]
        for j in range(z.size):
            row[j] += sign * residual * z[j]  # line 15


@kernel
def update_quadratic(event: Decided, model: QuadraticModel) -> bool:
    """Apply lines 13-15 for (13): W_i += G⁻¹x ([i = y] - α/(α+1) - W_iᵀx/(α+1)), G = I/η + Σ xxᵀ/(α+1) including x."""
    if not usable(event, *model.W.shape):
        return False
    if event.reward == 0 or event.x.indices.size == 0:
        return False
    _shift(event, 1.0, model)
    return True


@kernel
def retract_quadratic(event: Decided, assumed_reward: int, model: QuadraticModel) -> bool:
    """Add the example to the sums if the real reward is 1; otherwise, remove it."""
    if not usable(event, *model.W.shape) or event.x.indices.size == 0:
        return False
    _shift(event, float(event.reward - assumed_reward), model)
    return True


@subroutine
def _objective_gradient(W: FloatArray, model: LogisticModel) -> FloatArray:
    """Return Σ_s (softmax(W x_s) - e_{y_s}) x_sᵀ + W/η at this W, which need not be the model's."""
    starts, labels, eta = model.starts, model.labels, model.eta
    kept_indices, kept_values = model.kept_indices, model.kept_values
    gradient = np.empty_like(W)
    for i in range(W.shape[0]):
        for j in range(W.shape[1]):
            gradient[i, j] = W[i, j] / eta
    scores = np.empty(W.shape[0])
    for s in range(model.fill[EXAMPLES]):
        x = Features(kept_indices[starts[s] : starts[s + 1]], kept_values[starts[s] : starts[s + 1]])
        linear_scores(x, W, scores)
        p = softmax(scores)
        for i in range(p.size):
            residual = p[i] - (1.0 if i == labels[s] else 0.0)
            add_scaled(gradient, i, residual, x)
    return gradient


@subroutine
def _into_balls(W: FloatArray, radius: float) -> None:
    """Project every row onto its ball, which gives the nearest point in Ω = {‖W_i‖ ≤ radius}."""
    for i in range(W.shape[0]):
        norm_sq = squared_length(W[i])
        if norm_sq > radius * radius:
            shrink = radius / sqrt(norm_sq)
            for j in range(W.shape[1]):
                W[i, j] *= shrink


@subroutine
def refit(model: LogisticModel) -> None:
    """Take projected gradient steps from W with Nesterov's momentum and restarts (line 15, for equation (15)).

    The momentum is reset whenever it points uphill (O'Donoghue, Candès, "Adaptive restart for accelerated gradient
    schemes", 2015), so the algorithm does not need the strong convexity constant.
    """
    W, kept_values = model.W, model.kept_values
    smoothness = 1.0 / model.eta
    for e in range(model.fill[ENTRIES]):
        smoothness += 0.5 * kept_values[e] * kept_values[e]  # the softmax's Hessian is at most ½
    previous = W.copy()
    ahead = W.copy()
    momentum = 1.0
    for _ in range(STEPS_MAX):
        gradient = _objective_gradient(ahead, model)
        for i in range(W.shape[0]):
            for j in range(W.shape[1]):
                W[i, j] = ahead[i, j] - gradient[i, j] / smoothness
        _into_balls(W, model.radius)
        longest = 0.0
        uphill = 0.0
        for i in range(W.shape[0]):
            for j in range(W.shape[1]):
                step = W[i, j] - ahead[i, j]
                longest = max(longest, abs(step))
                uphill -= step * (W[i, j] - previous[i, j])
        if longest <= TOLERANCE:
            return
        if uphill > 0.0:
            momentum = 1.0
        following = 0.5 * (1.0 + sqrt(1.0 + 4.0 * momentum * momentum))
        share = (momentum - 1.0) / following
        for i in range(W.shape[0]):
            for j in range(W.shape[1]):
                ahead[i, j] = W[i, j] + share * (W[i, j] - previous[i, j])
                previous[i, j] = W[i, j]
        momentum = following


@kernel
def update_logistic(event: Decided, model: LogisticModel) -> bool:
    """Store x and fit W to all stored examples; do nothing if the memory is full (lines 13-15, for (15))."""
    indices, values = event.x
    kept_indices, kept_values, fill = model.kept_indices, model.kept_values, model.fill
    if not usable(event, *model.W.shape):
        return False
    n = fill[EXAMPLES]
    end = fill[ENTRIES] + indices.size
    if event.reward == 0 or indices.size == 0 or n == model.labels.size or end > kept_values.size:
        return False
    for j in range(indices.size):
        kept_indices[fill[ENTRIES] + j] = indices[j]
        kept_values[fill[ENTRIES] + j] = values[j]
    model.labels[n] = event.action
    model.starts[n + 1] = end
    fill[EXAMPLES] = n + 1
    fill[ENTRIES] = end
    add_outer(model.inverses[0], event.x, 1.0)  # line 14
    refit(model)  # line 15
    return True


@register
class Selectron(KernelLearner):
    """Explores if x is far from all right answers; otherwise, plays the greedy class. Learns from right answers only.

    "Bandit Multiclass Classification" (the Notes), Algorithm 5, with (13) or (15); after Agarwal, ICML 2013.

        ‖x‖_{M⁻¹} ≥ ε:  ỹ uniform;  else ỹ = argmax_i (Wx)_i
        right, in either case:  M += xxᵀ;  W = argmin_{W∈Ω} Σ_s (Φ(Wx_s) - (Wx_s)_{y_s}) + ‖W‖²/(2η)
        wrong: nothing
        quadratic (13)  Φ(u) = ‖u‖²/(2(α+1)) + α/(α+1) Σ_i u_i, in closed form:
                        W_i = (I/η + Σ xxᵀ/(α+1))⁻¹ Σ_s ([i = y_s] - α/(α+1)) x_s
        logistic (15)   Φ(u) = ln Σ_i exp u_i,  Ω = {‖W_i‖ ≤ radius for all i}

    Symbols: W weights [K, d]; M [d, d], I at the start, stored as its inverse; ε `epsilon`, the paper's Δ/(2 γ_u C');
    η `eta`; α `alpha`, from the label model (12), in (-1, 1]; `radius` D in (14); ỹ the action.

    Delay: a late right answer is added to the same sums. M and the minimiser W do not depend on the order of the
    answers. An update does not depend on whether the action was exploratory.

    Retraction: with the quadratic loss, M and W are functions of two sums over the right answers. Up to rounding and in
    any order, M and W are the same as if the original update had used the real bit. With the logistic loss, the learner
    is not retractable.

    Memory: the logistic fit needs all examples. At most `support_max` right answers are stored, with a mean of at most
    256 entries. When the memory is full, later answers have no effect.

    Departures from the paper: for (13), Ω is the whole space, where the fit has a closed form; in the paper, Ω depends
    on every x_t. For (15), the support is limited, and the iterative fit stops at a step of 1e-11.

    >>> from stream.learners import create
    >>> learner = create("selectron", n_classes=2, n_features=2, epsilon=0.9)
    >>> x = np.array([0.6, 0.8])
    >>> decision = learner.predict(x, u=0.7)
    >>> decision.action, decision.propensity
    (1, 0.5)
    >>> learner.update(x, decision, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.2, -0.267], [0.2, 0.267]]
    >>> learner.predict(x, u=0.2)[:3]  # ‖x‖ is now √½
    (1, 1, 1.0)
    """

    name: ClassVar[str] = "selectron"
    summary: ClassVar[str] = "explores if x is unfamiliar; fits W to right answers"
    paper: ClassVar[str] = "Notes, Alg. 5"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("epsilon", 1.0, "exploration threshold for the norm of x in M⁻¹", low=0.0, can_change=True),
        Parameter("eta", 1.0, "inverse regularisation", low=1e-9, high=1e9),
        Parameter("loss", "quadratic", "the label model: (13) or (15)", choices=("quadratic", "logistic")),
        Parameter("alpha", 1.0, "spread of the scores, for the quadratic loss", low=-1.0, high=1.0, low_open=True),
        Parameter("radius", 10.0, "bound on the norm of each row, for the logistic loss", low=1e-9, high=1e9),
        Parameter(
            "support_max", 300, "maximum number of stored right answers, for the logistic loss", low=1, high=1_000_000
        ),
    )
    retractable: bool = True
    grows: bool = True
    kernels = Kernels(predict, update_quadratic, retract=retract_quadratic)

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        epsilon: float,
        eta: float,
        loss: str,
        alpha: float,
        radius: float,
        support_max: int,
    ) -> None:
        self.retractable = loss == "quadratic"  # a logistic fit cannot be reversed
        self.grows = loss == "quadratic"  # the memory for stored examples depends on the number of features
        W = np.zeros((n_classes, n_features))
        if loss == "quadratic":
            inverses = np.array([np.eye(n_features), eta * np.eye(n_features)])
            model = QuadraticModel(W, inverses, epsilon, alpha)
            super().__init__(n_classes, n_features, {"W": W, "inverses": inverses}, model)
            return
        inverses = np.eye(n_features)[np.newaxis].copy()
        entries = support_max * min(n_features, ENTRIES_PER_EXAMPLE)
        stored: dict[str, NDArray[Any]] = {
            "starts": np.zeros(support_max + 1, dtype=np.int32),
            "kept_indices": np.zeros(entries, dtype=np.int32),
            "kept_values": np.zeros(entries),
            "labels": np.zeros(support_max, dtype=np.int32),
            "fill": np.zeros(2, dtype=np.int32),
        }
        arrays = {"W": W, "inverses": inverses, **stored}
        fitted = LogisticModel(**arrays, epsilon=epsilon, eta=eta, radius=radius)
        super().__init__(n_classes, n_features, arrays, fitted, Kernels(predict, update_logistic))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of two rank-one changes or, with the logistic loss, one change and 200 fitting steps."""
        K, d = n_classes, n_features
        if parameters["loss"] == "quadratic":
            return Cost(
                flops_per_event=2 * nnz * (K + nnz + 2 * d) + 6 * d * d + 2 * K * d,
                bytes_per_event=8 * (nnz * (K + nnz + 2 * d) + 4 * d * d + 2 * K * d),
                state_bytes=8 * (2 * d * d + K * d),
            )
        support_max = int(parameters["support_max"])
        entries = support_max * min(d, ENTRIES_PER_EXAMPLE)
        pass_flops = 4 * support_max * nnz * K + 10 * K * d
        return Cost(
            flops_per_event=2 * nnz * (K + nnz + d) + 3 * d * d + 200 * pass_flops,
            bytes_per_event=8 * (nnz * (K + nnz + d) + 2 * d * d) + 200 * 12 * support_max * nnz,
            state_bytes=8 * (d * d + K * d) + 12 * entries + 8 * support_max + 12,
        )
