"""Newtron, which takes online Newton steps on the log-loss, using one bit of feedback."""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from stream.learners.base import Cost, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import Kernels
from stream.learners.registry import register
from stream.learners.second_order.newtron_kernels import (
    DiagonalModel,
    FullModel,
    predict_diagonal,
    predict_full,
    retract_diagonal,
    retract_full,
    update_diagonal,
    update_full,
)
from stream.wire.records import FloatArray

PARAMETERS = (
    Parameter(
        "gamma",
        2**-5,
        "share of uniform exploration; use 0.005 to 0.015 for a stream of 10⁶ events",
        low=0.0,
        high=1.0,
        can_change=True,
    ),
    Parameter("alpha", 10.0, "sharpness of the softmax", low=0.0, high=1e6, low_open=True),
    Parameter("beta", 0.01, "weight of the second-order term", low=0.0, high=1e6),
    Parameter("radius", 1.0, "D, bound on the norm of the weights", low=0.0, high=1e9, low_open=True),
)


@register
class PNewtron(KernelLearner):
    """PNewtron: Newtron with the diagonal of A and the Euclidean projection.

    Hazan, Kale, "Newtron: an efficient bandit algorithm for online multiclass prediction", NIPS 2011, Algorithm 1
    and section 4.

        p = softmax(α W'x);  p' = (1-γ)p + γ/K;  ŷ ~ p'
        ŷ = y: G = (1-p_y)/p'_y (1/K - e_y)⊗x, κ = p'_y;  else: G = p_ŷ/p'_ŷ (e_ŷ - 1/K)⊗x, κ = 1
        A += κβ G² (elementwise), starting at I/D;  b += (1 - κβ G·W'_τ) G
        W'' = -b/A;  W' = W'' if ‖W''‖ ≤ D, else W'' D/‖W''‖

    Symbols: W' weights [K, d], projected; W'' [K, d] (array W); A diagonal [K, d]; b [K, d]; ‖W''‖² `norm`[0]; γ
    `gamma` in [0, 1]; α `alpha` sharpness, > 0; β `beta` second-order weight, ≥ 0; D `radius`, > 0; ŷ the action. Wrong
    actions also cause updates.

    Assumes that x is not scaled, as in the paper (binary x, ‖x‖ about 5). With α = 10 and D = 1, the softmax of
    unit-norm x is so flat that the error remains near 52% on SynSep. Make α proportional to 1/‖x‖.

    Delay: p, p' and G·W'_τ are the values at prediction time, by the definition of f_τ (G·W'_τ is computed from the
    logged scores). A and b are the current sums, so the order of updates does not matter.

    Retraction: A and b are sums over the events. Up to rounding relative to the largest term, the result is the same as
    if the original update had used the real bit, given the same decisions.

    Departures from the paper: none. W_τ in the paper's formula for b is interpreted as W'_τ, as the definition of f_t
    requires, and A starts at I/D. An update with a coefficient above 1e200 is rejected.

    >>> from stream.learners import create
    >>> learner = create("pnewtron", n_classes=2, n_features=2, gamma=0.5)
    >>> decision = learner.predict(np.array([1.0, 2.0]), u=0.6)
    >>> decision.action, decision.greedy, decision.propensity
    (1, 0, 0.5)
    >>> learner.update(np.array([1.0, 2.0]), decision, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.317, -0.632], [0.317, 0.632]]
    """

    name: ClassVar[str] = "pnewtron"
    summary: ClassVar[str] = "online Newton steps on the log-loss, diagonal"
    paper: ClassVar[str] = "Hazan, Kale 2011, sect. 4"
    parameters: ClassVar[tuple[Parameter, ...]] = PARAMETERS
    from_logs: FromLogs = FromLogs.PROPENSITY
    grows: bool = True
    retractable: bool = True
    kernels = Kernels(predict_diagonal, update_diagonal, retract=retract_diagonal)

    def __init__(self, n_classes: int, n_features: int, gamma: float, alpha: float, beta: float, radius: float) -> None:
        M = np.zeros((n_features, 3 * n_classes))
        W, A, b = (M[:, k : k + n_classes].T for k in (0, n_classes, 2 * n_classes))
        A[:] = 1.0 / radius
        norm = np.zeros(2)
        model = DiagonalModel(M, norm, gamma, alpha, beta, radius)
        super().__init__(n_classes, n_features, {"W": W, "A": A, "b": b, "norm": norm}, model)
        self.radius = radius

    def weights(self) -> FloatArray:
        """Return W', float64[K, d]."""
        norm = sqrt(self.arrays["norm"][0])
        weights: FloatArray = self.arrays["W"] * (self.radius / norm if norm > self.radius else 1.0)
        return weights

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing the scores (K·nnz products) and updating all rows in three arrays."""
        return Cost(
            flops_per_event=n_classes * (13 * nnz + 20),
            bytes_per_event=8 * nnz * n_classes * 7,
            state_bytes=8 * (3 * n_classes * n_features + 2),
        )


@register
class Newtron(KernelLearner):
    """Newtron: online Newton steps on the log-loss, with the full A and the projection in its norm.

    Hazan, Kale, "Newtron: an efficient bandit algorithm for online multiclass prediction", NIPS 2011, Algorithm 1.

        p = softmax(α W'x);  p' = (1-γ)p + γ/K;  ŷ ~ p'
        ŷ = y: G = (1-p_y)/p'_y (1/K - e_y)⊗x, κ = p'_y;  else: G = p_ŷ/p'_ŷ (e_ŷ - 1/K)⊗x, κ = 1
        A += κβ GGᵀ, starting at I/D;  b += (1 - κβ G·W'_τ) G
        W'' = -A⁻¹b;  W' = argmin_{‖W‖≤D} (W-W'')ᵀA(W-W'') = (A+λI)⁻¹AW'', λ = 0 or ‖W'‖ = D

    Symbols: W' weights [K, d] (array W); A [Kd, Kd]; b [Kd]; λ `shift`[0]; γ `gamma` in [0, 1]; α `alpha` sharpness,
    > 0; β `beta` second-order weight, ≥ 0; D `radius`, > 0; ŷ the action. Wrong actions also cause updates.

    The cost is cubic. The projection factorises A+λI 2 to 4 times per update, because λ changes with each update. An
    update takes about 10 ms at K·d = 400, and seconds at K·d = 3,600. Use pnewtron for large problems.

    For delay, assumptions about x, and retraction, see pnewtron.

    Departures from the paper: none. W_τ in the paper's formula for b is interpreted as W'_τ, as the definition of f_t
    requires, and A starts at I/D. ‖W'‖ equals D up to 1e-13 D. The greedy class is the first class whose score is
    within 1e-9 D‖x‖ of the highest score. It is reported, but it does not affect learning. An update is rejected if A
    would not be positive definite in float64, which happens if entries of x are 1e6 or larger.

    >>> from stream.learners import create
    >>> learner = create("newtron", n_classes=2, n_features=2, gamma=0.5)
    >>> decision = learner.predict(np.array([1.0, 2.0]), u=0.6)
    >>> learner.update(np.array([1.0, 2.0]), decision, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.316, -0.632], [0.316, 0.632]]
    """

    name: ClassVar[str] = "newtron"
    summary: ClassVar[str] = "online Newton steps on the log-loss, full matrix"
    paper: ClassVar[str] = "Hazan, Kale 2011, Alg. 1"
    parameters: ClassVar[tuple[Parameter, ...]] = PARAMETERS
    from_logs: FromLogs = FromLogs.PROPENSITY
    grows: bool = True
    retractable: bool = True
    instead: ClassVar[str] = "pnewtron, whose state is diagonal"
    kernels = Kernels(predict_full, update_full, retract=retract_full)

    def __init__(self, n_classes: int, n_features: int, gamma: float, alpha: float, beta: float, radius: float) -> None:
        size = n_classes * n_features
        arrays = {
            "W": np.zeros((n_classes, n_features)),
            "A": np.eye(size) / radius,
            "b": np.zeros(size),
            "shift": np.zeros(1),
        }
        model = FullModel(**arrays, gamma=gamma, alpha=alpha, beta=beta, D=radius)
        super().__init__(n_classes, n_features, arrays, model)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of three Cholesky factorisations per update, and the memory for A and three copies of A."""
        size = n_classes * n_features
        return Cost(
            flops_per_event=3 * (size**3 // 3 + 4 * size**2) + 2 * (n_classes * nnz) ** 2,
            bytes_per_event=8 * 12 * size**2,
            state_bytes=8 * 4 * size**2,
        )
