"""Confidit: second-order scores with upper confidence bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import Cost, Extent, FromLogs, Kernel, KernelLearner, Kernels, Parameter, register, sparse
from stream.learners.kernels import (
    argmax,
    bounded,
    check_event,
    compiled,
    linear_scores,
    subtract_outer,
    unit,
    usable,
)
from stream.wire.events import Decision, Features, FloatArray, IndexArray

PENDING_MAX = 32
"""Rank-one changes of one class's inverse that are kept apart before they are added to it in one pass: the pass is
bound by memory, and 32 changes together cost a fifth of 32 passes. A multiple of 8, see `subtract_outer`."""

# Places in `memory`, what a run accumulates.
ROUNDS = 0  # t, decisions made
CONFIDENCE_SUM = 1  # Σ_s x_sᵀA_{a_s,s}⁻¹x_s over the updates
ERROR_SUM = 2  # Σ_{s<t} q_s over the rounds

# Places in `settings`.
ALPHA, ETA, U_NORM_SQ, DELTA, APPROX_ERROR, APPROX_ERROR_POWER, PROJECTION, CONFIDENCE = range(8)

CONFIDENCES = ("constant", "theory", "modified")
VARIANTS = {  # Table 2 of the paper: projection, confidence, covariance
    1: (1, "theory", "full"),
    2: (0, "constant", "full"),
    3: (0, "theory", "full"),
    4: (1, "constant", "full"),
    5: (0, "constant", "diag"),
}


@compiled
def next_multiplier(memory: FloatArray, settings: FloatArray) -> float:
    """ε_i² / c_i for the round that is next."""
    t = memory[ROUNDS] + 1.0
    confidence = settings[CONFIDENCE]
    if confidence == 0.0:
        return float(settings[ETA])  # (11)
    scale = (1.0 + float(settings[ALPHA])) ** 2
    bracket: float = (
        0.5 * scale * settings[U_NORM_SQ]
        + 0.5 * scale * memory[CONFIDENCE_SUM]
        + 9.0 * scale * log((t + 4.0) / settings[DELTA])
    )  # (9)
    if confidence == 2.0:
        bracket += scale * memory[ERROR_SUM]  # (10)
    return 2.0 * bracket


@compiled
def count_round(memory: FloatArray, settings: FloatArray) -> None:
    """Count a round, and add its q_t."""
    t = memory[ROUNDS] + 1.0
    memory[ROUNDS] = t
    if settings[CONFIDENCE] == 2.0:
        memory[ERROR_SUM] += settings[APPROX_ERROR] * t ** settings[APPROX_ERROR_POWER]


@compiled
def shifts(scores: FloatArray, c: FloatArray, alpha: float) -> FloatArray:
    """β_i + λ of the projection of sect. 3.1, by one sort and one pass over the classes.

    With ρ_i = (α + s_i) / c_i it is max(λ, -ρ_i), where λ solves Σ_i max(-α, s_i + λ c_i) = 1 + α - Kα.
    """
    K = scores.size
    rho = np.empty(K)
    for k in range(K):
        rho[k] = (alpha + scores[k]) / c[k]
    order = np.empty(K, np.int64)  # by decreasing ρ; insertion, since K is small and often sorted from the last round
    for k in range(K):
        place = k
        while place > 0 and rho[order[place - 1]] < rho[k]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = k
    total_s = 0.0
    total_c = 0.0
    lam = 0.0
    for r in range(K):
        if r > 0 and rho[order[r]] + lam < 0.0:
            break  # β > 0 for this class, and so for all that follow
        total_s += scores[order[r]]
        total_c += c[order[r]]
        lam = (1.0 + alpha - alpha * (r + 1) - total_s) / total_c
    shift = np.empty(K)
    for k in range(K):
        shift[k] = max(lam, -rho[k])  # (7), (8)
    return shift


@compiled
def all_positive(c: FloatArray) -> bool:
    """Whether the projection has a solution: x is not zero."""
    positive = True
    for k in range(c.size):
        positive = positive and c[k] > 0.0
    return positive


@compiled
def highest_bound(scores: FloatArray, c: FloatArray, multiplier: float) -> int:
    """The class with the highest s_i + ε_i; ties go to the lowest class."""
    bounds = np.empty(scores.size)
    for k in range(scores.size):
        bounds[k] = scores[k] + sqrt(multiplier * c[k])  # (4)
    return argmax(bounds)


@compiled
def target(reward: int, v: float, alpha: float) -> float:
    """The sign of the update: steps 6a, 6b and 7."""
    return -1.0 if reward == 0 and v < 0.5 * (1.0 + alpha) else 1.0


@compiled
def _variances(
    indices: IndexArray, x: FloatArray, inverses: FloatArray, columns: FloatArray, counts: IndexArray, c: FloatArray
) -> None:
    """c_i = xᵀA_i⁻¹x for every class, from half of the nnz × nnz entries and the changes kept apart.

    Four sums that do not wait for each other: the entries lie far apart, and reading them is all the work.
    """
    n = indices.size
    dots = np.empty(columns.shape[2])
    for k in range(c.size):
        total = 0.0
        for a in range(n):
            row = inverses[k, indices[a]]
            s0 = 0.5 * row[indices[a]] * x[a]
            s1 = s2 = s3 = 0.0
            b = a + 1
            while b + 3 < n:
                s0 += row[indices[b]] * x[b]
                s1 += row[indices[b + 1]] * x[b + 1]
                s2 += row[indices[b + 2]] * x[b + 2]
                s3 += row[indices[b + 3]] * x[b + 3]
                b += 4
            while b < n:
                s0 += row[indices[b]] * x[b]
                b += 1
            total += ((s0 + s1) + (s2 + s3)) * x[a]
        total *= 2.0
        if counts[k] > 0:
            dots[:] = 0.0
            for a in range(n):
                column = columns[k, indices[a]]
                for m in range(dots.size):
                    dots[m] += x[a] * column[m]
            for m in range(counts[k]):
                total -= dots[m] * dots[m]
        c[k] = max(total, 0.0)  # A⁻¹ is positive definite; below zero is rounding


@compiled
def _inverse_times(
    k: int,
    indices: IndexArray,
    x: FloatArray,
    inverses: FloatArray,
    rows: FloatArray,
    columns: FloatArray,
    counts: IndexArray,
) -> FloatArray:
    """A_k⁻¹x."""
    z = np.zeros(inverses.shape[1])
    n = indices.size
    a = 0
    while a + 3 < n:
        r0 = inverses[k, indices[a]]
        r1 = inverses[k, indices[a + 1]]
        r2 = inverses[k, indices[a + 2]]
        r3 = inverses[k, indices[a + 3]]
        x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
        for j in range(z.size):
            z[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        a += 4
    while a < n:
        r0 = inverses[k, indices[a]]
        x0 = x[a]
        for j in range(z.size):
            z[j] += x0 * r0[j]
        a += 1
    for m in range(counts[k]):
        change = rows[k, m]
        dot = 0.0
        for a in range(n):
            dot += x[a] * columns[k, indices[a], m]
        for j in range(z.size):
            z[j] -= dot * change[j]
    return z


@compiled
def predict_full(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    W: FloatArray,
    inverses: FloatArray,
    rows: FloatArray,
    columns: FloatArray,
    counts: IndexArray,
    memory: FloatArray,
    settings: FloatArray,
) -> tuple[int, int, float]:
    """Steps 1-4 with one full matrix per class."""
    check_event(indices, values, W.shape[1])
    x = unit(values)
    linear_scores(indices, x, W, scores)
    c = np.empty(scores.size)
    _variances(indices, x, inverses, columns, counts, c)
    if settings[PROJECTION] != 0.0 and all_positive(c):
        shift = shifts(scores, c, settings[ALPHA])
        for k in range(scores.size):
            scores[k] = bounded(scores[k] + shift[k] * c[k])  # those of W'
    action = highest_bound(scores, c, next_multiplier(memory, settings))
    return action, argmax(scores), 1.0


@compiled
def observe_full(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    W: FloatArray,
    inverses: FloatArray,
    rows: FloatArray,
    columns: FloatArray,
    counts: IndexArray,
    memory: FloatArray,
    settings: FloatArray,
) -> None:
    """Step 2 with one full matrix per class: W' replaces W; and a round is counted."""
    check_event(indices, values, W.shape[1])
    count_round(memory, settings)
    if settings[PROJECTION] == 0.0:
        return
    x = unit(values)
    before = np.empty(W.shape[0])
    linear_scores(indices, x, W, before)
    c = np.empty(W.shape[0])
    _variances(indices, x, inverses, columns, counts, c)
    if all_positive(c):
        shift = shifts(before, c, settings[ALPHA])
        for k in range(c.size):
            z = _inverse_times(k, indices, x, inverses, rows, columns, counts)
            row = W[k]
            for j in range(z.size):
                row[j] += shift[k] * z[j]  # (7)


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
    inverses: FloatArray,
    rows: FloatArray,
    columns: FloatArray,
    counts: IndexArray,
    memory: FloatArray,
    settings: FloatArray,
) -> bool:
    """Steps 6-8 with one full matrix per class: w += A_new⁻¹x (±1 - wᵀx), A_new⁻¹ = A⁻¹ - zzᵀ/(1+c), z = A⁻¹x."""
    if not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    x = unit(values)
    z = _inverse_times(action, indices, x, inverses, rows, columns, counts)
    w = W[action]
    score = 0.0
    c = 0.0
    for a in range(indices.size):
        score += w[indices[a]] * x[a]
        c += z[indices[a]] * x[a]
    if not c > 0.0:
        return False
    step = (target(reward, v, settings[ALPHA]) - score) / (1.0 + c)
    scale = 1.0 / sqrt(1.0 + c)
    place = counts[action]
    change = rows[action, place]
    for j in range(z.size):
        w[j] += step * z[j]  # step 8
        change[j] = scale * z[j]
        columns[action, j, place] = scale * z[j]
    counts[action] = place + 1
    if counts[action] == PENDING_MAX:
        subtract_outer(inverses[action], rows[action])
        counts[action] = 0
    memory[CONFIDENCE_SUM] += c / (1.0 + c)  # xᵀA⁻¹x after this update
    return True


@compiled
def retract_full(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    propensity: float,
    scores: FloatArray,
    change: float,
    W: FloatArray,
    inverses: FloatArray,
    rows: FloatArray,
    columns: FloatArray,
    counts: IndexArray,
    memory: FloatArray,
    settings: FloatArray,
) -> bool:
    """w_action += change · A⁻¹x, where change is the real sign less the assumed one."""
    if change == 0.0 or not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    z = _inverse_times(action, indices, unit(values), inverses, rows, columns, counts)
    w = W[action]
    for j in range(z.size):
        w[j] += change * z[j]
    return indices.size > 0


@compiled
def _variances_diag(indices: IndexArray, x: FloatArray, A: FloatArray, c: FloatArray) -> None:
    """c_i = xᵀA_i⁻¹x for every class."""
    for k in range(c.size):
        total = 0.0
        for a in range(indices.size):
            total += x[a] * x[a] / A[k, indices[a]]
        c[k] = total


@compiled
def predict_diag(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    M: FloatArray,
    memory: FloatArray,
    settings: FloatArray,
) -> tuple[int, int, float]:
    """Steps 1-4 with one diagonal per class."""
    W, A = M[0], M[1]
    check_event(indices, values, W.shape[1])
    x = unit(values)
    linear_scores(indices, x, W, scores)
    c = np.empty(scores.size)
    _variances_diag(indices, x, A, c)
    if settings[PROJECTION] != 0.0 and all_positive(c):
        shift = shifts(scores, c, settings[ALPHA])
        for k in range(scores.size):
            scores[k] = bounded(scores[k] + shift[k] * c[k])  # those of W'
    action = highest_bound(scores, c, next_multiplier(memory, settings))
    return action, argmax(scores), 1.0


@compiled
def observe_diag(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    M: FloatArray,
    memory: FloatArray,
    settings: FloatArray,
) -> None:
    """Step 2 with one diagonal per class: W' replaces W; and a round is counted."""
    W, A = M[0], M[1]
    check_event(indices, values, W.shape[1])
    count_round(memory, settings)
    if settings[PROJECTION] == 0.0:
        return
    x = unit(values)
    before = np.empty(W.shape[0])
    linear_scores(indices, x, W, before)
    c = np.empty(W.shape[0])
    _variances_diag(indices, x, A, c)
    if all_positive(c):
        shift = shifts(before, c, settings[ALPHA])
        for k in range(c.size):
            for a in range(indices.size):
                W[k, indices[a]] += shift[k] * x[a] / A[k, indices[a]]  # (7)


@compiled
def update_diag(
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
    memory: FloatArray,
    settings: FloatArray,
) -> bool:
    """Steps 6-8 with one diagonal per class."""
    W, A = M[0], M[1]
    if not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    x = unit(values)
    sign = target(reward, v, settings[ALPHA])
    c_after = 0.0
    for a in range(indices.size):
        i = indices[a]
        before = A[action, i]
        after = before + x[a] * x[a]
        W[action, i] = (before * W[action, i] + sign * x[a]) / after  # step 8
        A[action, i] = after
        c_after += x[a] * x[a] / after
    memory[CONFIDENCE_SUM] += c_after
    return c_after > 0.0


@compiled
def retract_diag(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    propensity: float,
    scores: FloatArray,
    change: float,
    M: FloatArray,
    memory: FloatArray,
    settings: FloatArray,
) -> bool:
    """w_action += change · A⁻¹x, where change is the real sign less the assumed one."""
    W, A = M[0], M[1]
    if change == 0.0 or not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    x = unit(values)
    for a in range(indices.size):
        W[action, indices[a]] += change * x[a] / A[action, indices[a]]
    return indices.size > 0


@dataclass(frozen=True, slots=True)
class Switch(Parameter):
    """A parameter that is on or off: 1 or 0, True or False, yes or no."""

    def accepted(self) -> str:
        """The accepted values, for people."""
        return "on (1, True, yes) or off (0, False, no)"

    def _converted(self, value: object) -> float | int | str | None:
        return {"1": 1, "true": 1, "yes": 1, "on": 1, "0": 0, "false": 0, "no": 0, "off": 0}.get(str(value).lower())


@register
class Confidit(KernelLearner):
    """Ridge scores per class, played by upper confidence bound; the most accurate linear bandit here.

    Crammer, Gentile, "Multiclass classification with bandit feedback using adaptive regularization", Machine Learning
    90 (2013), Fig. 1 and Table 2 (and ICML 2011, where (9) is (5)).

        x̂ = x/‖x‖;  c_i = x̂ᵀA_i⁻¹x̂
        W' = the point nearest to W, in the norm of A, with -α ≤ w_iᵀx̂ and Σ_i w_iᵀx̂ = 1 + α - Kα   (`projection`)
        ŷ = argmax_i (w'_iᵀx̂ + ε_i)
        ε_i² = η c_i                                                                                  (11) `constant`
        ε_i² = 2c_i (1+α)² [½‖U‖² + ½ Σ_{s<t} x̂_sᵀA_{ŷ_s,s}⁻¹x̂_s + 9 ln((t+4)/δ)]                    (9) `theory`
        ε_i² = (9) with Σ_{s<t} q_s added in the bracket, q_t = q t^power                             (10) `modified`
        X = x̂ if right; if wrong, -x̂ with probability (1+α)/2 (when v < (1+α)/2), else x̂
        A_ŷ += x̂x̂ᵀ (`diag`: its diagonal);  w_ŷ = A_new⁻¹(A_old w'_ŷ + X)

    Symbols: w_i weights [K, d]; A_i correlations [K, d, d] or their diagonals [K, d], (1+α)² I at the start, kept as
    inverses when full; α `alpha`, in (-1, 1], how far the classes' scores may lie apart; η `eta`; ‖U‖² `u_norm_sq`;
    δ `delta`; q `approx_error`, power `approx_error_power`; t rounds, from 1. `variant` 1 to 5 is a row of the
    paper's Table 2 and overrides the three options; 0 leaves them as given. At α = 1 every wrong answer demotes the
    class and v is of no effect.

    The action is deterministic, so every propensity is 1, and u is of no effect. At t = 1 all classes tie, and the
    lowest is played. Variant 5 can starve a class for good: the diagonal takes features for independent, so a class
    that was demoted on common features is never bounded high enough again.

    Under delay an update uses the current w and A, and of the decision the action alone: w is a ridge regression,
    A⁻¹ΣX, whose order is free. t and Σ q_s count decisions; Σ x̂ᵀA⁻¹x̂ counts the updates made, each with the A it
    made. The projection is made of the current W at every decision, as in the paper: `predict` decides by W', and with
    `observe` W' replaces W.

    Retraction: A is the same for either reward, and without projection w = A⁻¹ΣX: afterwards the model is, to rounding
    and in any order, the one that had the real bit at that place, for the actions as they were played. A projection in
    between cannot be taken back; with it the learner is not retractable.

    Departures from the paper: none for x ≠ 0. A zero x is not scaled, not projected for (its constraint has no
    solution) and not learned from. The rank-one changes of an inverse are added to it 32 at a time, which is the same
    matrix.

    >>> from stream.learners import create
    >>> learner = create("confidit", n_classes=3, n_features=2, variant=2)
    >>> decision = learner.predict(np.array([3.0, 4.0]), u=0.5)
    >>> decision.action, decision.propensity
    (0, 1.0)
    >>> learner.update(np.array([3.0, 4.0]), decision, reward=0)
    True
    >>> learner.weights().round(3).tolist()
    [[-0.12, -0.16], [0.0, 0.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "confidit"
    summary: ClassVar[str] = "second-order, upper confidence bounds; full or diagonal"
    paper: ClassVar[str] = "Crammer, Gentile 2013, Fig. 1"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("variant", 0, "row of the paper's Table 2, in place of the three options; 0: by these", 0, 5),
        Switch("projection", 0, "project the weights before every prediction"),
        Parameter("confidence", "constant", "width of the bounds: (11), (9) or (10)", choices=CONFIDENCES),
        Parameter("covariance", "full", "matrix or diagonal per class", choices=("full", "diag")),
        Parameter("alpha", 1.0, "closeness of the classes", low=-1.0, high=1.0, low_open=True),
        Parameter("eta", 1.0, "squared width of the constant bounds", low=0.0),
        Parameter("u_norm_sq", 1.0, "bound on the comparator's squared norm", low=0.0),
        Parameter("delta", 0.05, "probability that the theory's bounds fail", low=0.0, high=1.0, low_open=True),
        Parameter("approx_error", 1.0, "q of q_t = q t^power, for the modified bounds", low=0.0),
        Parameter("approx_error_power", -0.5, "power of q_t = q t^power"),
    )
    from_logs: ClassVar[FromLogs] = FromLogs.NOTHING
    one_right_class: ClassVar[bool] = False
    randomised_update: ClassVar[bool] = True
    retractable: ClassVar[bool] = True
    instead: ClassVar[str] = "covariance=diag, whose state is diagonal"
    observed: ClassVar[Mapping[str, Extent]] = {"memory": Extent.WHOLE}
    _retract: Kernel

    def __new__(cls, n_classes: int, n_features: int, **parameters: Any) -> "Confidit":
        """Make the class that fits the options: what is retractable is told by the class."""
        projection, _, _ = _options(parameters)
        return object.__new__(ConfiditProjected if projection else Confidit)

    def __init__(self, n_classes: int, n_features: int, **parameters: Any) -> None:
        projection, confidence, covariance = _options(parameters)
        self.alpha = float(parameters["alpha"])
        settings = np.array(
            [
                self.alpha,
                parameters["eta"],
                parameters["u_norm_sq"],
                parameters["delta"],
                parameters["approx_error"],
                parameters["approx_error_power"],
                projection,
                CONFIDENCES.index(confidence),
            ],
            dtype=np.float64,
        )
        diagonal = covariance == "diag"
        kernels = Kernels(predict_full, update_full, observe_full)
        if diagonal:
            kernels = Kernels(predict_diag, update_diag, observe_diag)
        self._retract = retract_diag if diagonal else retract_full
        memory = np.zeros(3)
        start = (1.0 + self.alpha) ** 2
        if diagonal:
            M = np.zeros((2, n_classes, n_features))
            M[1] = start
            named = {"W": M[0], "A": M[1], "memory": memory}
            super().__init__(n_classes, n_features, named, (M, memory, settings), kernels)
            return
        W = np.zeros((n_classes, n_features))
        # Not np.zeros: it leaves the pages to be made small, one by one, and reading across them costs a fifth more.
        inverses = np.full((n_classes, n_features, n_features), 0.0)
        inverses[:, np.arange(n_features), np.arange(n_features)] = 1.0 / start
        rows = np.zeros((n_classes, PENDING_MAX, n_features))
        columns = np.zeros((n_classes, n_features, PENDING_MAX))  # the same as `rows`, read by feature
        counts = np.zeros(n_classes, dtype=np.int32)
        arrays: dict[str, NDArray[Any]] = {
            "W": W,
            "inverses": inverses,
            "rows": rows,
            "columns": columns,
            "counts": counts,
            "memory": memory,
        }
        super().__init__(n_classes, n_features, arrays, (*arrays.values(), settings), kernels)

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int, v: float = 0.0
    ) -> bool:
        """Move w_action by the difference of the two signs, through the current inverse."""
        if not self.retractable:
            return super().retract(x, decision, assumed_reward, reward, v)
        indices, values = sparse(x, self.n_features)
        change = target(int(reward), v, self.alpha) - target(int(assumed_reward), v, self.alpha)
        action, _, propensity, scores, _ = decision
        return bool(self._retract(indices, values, action, propensity, scores, change, *self.model))

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Full: nnz²/2 entries of K inverses read, nnz rows and 1/32 of a pass over one inverse; diagonal: K·nnz."""
        projection, _, covariance = _options(parameters)
        K, d = n_classes, n_features
        if covariance == "diag":
            return Cost(
                flops_per_event=nnz * (5 * K + 8 + projection * 4 * K),
                bytes_per_event=8 * nnz * (2 * K + 4 + projection * 2 * K),
                state_bytes=8 * (2 * K * d + 3),
            )
        applied = K + 1 if projection else 1  # products of an inverse with x
        return Cost(
            flops_per_event=K * nnz * (nnz + 2 + PENDING_MAX) + applied * 2 * d * (nnz + PENDING_MAX // 2) + d * d,
            bytes_per_event=8
            * (K * nnz * (nnz // 2 + 1 + PENDING_MAX) + applied * d * (nnz + PENDING_MAX // 2) + d * d // 4),
            state_bytes=8 * (K * d * (d + 1 + 2 * PENDING_MAX) + 3) + 4 * K,
        )


class ConfiditProjected(Confidit):
    """Confidit with projections, which cannot be taken back."""

    one_right_class: ClassVar[bool] = True
    retractable: ClassVar[bool] = False
    observed: ClassVar[Mapping[str, Extent]] = {"memory": Extent.WHOLE, "W": Extent.WHOLE}


def _options(parameters: Mapping[str, Any]) -> tuple[int, str, str]:
    """Projection, confidence and covariance: of the variant, or as given."""
    variant = int(parameters["variant"])
    if variant:
        return VARIANTS[variant]
    return int(parameters["projection"]), str(parameters["confidence"]), str(parameters["covariance"])
