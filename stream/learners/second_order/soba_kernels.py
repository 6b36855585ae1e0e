"""SOBA's kernels: with the diagonal of A, with the full A, and with adaptive exploration."""

from math import sqrt

import numpy as np

from stream.learners.kernels import (
    argmax,
    argmax_except,
    check_event,
    compiled,
    current_scores,
    limit,
    linear_scores,
    sample_epsilon_greedy,
    usable,
)
from stream.wire.records import FloatArray, IndexArray


@compiled
def explore(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    eligible: IndexArray,
    W: FloatArray,
    sums: FloatArray,
    gamma: float,
) -> tuple[int, int, float]:
    """Explore uniformly with probability γ; otherwise, play the greedy class.

    soba-adaptive uses γ_t instead of γ. Only its `sums` contain a third value, the number of rounds.
    """
    check_event(indices, values, W.shape[1])
    linear_scores(indices, values, W, scores)
    limit(scores, eligible)
    greedy = argmax(scores)
    if sums.size > 2:
        gamma = min(1.0, sqrt(eligible.size * (1.0 + sums[1]) / (sums[2] + 1.0)))
    action, propensity = sample_epsilon_greedy(greedy, scores, gamma, u)
    return action, greedy, propensity


@compiled
def predict_diagonal(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    eligible: IndexArray,
    M: FloatArray,
    sums: FloatArray,
    gamma: float,
    at_feedback: bool,
) -> tuple[int, int, float]:
    """Return the action, the greedy class and the propensity."""
    return explore(indices, values, u, scores, eligible, M[0], sums, gamma)


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
    at_feedback: bool,
) -> bool:
    """Update as in lines 8 to 20 of Algorithm 1, with the diagonal of A."""
    W, theta, A = M[0], M[1], M[2]
    if not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    if reward == 0 or indices.size == 0:
        return False
    if at_feedback:
        scores = current_scores(indices, values, W, scores)
    rival = argmax_except(scores, action)  # line 9
    residual = 0.0  # zᵀA⁻¹z
    for j in range(indices.size):
        i = indices[j]
        # 1/A_ȳ + 1/A_y with a single division, because divisions account for half the time of an update.
        residual += values[j] * values[j] * ((A[rival, i] + A[action, i]) / (A[rival, i] * A[action, i]))
    residual /= propensity
    delta = scores[rival] - scores[action]
    m = (delta * delta + 2.0 * delta) / (propensity * (1.0 + residual))  # line 12
    if not abs(m) < np.inf or not sums[0] + m >= 0.0:  # line 13
        return False
    sums[0] += m
    sums[1] += residual / (1.0 + residual)
    for j in range(indices.size):
        i = indices[j]
        x = values[j]
        g = x / propensity
        A[rival, i] += x * g  # line 18: z² = x²/p
        A[action, i] += x * g
        theta[rival, i] -= g  # line 19
        theta[action, i] += g
        W[rival, i] = theta[rival, i] / A[rival, i]  # line 20
        W[action, i] = theta[action, i] / A[action, i]
    return True


@compiled
def predict_full(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    eligible: IndexArray,
    W: FloatArray,
    P: FloatArray,
    V: FloatArray,
    pending: IndexArray,
    sums: FloatArray,
    q: FloatArray,
    product: FloatArray,
    gamma: float,
    condition: bool,
    at_feedback: bool,
) -> tuple[int, int, float]:
    """Return the action, the greedy class and the propensity."""
    return explore(indices, values, u, scores, eligible, W, sums, gamma)


@compiled
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


@compiled
def update_full(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    reward: int,
    v: float,
    label: int,
    W: FloatArray,
    P: FloatArray,
    V: FloatArray,
    pending: IndexArray,
    sums: FloatArray,
    q: FloatArray,
    product: FloatArray,
    gamma: float,
    condition: bool,
    at_feedback: bool,
) -> bool:
    """Update as in lines 8 to 20 of Algorithm 1, with A⁻¹ = P - VᵀV."""
    K, d = W.shape
    if not usable(indices, values, action, propensity, scores, K, d):
        return False
    if reward == 0 or indices.size == 0:
        return False
    if at_feedback:
        scores = current_scores(indices, values, W, scores)
    rival = argmax_except(scores, action)  # line 9
    root = sqrt(propensity)
    plus, minus = rival * d, action * d  # z = (e_rival - e_action)⊗x/√p is zero outside these two blocks
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
        W_z += values[j] / root * (W[rival, i] - W[action, i])
    if not 0.0 <= residual < np.inf:
        return False
    delta = scores[rival] - scores[action]
    m = (delta * delta + 2.0 * delta) / (propensity * (1.0 + residual))  # line 12
    if not abs(m) < np.inf or (condition and not sums[0] + m >= 0.0):  # line 13
        return False
    sums[0] += m
    sums[1] += residual / (1.0 + residual)
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
        subtract_pending(P, V, product)
        pending[0] = 0
    return True


@compiled
def count_round_diagonal(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    M: FloatArray,
    sums: FloatArray,
    gamma: float,
    at_feedback: bool,
) -> None:
    """Count a round."""
    sums[2] += 1.0


@compiled
def count_round_full(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    W: FloatArray,
    P: FloatArray,
    V: FloatArray,
    pending: IndexArray,
    sums: FloatArray,
    q: FloatArray,
    product: FloatArray,
    gamma: float,
    condition: bool,
    at_feedback: bool,
) -> None:
    """Count a round."""
    sums[2] += 1.0
