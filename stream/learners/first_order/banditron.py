"""Banditron: importance-weighted perceptron updates from one bit."""

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
    current_scores,
    kernel,
    linear_greedy,
    sample_epsilon_greedy,
    usable,
)
from stream.learners.registry import register
from stream.wire.records import FloatArray


class Model(NamedTuple):
    """The weights and the parameters; see `Banditron`."""

    W: FloatArray  # [K, d]
    gamma: float
    at_feedback: bool


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Explore uniformly with probability γ; otherwise, play the greedy class."""
    greedy = linear_greedy(event, model.W)
    action, propensity = sample_epsilon_greedy(greedy, event.scores, model.gamma, event.u)
    return action, greedy, propensity


@kernel
def update(event: Decided, model: Model) -> bool:
    """Apply W += U, where U_r = x ([reward = 1][r = action] / p_action - [r = greedy])."""
    greedy = event.greedy
    if not usable(event, *model.W.shape) or event.x.indices.size == 0:
        return False
    if model.at_feedback:
        greedy = argmax(current_scores(event, model.W))
    add_scaled(model.W, greedy, -1.0, event.x)
    if event.reward == 1:
        add_scaled(model.W, event.action, 1.0 / event.propensity, event.x)
    return True


@kernel
def retract(event: Decided, assumed_reward: int, model: Model) -> bool:
    """Apply W_action += x / p_action · (real reward - assumed reward)."""
    if not usable(event, *model.W.shape):
        return False
    add_scaled(model.W, event.action, (event.reward - assumed_reward) / event.propensity, event.x)
    return event.x.indices.size > 0


@register
class Banditron(KernelLearner):
    """Perceptron updates from one bit, correct in expectation.

    Kakade, Shalev-Shwartz, Tewari, "Efficient bandit algorithms for online multiclass prediction", ICML 2008.

        ŷ = argmax_r (Wx)_r;  p_r = (1-γ)[r = ŷ] + γ/K;  ỹ ~ p
        W_r += x ([ỹ = y][r = ỹ] / p_ỹ - [r = ŷ])

    Symbols: W weights [K, d]; γ `gamma`, the share of uniform exploration, in [0, 1]; ŷ greedy class; ỹ action; p_ỹ the
    action's propensity, at least γ/K. ŷ and ỹ may be the same class. Every round subtracts x from W_ŷ, whether the
    action is right or wrong.

    Delay: an update uses ỹ and p_ỹ from prediction time, because the estimate is unbiased only for the distribution
    from which the action was drawn. ŷ is the greedy class when the bit arrives (margin=feedback) or at prediction time
    (margin=decision). Without delay, both settings are the paper's algorithm. With long delays, margin=feedback is far
    more accurate, because updates do not repeat corrections that earlier updates have already made.

    Retraction: the bit contributes x / p_ỹ to the update. A retraction subtracts or adds this term. With
    margin=decision, W is a sum over the events. Given the same decisions, W is therefore, up to rounding, the same as
    if the original update had used the real bit. With margin=feedback, the intermediate updates used greedy classes
    that depended on the assumed bit.

    Departures from the paper: none.

    >>> from stream.learners import create
    >>> learner = create("banditron", n_classes=3, n_features=2, gamma=0.3)
    >>> decision = learner.predict(np.array([1.0, 2.0]), u=0.85)
    >>> decision.action, decision.greedy, round(decision.propensity, 3)
    (1, 0, 0.1)
    >>> learner.update(np.array([1.0, 2.0]), decision, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[-1.0, -2.0], [10.0, 20.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "banditron"
    summary: ClassVar[str] = "first-order, importance-weighted perceptron updates"
    best_for: ClassVar[str] = "exact retraction if late-ucb is too large"
    paper: ClassVar[str] = "Kakade, Shalev-Shwartz, Tewari 2008"
    supports_eligible: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "gamma",
            2**-3,
            "share of uniform exploration; use 0.005 to 0.015 for a stream of 10⁶ events",
            low=0.0,
            high=1.0,
            can_change=True,
        ),
        MARGIN,
    )
    from_logs: FromLogs = FromLogs.PROPENSITY
    grows: bool = True
    retractable: bool = True
    kernels = Kernels(predict, update, retract=retract)

    def __init__(self, n_classes: int, n_features: int, gamma: float, margin: str) -> None:
        W = np.zeros((n_classes, n_features))
        super().__init__(n_classes, n_features, {"W": W}, Model(W, gamma, margin == "feedback"))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of computing the scores (K·nnz products) and updating two rows."""
        return Cost(
            flops_per_event=2 * nnz * (n_classes + 2),
            bytes_per_event=8 * nnz * (n_classes + 4),
            state_bytes=8 * n_classes * n_features,
        )
