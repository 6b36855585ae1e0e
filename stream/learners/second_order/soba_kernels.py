"""SOBA's kernels: with the diagonal of A, with the full A, and with adaptive exploration."""

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.kernels import (
    Decided,
    Event,
    argmax_except,
    current_scores,
    kernel,
    linear_greedy,
    sample_epsilon_greedy,
    subroutine,
    usable,
)
from stream.wire.records import FloatArray


class DiagonalModel(NamedTuple):
    """The model with the diagonal of A; see `SobaDiag`."""

    W: FloatArray  # [K, d]
    theta: FloatArray  # [K, d]
    A: FloatArray  # [K, d]
    sums: FloatArray  # Σ m, Σ ρ/(1+ρ) and, for soba-adaptive only, the number of rounds
    gamma: float
    at_feedback: bool


class FullModel(NamedTuple):
    """The model with the full A, stored as its inverse P − VᵀV; see `Soba`."""

    W: FloatArray  # [K, d]
    P: FloatArray  # [Kd, Kd]
    V: FloatArray  # [64, Kd]
    pending: NDArray[np.int64]  # [1], the number of rows of V in use
    sums: FloatArray  # as in `DiagonalModel`
    q: FloatArray  # [Kd], scratch space
    product: FloatArray  # [128, Kd] or fewer rows, scratch space
    gamma: float
    condition: bool
    at_feedback: bool


@kernel
def predict(event: Event, model: DiagonalModel | FullModel) -> tuple[int, int, float]:
    """Explore uniformly with probability γ; otherwise, play the greedy class.

    soba-adaptive uses γ_t instead of γ.
    """
    gamma, sums = model.gamma, model.sums
    greedy = linear_greedy(event, model.W)
    if sums.size > 2:
        gamma = min(1.0, sqrt(event.eligible.size * (1.0 + sums[1]) / (sums[2] + 1.0)))
    action, propensity = sample_epsilon_greedy(greedy, event.scores, gamma, event.u)
    return action, greedy, propensity


@kernel
def count_round(event: Decided, model: DiagonalModel | FullModel) -> None:
    """Count a round."""
    model.sums[2] += 1.0


@kernel
def update_diagonal(event: Decided, model: DiagonalModel) -> bool:
    """Update as in lines 8 to 20 of Algorithm 1, with the diagonal of A."""
    indices, values = event.x
    scores = event.scores
    W, theta, A = model.W, model.theta, model.A
    if not usable(event, *W.shape):
        return False
    if event.reward == 0 or indices.size == 0:
        return False
    if model.at_feedback:
        scores = current_scores(event, W)
    rival = argmax_except(scores, event.action)  # line 9
    residual = 0.0  # zᵀA⁻¹z
    for j in range(indices.size):
        i = indices[j]
        # 1/A_ȳ + 1/A_y with a single division, because divisions account for half the time of an update.
        residual += values[j] * values[j] * ((A[rival, i] + A[event.action, i]) / (A[rival, i] * A[event.action, i]))
    residual /= event.propensity
    delta = scores[rival] - scores[event.action]
    m = (delta * delta + 2.0 * delta) / (event.propensity * (1.0 + residual))  # line 12
    if not abs(m) < np.inf or not model.sums[0] + m >= 0.0:  # line 13
        return False
    model.sums[0] += m
    model.sums[1] += residual / (1.0 + residual)
    for j in range(indices.size):
        i = indices[j]
        x = values[j]
        g = x / event.propensity
        A[rival, i] += x * g  # line 18: z² = x²/p
        A[event.action, i] += x * g
        theta[rival, i] -= g  # line 19
        theta[event.action, i] += g
        W[rival, i] = theta[rival, i] / A[rival, i]  # line 20
        W[event.action, i] = theta[event.action, i] / A[event.action, i]
    return True


@subroutine
def subtract_pending(P: FloatArray, V: FloatArray, product: FloatArray) -> None:
    """Apply P -= VᵀV in blocks of rows."""
    size, rows = P.shape[0], product.shape[0]
    for start in range(0, size, rows):
        stop = min(start + rows, size)
        part = product[: stop - start]
        np.dot(np.ascontiguousarray(V[:, start:stop].T), V, part)
        for i in range(start, stop):
            for j in range(size):
                P[i, j] -= part[i - start, j]


@kernel
def update_full(event: Decided, model: FullModel) -> bool:
    """Update as in lines 8 to 20 of Algorithm 1, with A⁻¹ = P - VᵀV."""
    indices, values = event.x
    W, P, V, pending, q = model.W, model.P, model.V, model.pending, model.q
    scores = event.scores
    K, d = W.shape
    if not usable(event, K, d):
        return False
    if event.reward == 0 or indices.size == 0:
        return False
    if model.at_feedback:
        scores = current_scores(event, W)
    rival = argmax_except(scores, event.action)  # line 9
    root = sqrt(event.propensity)
    plus, minus = rival * d, event.action * d  # z = (e_rival - e_action)⊗x/√p is zero outside these two blocks
    q[:] = 0.0  # A⁻¹z
    for j in range(indices.size):
        z = values[j] / root
        row_plus, row_minus = P[plus + indices[j]], P[minus + indices[j]]
        for n in range(q.size):
            q[n] += z * (row_plus[n] - row_minus[n])
    for r in range(pending[0]):
        overlap = 0.0
        for j in range(indices.size):
            overlap += values[j] / root * (V[r, plus + indices[j]] - V[r, minus + indices[j]])
        for n in range(q.size):
            q[n] -= overlap * V[r, n]
    residual = 0.0  # zᵀA⁻¹z
    W_z = 0.0
    for j in range(indices.size):
        i = indices[j]
        residual += values[j] / root * (q[plus + i] - q[minus + i])
        W_z += values[j] / root * (W[rival, i] - W[event.action, i])
    if not 0.0 <= residual < np.inf:
        return False
    delta = scores[rival] - scores[event.action]
    m = (delta * delta + 2.0 * delta) / (event.propensity * (1.0 + residual))  # line 12
    if not abs(m) < np.inf or (model.condition and not model.sums[0] + m >= 0.0):  # line 13
        return False
    model.sums[0] += m
    model.sums[1] += residual / (1.0 + residual)
    # Lines 18 to 20 combined. By Sherman-Morrison, the new A⁻¹ is A⁻¹ - qqᵀ/(1 + zᵀq). With θ = AW and g = z/√p, the
    # product of the new A⁻¹ and θ - g is W - q(1/√p + ⟨W,z⟩)/(1 + zᵀq), where ⟨W,z⟩ uses the current W.
    step = (1.0 / root + W_z) / (1.0 + residual)
    scale = 1.0 / sqrt(1.0 + residual)
    flat = W.reshape(K * d)
    for n in range(q.size):
        flat[n] -= step * q[n]
        V[pending[0], n] = scale * q[n]
    pending[0] += 1
    if pending[0] == V.shape[0]:
        subtract_pending(P, V, model.product)
        pending[0] = 0
    return True
