"""SOBA: second-order updates on correct rounds only."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from stream.events import Decision, Features, FloatArray, IndexArray
from stream.learners.base import Cost, KernelLearner, Parameter, register
from stream.learners.kernels import (
    argmax,
    argmax_except,
    check_event,
    compiled,
    linear_scores,
    sample_epsilon_greedy,
    usable,
)

GAMMA = Parameter("gamma", 2**-5, "share of rounds that explore uniformly", low=0.0, high=1.0)
A_START = Parameter("a", 1.0, "start of the diagonal of A", low=1e-9, high=1e9)


@compiled
def predict_diagonal(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    M: FloatArray,
    sums: FloatArray,
    gamma: float,
) -> tuple[int, int, float]:
    """Explore uniformly with probability γ, else play the greedy class."""
    W = M[0]
    check_event(indices, values, W.shape[1])
    linear_scores(indices, values, W, scores)
    greedy = argmax(scores)
    action, propensity = sample_epsilon_greedy(greedy, W.shape[0], gamma, u)
    return action, greedy, propensity


@compiled
def update_diagonal(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    reward: int,
    v: float,
    label: int,
    M: FloatArray,
    sums: FloatArray,
    gamma: float,
) -> bool:
    """Algorithm 1, lines 8 to 20, with the diagonal of A."""
    W, theta, A = M[0], M[1], M[2]
    if not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    if reward == 0 or indices.size == 0:
        return False
    rival = argmax_except(scores, action)  # line 9
    residual = 0.0  # zᵀA⁻¹z
    for j in range(indices.size):
        i = indices[j]
        residual += values[j] * values[j] / propensity * (1.0 / A[rival, i] + 1.0 / A[action, i])
    delta = scores[rival] - scores[action]
    m = (delta * delta + 2.0 * delta) / (propensity * (1.0 + residual))  # line 12
    if not abs(m) < np.inf or not sums[0] + m >= 0.0:  # line 13
        return False
    sums[0] += m
    for j in range(indices.size):
        i = indices[j]
        x = values[j]
        z_squared = x * x / propensity
        A[rival, i] += z_squared  # line 18
        A[action, i] += z_squared
        theta[rival, i] -= x / propensity  # line 19
        theta[action, i] += x / propensity
        W[rival, i] = theta[rival, i] / A[rival, i]  # line 20
        W[action, i] = theta[action, i] / A[action, i]
    return True


@register
class SobaDiag(KernelLearner):
    """SOBA with the diagonal of A: linear in the number of non-zeros.

    Beygelzimer, Orabona, Zhang, "Efficient online bandit multiclass learning with Õ(√T) regret", ICML 2017,
    Algorithm 1 and section 5 (SOBAdiag).

        ŷ = argmax_r (Wx)_r;  p_r = (1-γ)[r = ŷ] + γ/K;  ỹ ~ p;  only if ỹ = y:
        ȳ = argmax_{r≠y} (Wx)_r;  g = (1/p_y)(e_ȳ - e_y)⊗x;  z = √p_y g;  δ = (Wx)_ȳ - (Wx)_y
        m = (δ² + 2δ) / (p_y (1 + zᵀA⁻¹z));  only if m + Σ_{earlier updates} m_s ≥ 0:
        A += z² (elementwise);  θ -= g;  W = θ / A (elementwise)

    Symbols: W weights [K, d]; θ `theta` [K, d]; A diagonal [K, d], `a` at the start, > 0; Σ m_s `sums`[0]; γ `gamma` in
    [0, 1]; ŷ greedy class; ỹ action; ȳ the runner-up with respect to the true class (ŷ itself when an exploration hit).

    Under delay p_y, (Wx), and so ȳ and δ, are those of prediction time: the gradient is that of the decision, unbiased
    only over the distribution it was drawn from. A, θ and Σ m_s are the current ones, as the sums they are.

    Retraction: an update with an assumed reward of 0 did nothing, so the retraction makes the update now. A and θ are
    sums: as long as the condition on m does not bind, W is afterwards, to rounding, the one that had the real bit at
    that place; where it binds, the model is the one whose bit came now. An assumed 1 cannot be taken back (whether it
    updated is not known any more).

    Departures from the paper: none. An update whose m is not finite is refused.

    >>> from stream.learners import create
    >>> learner = create("soba-diag", n_classes=3, n_features=2, gamma=0.3)
    >>> decision = learner.predict(np.array([1.0, 2.0]), u=0.85)
    >>> decision.action, decision.greedy, round(decision.propensity, 3)
    (1, 0, 0.1)
    >>> learner.update(np.array([1.0, 2.0]), decision, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.909, -0.488], [0.909, 0.488], [0.0, 0.0]]
    """

    name: ClassVar[str] = "soba-diag"
    summary: ClassVar[str] = "second-order banditron, diagonal"
    paper: ClassVar[str] = "Beygelzimer, Orabona, Zhang 2017, Alg. 1"
    parameters: ClassVar[tuple[Parameter, ...]] = (GAMMA, A_START)
    retractable: ClassVar[bool] = True
    predict_kernel = staticmethod(predict_diagonal)
    update_kernel = staticmethod(update_diagonal)

    def __init__(self, n_classes: int, n_features: int, gamma: float, a: float) -> None:
        M, sums = np.zeros((3, n_classes, n_features)), np.zeros(1)
        M[2] = a
        super().__init__(n_classes, n_features, {"W": M[0], "theta": M[1], "A": M[2], "sums": sums}, (M, sums, gamma))

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int, v: float = 0.0
    ) -> bool:
        """Make the update that the assumed 0 left out."""
        return retract_by_updating(self, x, decision, assumed_reward, reward)

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """K·nnz products for the scores; two rows of three arrays updated."""
        return Cost(
            flops_per_event=2 * nnz * (n_classes + 10),
            bytes_per_event=8 * nnz * (n_classes + 12),
            state_bytes=8 * (3 * n_classes * n_features + 1),
        )


def retract_by_updating(
    learner: KernelLearner, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int
) -> bool:
    """Retract for a learner that does not move on wrong rounds: from an assumed 0 only."""
    if assumed_reward != 0:
        raise ValueError(f"{learner.name}: only an assumed reward of 0 can be taken back; got {assumed_reward!r}")
    return learner.update(x, decision, reward)
