"""Confidit's kernels: the confidence bounds, and the algorithm's steps with full matrices and with diagonals."""

from math import log, sqrt

import numpy as np

from stream.learners.kernels import (
    argmax,
    bounded,
    check_event,
    compiled,
    limit,
    linear_scores,
    subtract_outer,
    sum_of_rows,
    unit,
    usable,
)
from stream.wire.records import FloatArray, IndexArray

PENDING_MAX = 32
"""Number of rank-one changes to a class's inverse that are applied in one pass. The speed of a pass is limited by
memory bandwidth, so one pass with 32 changes takes a fifth of the time of 32 passes. The number must be a multiple of
8; see `subtract_outer`."""

# Indices in `memory`, the running totals.
ROUNDS = 0  # t, decisions made
CONFIDENCE_SUM = 1  # Σ_s x_sᵀA_{a_s,s}⁻¹x_s over the updates
ERROR_SUM = 2  # Σ_{s<t} q_s over the rounds

# Indices in `settings`.
ALPHA, ETA, U_NORM_SQ, DELTA, APPROX_ERROR, APPROX_ERROR_POWER, PROJECTION, CONFIDENCE = range(8)


@compiled
def next_multiplier(memory: FloatArray, settings: FloatArray) -> float:
    """Return ε_i² / c_i for the next round."""
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
    """Count a round, and add q_t to the running sum."""
    t = memory[ROUNDS] + 1.0
    memory[ROUNDS] = t
    if settings[CONFIDENCE] == 2.0:
        memory[ERROR_SUM] += settings[APPROX_ERROR] * t ** settings[APPROX_ERROR_POWER]


@compiled
def shifts(scores: FloatArray, c: FloatArray, alpha: float) -> FloatArray:
    """Return β_i + λ for the projection in sect. 3.1, using one sort and one pass over the classes.

    With ρ_i = (α + s_i) / c_i, the shift is max(λ, -ρ_i), where λ solves Σ_i max(-α, s_i + λ c_i) = 1 + α - Kα.
    """
    K = scores.size
    rho = np.empty(K)
    for k in range(K):
        rho[k] = (alpha + scores[k]) / c[k]
    order = np.empty(K, np.int64)  # by decreasing ρ; insertion sort suits a small K and an almost sorted order
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
            break  # β > 0 for this class and all later classes
        total_s += scores[order[r]]
        total_c += c[order[r]]
        lam = (1.0 + alpha - alpha * (r + 1) - total_s) / total_c
    shift = np.empty(K)
    for k in range(K):
        shift[k] = max(lam, -rho[k])  # (7), (8)
    return shift


@compiled
def all_positive(c: FloatArray) -> bool:
    """Return whether the projection has a solution, which requires a non-zero x."""
    positive = True
    for k in range(c.size):
        positive = positive and c[k] > 0.0
    return positive


@compiled
def highest_bound(scores: FloatArray, c: FloatArray, multiplier: float) -> int:
    """Return the class with the highest s_i + ε_i. Ties go to the lowest index."""
    bounds = np.empty(scores.size)
    for k in range(scores.size):
        bounds[k] = scores[k] + sqrt(multiplier * c[k])  # (4)
    return argmax(bounds)


@compiled
def target(reward: int, v: float, alpha: float) -> float:
    """Return the sign of the update (steps 6a, 6b and 7)."""
    return -1.0 if reward == 0 and v < 0.5 * (1.0 + alpha) else 1.0


@compiled
def _variances(
    indices: IndexArray, x: FloatArray, inverses: FloatArray, columns: FloatArray, counts: IndexArray, c: FloatArray
) -> None:
    """Compute c_i = xᵀA_i⁻¹x for every class, using half of the nnz × nnz entries and the pending changes.

    The speed is limited by scattered reads, so the function uses four independent sums.
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
        c[k] = max(total, 0.0)  # A⁻¹ is positive definite, so a negative value is a rounding error


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
    """Return A_k⁻¹x."""
    z = np.empty(inverses.shape[1])
    sum_of_rows(inverses[k], indices, x, z)
    for m in range(counts[k]):
        change = rows[k, m]
        dot = 0.0
        for a in range(indices.size):
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
    eligible: IndexArray,
    W: FloatArray,
    inverses: FloatArray,
    rows: FloatArray,
    columns: FloatArray,
    counts: IndexArray,
    memory: FloatArray,
    settings: FloatArray,
) -> tuple[int, int, float]:
    """Choose the class with the highest bound (steps 1-4), with one full matrix per class."""
    check_event(indices, values, W.shape[1])
    x = unit(values)
    linear_scores(indices, x, W, scores)
    c = np.empty(scores.size)
    _variances(indices, x, inverses, columns, counts, c)
    if settings[PROJECTION] != 0.0 and all_positive(c):
        shift = shifts(scores, c, settings[ALPHA])
        for k in range(scores.size):
            scores[k] = bounded(scores[k] + shift[k] * c[k])  # the scores of W'
    limit(scores, eligible)
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
    """Replace W with W' (step 2), with one full matrix per class, and count the round."""
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
    """Run steps 6-8 with one full matrix per class: w += A_new⁻¹x (±1 - wᵀx), A_new⁻¹ = A⁻¹ - zzᵀ/(1+c), z = A⁻¹x."""
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
    assumed_reward: int,
    reward: int,
    v: float,
    W: FloatArray,
    inverses: FloatArray,
    rows: FloatArray,
    columns: FloatArray,
    counts: IndexArray,
    memory: FloatArray,
    settings: FloatArray,
) -> bool:
    """Apply w_action += change · A⁻¹x, where change is the sign of the real bit minus that of the assumed bit."""
    change = target(reward, v, settings[ALPHA]) - target(assumed_reward, v, settings[ALPHA])
    if change == 0.0 or not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    z = _inverse_times(action, indices, unit(values), inverses, rows, columns, counts)
    w = W[action]
    for j in range(z.size):
        w[j] += change * z[j]
    return indices.size > 0


@compiled
def _variances_diag(indices: IndexArray, x: FloatArray, A: FloatArray, c: FloatArray) -> None:
    """Compute c_i = xᵀA_i⁻¹x for every class."""
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
    eligible: IndexArray,
    M: FloatArray,
    memory: FloatArray,
    settings: FloatArray,
) -> tuple[int, int, float]:
    """Choose the class with the highest bound (steps 1-4), with one diagonal per class."""
    W, A = M[0], M[1]
    check_event(indices, values, W.shape[1])
    x = unit(values)
    linear_scores(indices, x, W, scores)
    c = np.empty(scores.size)
    _variances_diag(indices, x, A, c)
    if settings[PROJECTION] != 0.0 and all_positive(c):
        shift = shifts(scores, c, settings[ALPHA])
        for k in range(scores.size):
            scores[k] = bounded(scores[k] + shift[k] * c[k])  # the scores of W'
    limit(scores, eligible)
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
    """Replace W with W' (step 2), with one diagonal per class, and count the round."""
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
    """Update the action's A and weights (steps 6-8), with one diagonal per class."""
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
    assumed_reward: int,
    reward: int,
    v: float,
    M: FloatArray,
    memory: FloatArray,
    settings: FloatArray,
) -> bool:
    """Apply w_action += change · A⁻¹x, where change is the sign of the real bit minus that of the assumed bit."""
    W, A = M[0], M[1]
    change = target(reward, v, settings[ALPHA]) - target(assumed_reward, v, settings[ALPHA])
    if change == 0.0 or not usable(indices, values, action, propensity, scores, W.shape[0], W.shape[1]):
        return False
    x = unit(values)
    for a in range(indices.size):
        W[action, indices[a]] += change * x[a] / A[action, indices[a]]
    return indices.size > 0
