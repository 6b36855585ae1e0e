"""rdue, online gradient descent on the logistic loss. Randomized decoding chooses the class."""

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np

from stream.learners.base import Cost, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    add_scaled,
    argmax,
    check_event,
    kernel,
    linear_scores,
    norm_of,
    sample_from,
    softmax,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import FloatArray

SQUARES_START = 1e-8
"""Constant from the paper's appendix H.1 that prevents a division by zero in the first step."""


class Model(NamedTuple):
    """The weights, the sum of squared gradients and B, and the parameter q; see `Rdue`."""

    W: FloatArray  # [K, d]
    rest: FloatArray  # Σ‖Ĝ‖², B
    q: float


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Sample a class with algorithm 2, which includes algorithm 1. The same u determines both draws."""
    check_event(event.x, model.W.shape[1])
    linear_scores(event.x, model.W, event.scores)
    K = event.scores.size
    played = softmax(event.scores)  # ŷ_Ω(θ) in Proposition 2.2, where Ω is the negative entropy on the simplex
    nearest = argmax(event.scores)
    doubt = min(1.0, 2.0 * (1.0 - played[nearest]))  # 2Δ*/ν, where Δ* = 2(1 - ŷ_nearest) and ν = 2
    for k in range(K):
        decoded = doubt * played[k] + (1.0 - doubt if k == nearest else 0.0)
        played[k] = (1.0 - model.q) * decoded + model.q / K
    action = sample_from(played, event.u)
    return action, nearest, played[action]


@kernel
def update(event: Decided, model: Model) -> bool:
    """Apply W −= η Ĝ with Ĝ = [right] (ŷ_Ω(θ) − e_action) xᵀ / p_action and η = B/√(2 (1e-8 + Σ‖Ĝ‖²))."""
    W = model.W
    if event.reward == 0 or not usable(event, *W.shape):
        return False
    residual = softmax(event.scores)
    residual[event.action] -= 1.0
    size = norm_of(residual) * norm_of(event.x.values) / event.propensity
    squares = model.rest[0] + size * size
    if not (size > 0.0 and squares < inf):  # there is nothing to learn, or float64 would overflow
        return False
    model.rest[0] = squares
    eta = model.rest[1] / sqrt(2.0 * (SQUARES_START + squares))
    for k in range(residual.size):
        add_scaled(W, k, -eta * residual[k] / event.propensity, event.x)
    return True


@register
class Rdue(KernelLearner):
    """Gradient descent on the logistic loss, with randomized decoding and uniform exploration (RDUE).

    Shibukawa, Tsuchiya, Sakaue, Yamanishi, "Bandit and delayed feedback in online structured prediction", NeurIPS 2025:
    the algorithm in appendix G.3.1 for variable delays, which combines algorithms 1, 2 and 4, for multiclass
    classification with the logistic loss. Without delay, it is the algorithm in section 3.3.

        θ = Wx;  ŷ = softmax(θ);  y* = argmax ŷ;  p = min{1, 2 (1 - ŷ_y*)}
        play ỹ: with probability q uniform, else with probability p a draw from ŷ, else y*        (algorithms 1 and 2)
        when the bit arrives: Ĝ = [ỹ = y] (ŷ - e_ỹ) xᵀ / p_ỹ;  W -= B Ĝ / √(2 (1e-8 + Σ‖Ĝ‖²))   (sections 3.2 and 3.3)

    Symbols: W weights [K, d]; θ scores [K]; q the share of uniform exploration; B `diameter`, the diameter of the set
    of comparators; p_ỹ the propensity; Σ the sum over the feedback so far. A wrong action changes nothing.

    With delay, each bit causes one step when it arrives, in order of arrival, using ŷ, ỹ and p_ỹ from prediction time
    (algorithm 4). The paper sets q = B √(K/T); the default q corresponds to B = 10, K = 10 and T = 10⁵.

    Departures from the paper: late bits also use the learning rate from section 3.2, with the constants from the
    paper's experiments (appendix H.1: 1e-8, B = 10, no projection). The rate in lemma G.1 is not used, because its
    formula is missing from the available copy of the paper.

    >>> from stream.learners import create
    >>> learner = create("rdue", n_classes=2, n_features=1, q=0.5, diameter=1.0)
    >>> decision = learner.predict(np.array([1.0]), u=0.7)
    >>> decision.action, round(decision.propensity, 3)
    (1, 0.5)
    >>> learner.update(np.array([1.0]), decision, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.5], [0.5]]
    """

    name: ClassVar[str] = "rdue"
    summary: ClassVar[str] = "gradient steps on the logistic loss; randomized decoding chooses the class"
    paper: ClassVar[str] = "Shibukawa, Tsuchiya, Sakaue, Yamanishi 2025, Alg. 1, 2, 4"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("q", 0.1, "share of rounds with uniform exploration", low=0.0, high=1.0, can_change=True),
        Parameter("diameter", 10.0, "diameter of the set of weights; steps are proportional to it", low=0.0, high=1e6),
    )
    from_logs: FromLogs = FromLogs.PROPENSITY
    grows: bool = True
    kernels = Kernels(predict, update)

    def __init__(self, n_classes: int, n_features: int, q: float, diameter: float) -> None:
        W, rest = np.zeros((n_classes, n_features)), np.array([0.0, diameter])
        super().__init__(n_classes, n_features, {"W": W, "rest": rest}, Model(W, rest, q))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of K·nnz products for the scores and K·nnz products for a step."""
        return Cost(
            flops_per_event=4 * nnz * n_classes,
            bytes_per_event=8 * nnz * 3 * n_classes,
            state_bytes=8 * (n_classes * n_features + 2),
        )
