"""Newtron's kernels: the softmax and its gradient, and the steps with the diagonal of A and with the full A."""

from math import exp, sqrt
from typing import NamedTuple

import numpy as np

from stream.learners.kernels import (
    Decided,
    Event,
    argmax,
    bounded,
    check_event,
    kernel,
    linear_scores,
    norm_of,
    sample_from,
    squared_length,
    subroutine,
    usable,
)
from stream.wire.records import FloatArray

STEP_MAX = 1e200
"""Updates with a larger coefficient are rejected, because a coefficient times an entry of x could overflow float64."""

NORM_REFRESH_UPDATES = 1024
"""Number of updates after which pnewtron recomputes ‖W''‖², which is otherwise maintained incrementally. The rounding
error of 1024 changes is about 1e-13 of the norm. For 4,000 weights, recomputation adds less than 1% to the cost. The
counter is part of the state, so that a restored model behaves identically.
"""

NORM_TOLERANCE = 1e-13
"""Relative tolerance for ‖W'‖ = D in newtron's projection. It is a hundred times the rounding error of the norm."""

TIE_TOLERANCE = 1e-9
"""Two scores in newtron tie if they differ by at most this share of the largest possible score, D‖x‖. Without rounding,
classes with the same history, for example classes that have not been played, would have equal scores. The tolerance
affects only the greedy class.
"""

PROJECTION_STEPS_MAX = 100
"""Limit on Newton iterations for the secular equation. Usually, 2 to 8 iterations suffice. The limit applies if
rounding prevents convergence.
"""


class DiagonalModel(NamedTuple):
    """The model with the diagonal of A; see `PNewtron`."""

    M: FloatArray  # [d, 3K]; row i contains W'', A and b of feature i, so that an event accesses a few whole rows
    norm: FloatArray  # ‖W''‖², and the number of updates since it was recomputed
    gamma: float
    alpha: float
    beta: float
    D: float


class FullModel(NamedTuple):
    """The model with the full A; see `Newtron`."""

    W: FloatArray  # [K, d]
    A: FloatArray  # [Kd, Kd]
    b: FloatArray  # [Kd]
    shift: FloatArray  # [1], λ
    gamma: float
    alpha: float
    beta: float
    D: float


@subroutine
def sample_softmax(scores: FloatArray, alpha: float, gamma: float, u: float) -> tuple[int, float]:
    """Sample from p' = (1-γ) softmax(α s) + γ/K, and return the action and its propensity."""
    K = scores.size
    p = np.empty(K)
    top = scores[argmax(scores)]
    total = 0.0
    for k in range(K):
        p[k] = exp(alpha * (scores[k] - top))
        total += p[k]
    softened, uniform = (1.0 - gamma) / total, gamma / K
    for k in range(K):
        p[k] = softened * p[k] + uniform  # line 4
    action = sample_from(p, u)
    return action, p[action]


@subroutine
def gradient(event: Decided, reward: float, alpha: float, beta: float) -> tuple[float, float, float, float]:
    """Return h in G = h⊗x (for the action, then for all other classes), κβ and 1 - κβ G·W_τ (lines 7 to 12).

    All values are those at prediction time.
    """
    action, scores = event.action, event.scores
    K = scores.size
    top = scores[argmax(scores)]
    total, others = 0.0, 0.0
    for k in range(K):
        total += exp(alpha * (scores[k] - top))
        if k != action:
            others += scores[k]
    p = exp(alpha * (scores[action] - top)) / total
    if reward == 1:
        c = -(1.0 - p) / event.propensity
        curvature = event.propensity * beta
    else:
        c = p / event.propensity
        curvature = beta
    h_action, h_other = c * (1.0 - 1.0 / K), -c / K
    G_W = h_action * scores[action] + h_other * others  # G·W_τ = Σ_k h_k ⟨W_τ,k, x⟩
    return h_action, h_other, curvature, 1.0 - curvature * G_W


@kernel
def predict_diagonal(event: Event, model: DiagonalModel) -> tuple[int, int, float]:
    """Sample from the softmax of the projected weights, mixed with γ."""
    indices, values = event.x
    M = model.M
    scores = event.scores
    norm_sq, D = model.norm[0], model.D
    K = scores.size
    check_event(event.x, M.shape[0])
    scores[:] = 0.0
    for j in range(indices.size):
        i = indices[j]
        for k in range(K):
            scores[k] += M[i, k] * values[j]
    scale = D / sqrt(norm_sq) if norm_sq > D * D else 1.0
    for k in range(K):
        scores[k] = bounded(scores[k]) * scale
    action, propensity = sample_softmax(scores, model.alpha, model.gamma, event.u)
    return action, argmax(scores), propensity


@subroutine
def accumulate_diagonal(event: Decided, reward: float, sign: float, model: DiagonalModel) -> bool:
    """Add a round's contribution to A and b (sign 1) or subtract it (sign -1), and update W'' and its norm."""
    indices, values = event.x
    M, norm, action = model.M, model.norm, event.action
    d, K = M.shape[0], M.shape[1] // 3
    if not usable(event, K, d) or indices.size == 0:
        return False
    h_action, h_other, curvature, factor = gradient(event, reward, model.alpha, model.beta)
    if h_action == 0.0 or not abs(factor * h_action) < STEP_MAX:
        return False
    square, step = sign * (curvature * h_other * h_other), sign * (factor * h_other)
    square_action, step_action = sign * (curvature * h_action * h_action), sign * (factor * h_action)
    floor = 1.0 / model.D  # A is at least I/D, except for rounding in a subtraction
    change = 0.0
    changes = np.zeros(K)
    for j in range(indices.size):
        i = indices[j]
        x = values[j]
        w_action = M[i, action]
        a_action = max(M[i, K + action] + square_action * (x * x), floor)
        b_action = M[i, 2 * K + action] + step_action * x
        # Every class is treated as not played, and the action's entry is then overwritten. A uniform loop is vectorised
        # with numpy's division, which has no branch for a zero divisor. This saves 0.1 µs per update.
        for k in range(K):
            a = max(M[i, K + k] + square * (x * x), floor)
            b = M[i, 2 * K + k] + step * x
            new, old = np.divide(-b, a), M[i, k]
            M[i, k], M[i, K + k], M[i, 2 * K + k] = new, a, b
            changes[k] += new * new - old * old
        new = -b_action / a_action
        M[i, action], M[i, K + action], M[i, 2 * K + action] = new, a_action, b_action
        change += new * new - w_action * w_action
    for k in range(K):
        if k != action:
            change += changes[k]
    norm[0] += change
    norm[1] += 1.0
    if norm[1] == NORM_REFRESH_UPDATES:
        norm[1] = 0.0
        norm[0] = 0.0
        for i in range(d):
            for k in range(K):
                norm[0] += M[i, k] * M[i, k]
    return True


@kernel
def update_diagonal(event: Decided, model: DiagonalModel) -> bool:
    """Apply A += κβ G² and b += (1 - κβ G·W_τ) G; then set W'' = -b/A."""
    return accumulate_diagonal(event, event.reward, 1.0, model)


@kernel
def retract_diagonal(event: Decided, assumed_reward: int, model: DiagonalModel) -> bool:
    """Subtract the contribution of the assumed bit from A and b, and add the contribution of the real bit."""
    away = accumulate_diagonal(event, assumed_reward, -1.0, model)
    added = accumulate_diagonal(event, event.reward, 1.0, model)
    return away or added


@subroutine
def argmax_within(scores: FloatArray, tolerance: float) -> int:
    """Return the lowest class whose score is within the tolerance of the highest."""
    least = scores[argmax(scores)] - tolerance
    for k in range(scores.size):
        if scores[k] >= least:
            return k
    return 0  # unreachable


@kernel
def predict_full(event: Event, model: FullModel) -> tuple[int, int, float]:
    """Sample from the softmax of the projected weights, mixed with γ."""
    check_event(event.x, model.W.shape[1])
    linear_scores(event.x, model.W, event.scores)
    action, propensity = sample_softmax(event.scores, model.alpha, model.gamma, event.u)
    return action, argmax_within(event.scores, TIE_TOLERANCE * model.D * norm_of(event.x.values)), propensity


@subroutine
def factorise(S: FloatArray) -> bool:
    """Write the Cholesky factor U of S = UᵀU over the upper triangle of S. Return False if S is not positive definite.

    U is computed row by row, so that the inner loop is vectorised without fast-math. LAPACK is two to four times as
    fast, but its rounding depends on the number of threads, and it adds 6 s of compile time.
    """
    size = S.shape[0]
    for k in range(size):
        pivot = S[k]
        if not 0.0 < pivot[k] < np.inf:
            return False
        root = sqrt(pivot[k])
        for j in range(k, size):
            pivot[j] /= root
        for i in range(k + 1, size):
            scale = pivot[i]
            if scale != 0.0:
                row = S[i]
                for j in range(i, size):
                    row[j] -= scale * pivot[j]
    return True


@subroutine
def solve_lower(U: FloatArray, y: FloatArray) -> None:
    """Replace y with U⁻ᵀy by forward substitution."""
    for i in range(y.size):
        row = U[i]
        y[i] /= row[i]
        for j in range(i + 1, y.size):
            y[j] -= row[j] * y[i]


@subroutine
def solve_upper(U: FloatArray, y: FloatArray) -> None:
    """Replace y with U⁻¹y by back substitution."""
    for i in range(y.size - 1, -1, -1):
        row = U[i]
        total = y[i]
        for j in range(i + 1, y.size):
            total -= row[j] * y[j]
        y[i] = total / row[i]


@subroutine
def project(A: FloatArray, b: FloatArray, shift: float, D: float, y: FloatArray) -> float:
    """Set y to argmin_{‖W‖≤D} (W-W'')ᵀA(W-W''), W'' = -A⁻¹b, and return its λ, or -1 if float64 is too imprecise.

    The minimum is W(λ) = (A+λI)⁻¹AW'' = -(A+λI)⁻¹b with λ = 0, or with ‖W(λ)‖ = D. Newton's iteration solves 1/‖W(λ)‖ =
    1/D (Moré and Sorensen 1983, sect. 3). 1/‖W(λ)‖ is concave and nearly linear in λ. If λ is above the solution, the
    next λ is below it. From below, λ increases towards the solution. Bracketing is therefore unnecessary.
    """
    size = b.size
    U = np.empty((size, size))
    half = np.empty(size)
    for _ in range(PROJECTION_STEPS_MAX):
        for i in range(size):
            for j in range(i, size):
                U[i, j] = A[i, j]
            U[i, i] += shift
            y[i] = -b[i]
        if not factorise(U):
            return -1.0
        solve_lower(U, y)
        solve_upper(U, y)
        norm = sqrt(squared_length(y))
        if not norm < np.inf:
            return -1.0
        if abs(norm - D) <= NORM_TOLERANCE * D or (shift == 0.0 and norm <= D):
            return shift
        for i in range(size):
            half[i] = y[i]
        solve_lower(U, half)
        following = max(0.0, shift + norm * norm / squared_length(half) * (norm - D) / D)
        if following == shift:
            return shift
        shift = following
    return shift


@subroutine
def accumulate_full(event: Decided, reward: float, sign: float, A: FloatArray, b: FloatArray, model: FullModel) -> bool:
    """Add a round's contribution to A and b, copies of the model's, or subtract it (sign 1 or -1)."""
    indices, values = event.x
    K, d = model.W.shape
    h_action, h_other, curvature, factor = gradient(event, reward, model.alpha, model.beta)
    if h_action == 0.0 or not abs(factor * h_action) < STEP_MAX:
        return False
    h = np.full(K, h_other)
    h[event.action] = h_action
    for k in range(K):
        for j in range(indices.size):
            row = k * d + indices[j]
            b[row] += sign * factor * h[k] * values[j]
            for other in range(K):
                scale = sign * (curvature * h[k] * h[other]) * values[j]
                for n in range(indices.size):
                    A[row, other * d + indices[n]] += scale * values[n]
    return True


@subroutine
def settle(A_new: FloatArray, b_new: FloatArray, model: FullModel) -> bool:
    """Replace A and b, unless the new W' cannot be computed."""
    W, A, b = model.W, model.A, model.b
    y = np.empty(b.size)
    found = project(A_new, b_new, model.shift[0], model.D, y)
    if found < 0.0:
        return False
    model.shift[0] = found
    d = W.shape[1]
    for i in range(b.size):
        W[i // d, i % d] = y[i]
        b[i] = b_new[i]
        for j in range(b.size):
            A[i, j] = A_new[i, j]
    return True


@kernel
def update_full(event: Decided, model: FullModel) -> bool:
    """Apply A += κβ GGᵀ and b += (1 - κβ G·W_τ) G; then set W' to the projection of -A⁻¹b."""
    if not usable(event, *model.W.shape) or event.x.indices.size == 0:
        return False
    A, b = model.A.copy(), model.b.copy()
    return accumulate_full(event, event.reward, 1.0, A, b, model) and settle(A, b, model)


@kernel
def retract_full(event: Decided, assumed_reward: int, model: FullModel) -> bool:
    """Subtract the contribution of the assumed bit from A and b, and add the contribution of the real bit."""
    if not usable(event, *model.W.shape) or event.x.indices.size == 0:
        return False
    A, b = model.A.copy(), model.b.copy()
    away = accumulate_full(event, assumed_reward, -1.0, A, b, model)
    added = accumulate_full(event, event.reward, 1.0, A, b, model)
    return (away or added) and settle(A, b, model)
