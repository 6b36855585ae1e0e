"""KWIK Banditron, which explores if x is unfamiliar and W is far from a known comparator. For simulations only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np

from stream.learners.base import Cost, KernelLearner, Parameter, ParameterError
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    argmax,
    argmax_except,
    check_event,
    kernel,
    linear_scores,
    sample_epsilon_greedy,
    squared_length,
    squared_norm,
    symmetric_product,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import FloatArray

STEP = 0.125
"""The step size η in line 14."""


class Model(NamedTuple):
    """The weights, the inverse of M, and the parameters; see `KwikBanditron`."""

    W: FloatArray  # [K, d]
    M_inv: FloatArray  # [d, d]
    comparator: FloatArray  # [K, d], or [0, d] without a comparator
    epsilon: float
    radius: float


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Explore or play the greedy class (lines 7-10). A comparator without rows is treated as far from W."""
    W, comparator = model.W, model.comparator
    check_event(event.x, W.shape[1])
    linear_scores(event.x, W, event.scores)
    greedy = argmax(event.scores)
    distance_sq = 0.0
    for k in range(comparator.shape[0]):
        for j in range(W.shape[1]):
            difference = W[k, j] - comparator[k, j]
            distance_sq += difference * difference
    if comparator.shape[0] == 0:
        distance_sq = 1.0
    if sqrt(squared_norm(model.M_inv, event.x)) >= model.epsilon and distance_sq >= 1.0:  # line 7
        action, propensity = sample_epsilon_greedy(greedy, event.scores, 1.0, event.u)
        return action, greedy, propensity
    return greedy, greedy, 1.0


@kernel
def update(event: Decided, model: Model) -> bool:
    """After a right answer, update M and take a gradient step (lines 12-15)."""
    indices, values = event.x
    W, M_inv = model.W, model.M_inv
    if not usable(event, *W.shape):
        return False
    if event.reward == 0 or indices.size == 0:
        return False
    current = np.empty(W.shape[0])
    linear_scores(event.x, W, current)
    rival = argmax_except(current, event.action)
    hinge = 1.0 - current[event.action] + current[rival]
    loss = hinge * hinge
    if not hinge > 0.0 or not loss < np.inf:
        return False
    z = symmetric_product(M_inv, event.x)  # M⁻¹x
    norm_sq = 0.0
    for a in range(indices.size):
        norm_sq += values[a] * z[indices[a]]
    root = sqrt(loss / (1.0 + loss * norm_sq))
    for i in range(z.size):
        row = M_inv[i]
        left = root * z[i]
        for j in range(z.size):
            row[j] -= left * (root * z[j])  # line 13
    for a in range(indices.size):
        W[event.action, indices[a]] += STEP * 2.0 * hinge * values[a]  # line 14
        W[rival, indices[a]] -= STEP * 2.0 * hinge * values[a]
    for k in (event.action, rival):
        length_sq = squared_length(W[k])
        shrink = min(1.0, model.radius / sqrt(length_sq)) if length_sq > 0.0 else 1.0
        for j in range(W.shape[1]):
            W[k, j] *= shrink  # line 15
    return True


@dataclass(frozen=True, slots=True)
class MatrixParameter(Parameter):
    """A parameter that is a matrix: an array, a list of rows, or JSON text. It is stored as JSON, without rounding."""

    def accepted(self) -> str:
        """Describe the accepted values."""
        return "a matrix with n_classes rows and n_features columns (array, list of rows, or JSON), or an empty string"

    def _converted(self, value: object) -> float | int | str | None:
        if isinstance(value, str) and not value:
            return value
        try:
            matrix = np.array(json.loads(value) if isinstance(value, str) else value, dtype=np.float64)
        except (TypeError, ValueError):
            return None
        return json.dumps(matrix.tolist()) if matrix.ndim == 2 and np.isfinite(matrix).all() else None


@register
class KwikBanditron(KernelLearner):
    """Explores if x is unfamiliar and W is far from a known comparator. Right answers trigger gradient steps.

    "Bandit Multiclass Classification" (the Notes), Algorithm 6.

        ‖x‖_{M⁻¹} ≥ ε and ‖W - W*‖_F ≥ 1:  ỹ uniform;  else ỹ = argmax_i (Wx)_i
        right, in either case, with h = [1 - (Wx)_y + max_{r≠y} (Wx)_r]_+:
        M += h² xxᵀ;  W = Π(W - ⅛ ∇h²),  ∇h² = 2h (e_r - e_y) xᵀ,  Π: every row into the ball of radius D
        wrong: nothing

    Symbols: W weights [K, d]; M [d, d], I at the start, stored as its inverse; W* `comparator` [K, d], with h = 0 on
    every x, known only in simulations; ε `epsilon`, where 0 means Lemma 13's 1/(4D √(32 K³ D⁴)); D `radius`, ≥ 2; ỹ the
    action; r the strongest rival, the lowest class in case of a tie.

    Assumes ‖x‖ ≤ 1; the learner does not scale x.

    Without a comparator, ‖W - W*‖_F ≥ 1 is always assumed, so that line 7 depends only on x and the learner explores
    longer. Such a learner can run on data without a known comparator, but the paper's lemmas require W*.

    Delay: the loss h² and its gradient are computed from the current W, because a gradient step must start where its
    gradient was computed. The update uses the decision's action, but no other field of the decision.

    Departures from the paper: a rule for a missing comparator is added.

    >>> from stream.learners import create
    >>> learner = create("kwik-banditron", n_classes=2, n_features=2, comparator=[[0.0, 2.0], [0.0, -2.0]])
    >>> x = np.array([0.0, 1.0])
    >>> decision = learner.predict(x, u=0.3)
    >>> decision.action, decision.propensity
    (0, 0.5)
    >>> learner.update(x, decision, reward=1)
    True
    >>> learner.weights().tolist()
    [[0.0, 0.25], [0.0, -0.25]]
    """

    name: ClassVar[str] = "kwik-banditron"
    summary: ClassVar[str] = "explores if W is far from a known comparator; for simulations"
    best_for: ClassVar[str] = "simulations with a known comparator"
    paper: ClassVar[str] = "Notes, Alg. 6"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "epsilon",
            0.0,
            "exploration threshold for the norm of x in M⁻¹; 0 selects Lemma 13",
            low=0.0,
            can_change=True,
        ),
        Parameter("radius", 2.0, "D, bound on the norm of each row", low=2.0, high=1e6),
        MatrixParameter("comparator", "", "W*, a matrix that separates the data with margin 1; simulations only"),
    )
    grows: bool = True
    kernels = Kernels(predict, update)

    def __init__(self, n_classes: int, n_features: int, epsilon: float, radius: float, comparator: str) -> None:
        rows = np.array(json.loads(comparator), dtype=np.float64) if comparator else np.zeros((0, n_features))
        if comparator and rows.shape != (n_classes, n_features):
            raise ParameterError(
                f"{self.name}: parameter comparator must be a matrix with {n_classes} rows and {n_features} columns; "
                f"got {rows.shape[0]} rows and {rows.shape[1]} columns"
            )
        if epsilon == 0.0:
            epsilon = 1.0 / (4.0 * radius * sqrt(32.0 * n_classes**3 * radius**4))  # Lemma 13
        W = np.zeros((n_classes, n_features))
        M_inv = np.eye(n_features)
        super().__init__(n_classes, n_features, {"W": W, "M_inv": M_inv}, Model(W, M_inv, rows, epsilon, radius))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing x's norm and the distance to the comparator, and of changing the inverse."""
        K, d = n_classes, n_features
        return Cost(
            flops_per_event=2 * nnz * (K + nnz + d) + 3 * K * d + 3 * d * d,
            bytes_per_event=8 * (nnz * (K + nnz + d) + 2 * K * d + 2 * d * d),
            state_bytes=8 * (K * d + d * d),
        )
