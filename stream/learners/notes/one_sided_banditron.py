"""One-sided banditron, which learns only from mistakes, does not explore, and projects the weights."""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np

from stream.learners.base import Cost, KernelLearner, Parameter
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    add_scaled,
    argmax,
    check_event,
    compiled,
    kernel,
    linear_scores,
    squared_length,
    subroutine,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import FloatArray

TOLERANCE = 1e-13
"""Dykstra's algorithm stops when no entry of W changes by more than this multiple of the radius in one cycle. The value
is ten times the rounding error, and far below the tolerance of 1e-9 with which tests compare weights.
"""

CYCLES_MAX = 10_000
"""Limit on the number of cycles. Usually, 1 cycle suffices if no ball constrains W. Otherwise, 10 to 100 cycles are
needed."""


@subroutine
def _centre(W: FloatArray) -> None:
    """Subtract the mean row, which gives the nearest W with Σ_i W_i = 0."""
    K = W.shape[0]
    for j in range(W.shape[1]):
        total = 0.0
        for i in range(K):
            total += W[i, j]
        mean = total / K
        for i in range(K):
            W[i, j] -= mean


@compiled
def project(W: FloatArray, radius: float) -> None:
    """Replace W with the nearest matrix with ‖W_i‖ ≤ radius and Σ_i W_i = 0 (Dykstra's alternating projections).

    Plain alternating projections converge to a point in both sets, but not necessarily to the nearest one. Dykstra's
    algorithm adds the previous correction before each projection onto the balls. The projection onto the subspace needs
    no correction.
    """
    K, d = W.shape
    _centre(W)
    inside = True
    for i in range(K):
        inside = inside and sqrt(squared_length(W[i])) <= radius
    if inside:
        return  # the nearest point in the subspace is in the balls, and is therefore the nearest point in both sets
    correction = np.zeros((K, d))
    for _ in range(CYCLES_MAX):
        moved = 0.0
        before = W.copy()
        for i in range(K):
            for j in range(d):
                W[i, j] += correction[i, j]
            norm = sqrt(squared_length(W[i]))
            scale = radius / norm if norm > radius else 1.0
            for j in range(d):
                correction[i, j] = W[i, j] * (1.0 - scale)
                W[i, j] *= scale
        _centre(W)
        for i in range(K):
            for j in range(d):
                moved = max(moved, abs(W[i, j] - before[i, j]))
        if moved <= TOLERANCE * radius:
            return


class Model(NamedTuple):
    """The weights and the parameters; see `OneSidedBanditron`."""

    W: FloatArray  # [K, d]
    eta: float
    radius: float


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Play the greedy class (line 5)."""
    check_event(event.x, model.W.shape[1])
    linear_scores(event.x, model.W, event.scores)
    greedy = argmax(event.scores)
    return greedy, greedy, 1.0


@kernel
def update(event: Decided, model: Model) -> bool:
    """After a mistake, decrease the score of the action's class for x, and project W (lines 7-8)."""
    if not usable(event, *model.W.shape):
        return False
    if event.reward == 1 or event.x.indices.size == 0:
        return False
    add_scaled(model.W, event.action, -model.eta, event.x)  # line 7
    project(model.W, model.radius)  # line 8
    return True


@register
class OneSidedBanditron(KernelLearner):
    """Decreases the score of a wrong action, and projects the weights. Never explores, and needs no true label.

    "Bandit Multiclass Classification" (the Notes), Algorithm 4. The set Ω follows from the sum-to-zero assumption.

        ŷ = argmax_i (Wx)_i;  if ŷ ≠ y:  W = Π(W - η e_ŷ xᵀ)
        Π: the nearest point, in the Frobenius norm, of Ω = {‖W_i‖ ≤ R for all i, Σ_i W_i = 0}

    Symbols: W weights [K, d]; η `eta`, > 0; R `radius`, 1 in the paper; ŷ the action, which is the greedy class.

    The bound of ‖W*‖² sup‖x‖²/Δ² mistakes at η = Δ/sup‖x‖² assumes a W* in Ω with (W*x)_i ≤ -Δ for all i ≠ y. If no
    such W* exists, the learner may never recover.

    Delay: the class whose score is decreased is the action at prediction time. The step starts from the current W.

    Departures from the paper: none. The projection is exact to 1e-10 of the radius (tested).

    >>> from stream.learners import create
    >>> learner = create("one-sided-banditron", n_classes=2, n_features=2, eta=0.1)
    >>> x = np.array([1.0, 2.0])
    >>> learner.update(x, learner.predict(x, u=0.5), reward=0)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.05, -0.1], [0.05, 0.1]]
    """

    name: ClassVar[str] = "one-sided-banditron"
    summary: ClassVar[str] = "decreases the scores of wrong actions and projects W; never explores"
    paper: ClassVar[str] = "Notes, Alg. 4"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "eta",
            0.1,
            "step size; the mistake bound uses Δ/sup‖x‖²",
            low=0.0,
            low_open=True,
            high=1e6,
            can_change=True,
        ),
        Parameter("radius", 1.0, "bound on the norm of each row", low=0.0, low_open=True, high=1e6),
    )
    grows: bool = True
    kernels = Kernels(predict, update)

    def __init__(self, n_classes: int, n_features: int, eta: float, radius: float) -> None:
        W = np.zeros((n_classes, n_features))
        super().__init__(n_classes, n_features, {"W": W}, Model(W, eta, radius))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing the scores (K·nnz products) and, after a mistake, projecting W."""
        return Cost(
            flops_per_event=2 * nnz * (n_classes + 1) + 12 * n_classes * n_features,
            bytes_per_event=8 * nnz * (n_classes + 2) + 8 * 5 * n_classes * n_features,
            state_bytes=8 * n_classes * n_features,
        )
