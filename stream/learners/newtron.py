"""Newtron: online Newton steps on the log-loss, from one bit."""

from collections.abc import Mapping
from math import exp, sqrt
from typing import Any, ClassVar

import numpy as np

from stream.learners.base import Cost, FromLogs, KernelLearner, Parameter, register, sparse
from stream.learners.kernels import argmax, bounded, check_event, compiled, linear_scores, norm_of, sample_from, usable
from stream.wire.events import Decision, Features, FloatArray, IndexArray

PARAMETERS = (
    Parameter(
        "gamma",
        2**-5,
        "share of rounds that explore uniformly; a stream of 10⁶ events wants 0.005 to 0.015",
        low=0.0,
        high=1.0,
    ),
    Parameter("alpha", 10.0, "sharpness of the softmax", low=0.0, high=1e6, low_open=True),
    Parameter("beta", 0.01, "weight of the second-order term", low=0.0, high=1e6),
    Parameter("radius", 1.0, "D, the largest norm of the weights", low=0.0, high=1e9, low_open=True),
)

STEP_MAX = 1e200
"""An update with a larger coefficient is refused: times an entry of x it would leave the range of float64."""

NORM_REFRESH_UPDATES = 1024
"""pnewtron keeps ‖W''‖² by the changes of the entries touched, and sums it afresh after so many updates: the rounding
of a thousand changes is some 1e-13 of it, and the fresh sum's share of the cost stays under 1 % for 4,000 weights. The
count is in the state, so that a loaded model refreshes at the same update."""

NORM_TOLERANCE = 1e-13
"""newtron's projection ends when ‖W'‖ is within this share of D: a hundred times the rounding of the norm."""

TIE_TOLERANCE = 1e-9
"""newtron's scores within this share of D‖x‖, the largest there can be, tie: classes with one history (all that were
not played yet) have equal scores, which a factorisation tells apart by its rounding. Only the greedy class is settled
by it."""

PROJECTION_STEPS_MAX = 100
"""Newton's iteration on the secular equation takes 2 to 8; more means that rounding keeps it from the tolerance."""


@compiled
def sample_softmax(scores: FloatArray, alpha: float, gamma: float, u: float) -> tuple[int, float]:
    """Sample from p' = (1-γ) softmax(α s) + γ/K; and the propensity."""
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


@compiled
def gradient(
    action: int, propensity: float, scores: FloatArray, reward: int, alpha: float, beta: float
) -> tuple[float, float, float, float]:
    """The h of G = h⊗x as (h_action, h_k of every other class), κβ and 1 - κβ G·W_τ: lines 7 to 12.

    All of it is of prediction time.
    """
    K = scores.size
    top = scores[argmax(scores)]
    total, others = 0.0, 0.0
    for k in range(K):
        total += exp(alpha * (scores[k] - top))
        if k != action:
            others += scores[k]
    p = exp(alpha * (scores[action] - top)) / total
    if reward == 1:
        c = -(1.0 - p) / propensity
        curvature = propensity * beta
    else:
        c = p / propensity
        curvature = beta
    h_action, h_other = c * (1.0 - 1.0 / K), -c / K
    G_W = h_action * scores[action] + h_other * others  # G·W_τ = Σ_k h_k ⟨W_τ,k, x⟩
    return h_action, h_other, curvature, 1.0 - curvature * G_W


@compiled
def predict_diagonal(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    M: FloatArray,
    norm: FloatArray,
) -> tuple[int, int, float]:
    """Sample from the softmax of the projected weights, mixed with γ."""
    gamma, alpha, D = norm[2], norm[3], norm[5]
    K = scores.size
    check_event(indices, values, M.shape[0])
    scores[:] = 0.0
    for j in range(indices.size):
        i = indices[j]
        for k in range(K):
            scores[k] += M[i, k] * values[j]
    scale = D / sqrt(norm[0]) if norm[0] > D * D else 1.0
    for k in range(K):
        scores[k] = bounded(scores[k]) * scale
    action, propensity = sample_softmax(scores, alpha, gamma, u)
    return action, argmax(scores), propensity


@compiled
def accumulate_diagonal(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    propensity: float,
    scores: FloatArray,
    reward: int,
    sign: float,
    M: FloatArray,
    norm: FloatArray,
) -> bool:
    """Add a round's share to A and b (sign 1), or take it away (sign -1); W'' and its norm follow."""
    alpha, beta, D = norm[3], norm[4], norm[5]
    d, K = M.shape[0], M.shape[1] // 3
    if not usable(indices, values, action, propensity, scores, K, d) or indices.size == 0:
        return False
    h_action, h_other, curvature, factor = gradient(action, propensity, scores, reward, alpha, beta)
    if h_action == 0.0 or not abs(factor * h_action) < STEP_MAX:
        return False
    square, step = sign * (curvature * h_other * h_other), sign * (factor * h_other)
    square_action, step_action = sign * (curvature * h_action * h_action), sign * (factor * h_action)
    floor = 1.0 / D  # A is never below I/D but for the rounding of a sign of -1
    change = 0.0
    changes = np.zeros(K)
    for j in range(indices.size):
        i = indices[j]
        x = values[j]
        w_action = M[i, action]
        a_action = max(M[i, K + action] + square_action * (x * x), floor)
        b_action = M[i, 2 * K + action] + step_action * x
        # Every class as one that was not played, and then the action's own entry over it: a loop of one kind becomes
        # vector instructions, if its division is numpy's, which has no branch for a divisor of 0. 0.1 µs per update.
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
    norm: FloatArray,
) -> bool:
    """A += κβ G², b += (1 - κβ G·W_τ) G, W'' = -b/A."""
    return accumulate_diagonal(indices, values, action, propensity, scores, reward, 1.0, M, norm)


@register
class PNewtron(KernelLearner):
    """PNewtron: Newtron with the diagonal of A and the Euclidean projection.

    Hazan, Kale, "Newtron: an efficient bandit algorithm for online multiclass prediction", NIPS 2011, Algorithm 1
    and section 4.

        p = softmax(α W'x);  p' = (1-γ)p + γ/K;  ŷ ~ p'
        ŷ = y: G = (1-p_y)/p'_y (1/K - e_y)⊗x, κ = p'_y;  else: G = p_ŷ/p'_ŷ (e_ŷ - 1/K)⊗x, κ = 1
        A += κβ G² (elementwise), from I/D;  b += (1 - κβ G·W'_τ) G
        W'' = -b/A;  W' = W'' if ‖W''‖ ≤ D, else W'' D/‖W''‖

    Symbols: W' weights [K, d], projected; W'' [K, d] (array W); A diagonal [K, d]; b [K, d]; ‖W''‖² `norm`[0]; γ
    `gamma` in [0, 1]; α `alpha` sharpness, > 0; β `beta` second-order weight, ≥ 0; D `radius`, > 0; ŷ the action. It
    updates on wrong rounds too.

    Assumes raw x as in the paper (binary, ‖x‖ of 5 or so): with α = 10 and D = 1 the softmax of unit-norm x stays so
    flat that the learner is stuck near 52 % error on SynSep. Scale α with 1/‖x‖.

    Under delay p, p' and G·W'_τ are those of prediction time, by the definition of f_τ (G·W'_τ comes from the logged
    scores); A and b are the current sums, so that the order of updates is free.

    Retraction: A and b are sums over the events, so the model is afterwards, to rounding relative to the largest term,
    the one that had the real bit at that place, for the decisions as they were made.

    Departures from the paper: none. What is printed as W_τ in b is read as W'_τ, by the definition of f_t, and A as
    starting at I/D. An update with a coefficient beyond 1e200 is refused.

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
    from_logs: ClassVar[FromLogs] = FromLogs.PROPENSITY
    retractable: ClassVar[bool] = True
    predict_kernel = staticmethod(predict_diagonal)
    update_kernel = staticmethod(update_diagonal)

    def __init__(self, n_classes: int, n_features: int, gamma: float, alpha: float, beta: float, radius: float) -> None:
        # By feature: row i has the feature's W'', A and b, K of each, so that an event touches few and whole rows.
        M = np.zeros((n_features, 3 * n_classes))
        W, A, b = (M[:, k : k + n_classes].T for k in (0, n_classes, 2 * n_classes))
        A[:] = 1.0 / radius
        # The parameters ride behind ‖W''‖² and the count of updates: four numbers cost 0.3 µs per event, one array 0.2.
        norm = np.array([0.0, 0.0, gamma, alpha, beta, radius])
        super().__init__(n_classes, n_features, {"W": W, "A": A, "b": b, "norm": norm[:2]}, (M, norm))
        self.radius = radius

    def weights(self) -> FloatArray:
        """W', float64[K, d]."""
        norm = sqrt(self.arrays["norm"][0])
        weights: FloatArray = self.arrays["W"] * (self.radius / norm if norm > self.radius else 1.0)
        return weights

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int, v: float = 0.0
    ) -> bool:
        """Take the assumed bit's share away from A and b, and add the real bit's."""
        if assumed_reward == reward:
            return False
        event = (*sparse(x, self.n_features), decision.action, decision.propensity, decision.scores)
        away = accumulate_diagonal(*event, assumed_reward, -1.0, *self.model)
        added = accumulate_diagonal(*event, reward, 1.0, *self.model)
        return away or added

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """K·nnz products for the scores; all rows of three arrays updated, a division each."""
        return Cost(
            flops_per_event=n_classes * (13 * nnz + 20),
            bytes_per_event=8 * nnz * n_classes * 7,
            state_bytes=8 * (3 * n_classes * n_features + 2),
        )


@compiled
def argmax_within(scores: FloatArray, tolerance: float) -> int:
    """The lowest class whose score is the highest but for a tolerance."""
    least = scores[argmax(scores)] - tolerance
    for k in range(scores.size):
        if scores[k] >= least:
            return k
    return 0  # not reached


@compiled
def predict_full(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    W: FloatArray,
    A: FloatArray,
    b: FloatArray,
    shift: FloatArray,
    gamma: float,
    alpha: float,
    beta: float,
    D: float,
) -> tuple[int, int, float]:
    """Sample from the softmax of the projected weights, mixed with γ."""
    check_event(indices, values, W.shape[1])
    linear_scores(indices, values, W, scores)
    action, propensity = sample_softmax(scores, alpha, gamma, u)
    return action, argmax_within(scores, TIE_TOLERANCE * D * norm_of(values)), propensity


@compiled
def factorise(S: FloatArray) -> bool:
    """Cholesky: write U with S = UᵀU over the upper triangle of S; False when S is not positive definite.

    By rows, so that the innermost loop is a vector operation without fast-math. LAPACK is two to four times as fast,
    and gives bits that depend on its number of threads, and 6 s of compile time.
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


@compiled
def solve_lower(U: FloatArray, y: FloatArray) -> None:
    """Solve by forward substitution: y becomes U⁻ᵀy."""
    for i in range(y.size):
        row = U[i]
        y[i] /= row[i]
        for j in range(i + 1, y.size):
            y[j] -= row[j] * y[i]


@compiled
def solve_upper(U: FloatArray, y: FloatArray) -> None:
    """Solve by back substitution: y becomes U⁻¹y."""
    for i in range(y.size - 1, -1, -1):
        row = U[i]
        total = y[i]
        for j in range(i + 1, y.size):
            total -= row[j] * y[j]
        y[i] = total / row[i]


@compiled
def square_norm(y: FloatArray) -> float:
    """‖y‖²."""
    total = 0.0
    for i in range(y.size):
        total += y[i] * y[i]
    return total


@compiled
def project(A: FloatArray, b: FloatArray, shift: float, D: float, y: FloatArray) -> float:
    """Set y to argmin_{‖W‖≤D} (W-W'')ᵀA(W-W''), W'' = -A⁻¹b, and give its λ; -1 when A is beyond float64.

    The minimum is W(λ) = (A+λI)⁻¹AW'' = -(A+λI)⁻¹b with λ = 0, or with ‖W(λ)‖ = D. Newton's iteration is on
    1/‖W(λ)‖ - 1/D (Moré and Sorensen 1983, sect. 3), which is concave and nearly linear: from the right of the
    solution it steps to the left of it, and from there it rises to it, so nothing has to be bracketed.
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
        norm = sqrt(square_norm(y))
        if not norm < np.inf:
            return -1.0
        if abs(norm - D) <= NORM_TOLERANCE * D or (shift == 0.0 and norm <= D):
            return shift
        for i in range(size):
            half[i] = y[i]
        solve_lower(U, half)
        following = max(0.0, shift + norm * norm / square_norm(half) * (norm - D) / D)
        if following == shift:
            return shift
        shift = following
    return shift


@compiled
def accumulate_full(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    propensity: float,
    scores: FloatArray,
    reward: int,
    sign: float,
    A: FloatArray,
    b: FloatArray,
    alpha: float,
    beta: float,
    d: int,
) -> bool:
    """Add a round's share to A and b (sign 1), or take it away (sign -1)."""
    K = scores.size
    h_action, h_other, curvature, factor = gradient(action, propensity, scores, reward, alpha, beta)
    if h_action == 0.0 or not abs(factor * h_action) < STEP_MAX:
        return False
    h = np.full(K, h_other)
    h[action] = h_action
    for k in range(K):
        for j in range(indices.size):
            row = k * d + indices[j]
            b[row] += sign * factor * h[k] * values[j]
            for other in range(K):
                scale = sign * (curvature * h[k] * h[other]) * values[j]
                for n in range(indices.size):
                    A[row, other * d + indices[n]] += scale * values[n]
    return True


@compiled
def settle(
    W: FloatArray, A: FloatArray, b: FloatArray, shift: FloatArray, A_new: FloatArray, b_new: FloatArray, D: float
) -> bool:
    """Take over A and b if their W' can be computed."""
    y = np.empty(b.size)
    found = project(A_new, b_new, shift[0], D, y)
    if found < 0.0:
        return False
    shift[0] = found
    d = W.shape[1]
    for i in range(b.size):
        W[i // d, i % d] = y[i]
        b[i] = b_new[i]
        for j in range(b.size):
            A[i, j] = A_new[i, j]
    return True


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
    A: FloatArray,
    b: FloatArray,
    shift: FloatArray,
    gamma: float,
    alpha: float,
    beta: float,
    D: float,
) -> bool:
    """A += κβ GGᵀ, b += (1 - κβ G·W_τ) G, W' = the projection of -A⁻¹b."""
    K, d = W.shape
    if not usable(indices, values, action, propensity, scores, K, d) or indices.size == 0:
        return False
    A_new, b_new = A.copy(), b.copy()
    if not accumulate_full(indices, values, action, propensity, scores, reward, 1.0, A_new, b_new, alpha, beta, d):
        return False
    return settle(W, A, b, shift, A_new, b_new, D)


@compiled
def retract_full(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    propensity: float,
    scores: FloatArray,
    assumed_reward: int,
    reward: int,
    W: FloatArray,
    A: FloatArray,
    b: FloatArray,
    shift: FloatArray,
    gamma: float,
    alpha: float,
    beta: float,
    D: float,
) -> bool:
    """Take the assumed bit's share away from A and b, and add the real bit's."""
    K, d = W.shape
    if not usable(indices, values, action, propensity, scores, K, d) or indices.size == 0:
        return False
    A_new, b_new = A.copy(), b.copy()
    away = accumulate_full(
        indices, values, action, propensity, scores, assumed_reward, -1.0, A_new, b_new, alpha, beta, d
    )
    added = accumulate_full(indices, values, action, propensity, scores, reward, 1.0, A_new, b_new, alpha, beta, d)
    return (away or added) and settle(W, A, b, shift, A_new, b_new, D)


@register
class Newtron(KernelLearner):
    """Newtron: online Newton steps on the log-loss, with the full A and the projection in its norm.

    Hazan, Kale, "Newtron: an efficient bandit algorithm for online multiclass prediction", NIPS 2011, Algorithm 1.

        p = softmax(α W'x);  p' = (1-γ)p + γ/K;  ŷ ~ p'
        ŷ = y: G = (1-p_y)/p'_y (1/K - e_y)⊗x, κ = p'_y;  else: G = p_ŷ/p'_ŷ (e_ŷ - 1/K)⊗x, κ = 1
        A += κβ GGᵀ, from I/D;  b += (1 - κβ G·W'_τ) G
        W'' = -A⁻¹b;  W' = argmin_{‖W‖≤D} (W-W'')ᵀA(W-W'') = (A+λI)⁻¹AW'', λ = 0 or ‖W'‖ = D

    Symbols: W' weights [K, d] (array W); A [Kd, Kd]; b [Kd]; λ `shift`[0]; γ `gamma` in [0, 1]; α `alpha` sharpness,
    > 0; β `beta` second-order weight, ≥ 0; D `radius`, > 0; ŷ the action. It updates on wrong rounds too.

    Cubic: the projection factorises A+λI anew 2 to 4 times per update, for the λ that was right a moment ago is only
    nearly so. Some 10 ms at K·d = 400 and seconds at 3,600; pnewtron is the one for large problems.

    Under delay, in what it assumes of x, and for retractions all is as in pnewtron.

    Departures from the paper: none. What is printed as W_τ in b is read as W'_τ, by the definition of f_t, and A as
    starting at I/D. ‖W'‖ = D is met to 1e-13 D. Scores within 1e-9 D‖x‖ tie for the greedy class, which is only
    reported. An update after which A is not positive definite in float64 (entries of x of 1e6 and more) is refused.

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
    from_logs: ClassVar[FromLogs] = FromLogs.PROPENSITY
    retractable: ClassVar[bool] = True
    instead: ClassVar[str] = "pnewtron, whose state is diagonal"
    predict_kernel = staticmethod(predict_full)
    update_kernel = staticmethod(update_full)

    def __init__(self, n_classes: int, n_features: int, gamma: float, alpha: float, beta: float, radius: float) -> None:
        size = n_classes * n_features
        arrays = {
            "W": np.zeros((n_classes, n_features)),
            "A": np.eye(size) / radius,
            "b": np.zeros(size),
            "shift": np.zeros(1),
        }
        super().__init__(n_classes, n_features, arrays, (*arrays.values(), gamma, alpha, beta, radius))

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int, v: float = 0.0
    ) -> bool:
        """Take the assumed bit's share away from A and b, and add the real bit's."""
        if assumed_reward == reward:
            return False
        indices, values = sparse(x, self.n_features)
        return bool(
            retract_full(
                indices,
                values,
                decision.action,
                decision.propensity,
                decision.scores,
                assumed_reward,
                reward,
                *self.model,
            )
        )

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Three Cholesky factorisations per update; A and three copies of it in memory."""
        size = n_classes * n_features
        return Cost(
            flops_per_event=3 * (size**3 // 3 + 4 * size**2) + 2 * (n_classes * nnz) ** 2,
            bytes_per_event=8 * 12 * size**2,
            state_bytes=8 * 4 * size**2,
        )
