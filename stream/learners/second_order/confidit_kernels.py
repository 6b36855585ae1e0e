"""Confidit's kernels: the confidence bounds, and the algorithm's steps with full matrices and with diagonals."""

from math import log, sqrt
from typing import NamedTuple

import numpy as np

from stream.learners.kernels import (
    Decided,
    Event,
    argmax,
    bounded,
    check_event,
    kernel,
    limit,
    linear_scores,
    subroutine,
    subtract_outer,
    sum_of_rows,
    unit,
    usable,
)
from stream.wire.records import Features, FloatArray, IndexArray

PENDING_MAX = 32
"""Number of rank-one changes to a class's inverse that are applied in one pass. The speed of a pass is limited by
memory bandwidth, so one pass with 32 changes takes a fifth of the time of 32 passes. The number must be a multiple of
8; see `subtract_outer`."""

# Indices in `memory`, the running totals.
ROUNDS = 0  # t, decisions made
CONFIDENCE_SUM = 1  # Σ_s x_sᵀA_{a_s,s}⁻¹x_s over the updates
ERROR_SUM = 2  # Σ_{s<t} q_s over the rounds

CONFIDENCES = ("constant", "theory", "modified")
"""The formulas (11), (9) and (10). `Settings.confidence` is an index into this tuple."""


class Settings(NamedTuple):
    """The parameters; see `Confidit`."""

    alpha: float
    eta: float
    u_norm_sq: float
    delta: float
    approx_error: float
    approx_error_power: float
    projection: bool
    confidence: int


class FullModel(NamedTuple):
    """The model with a full matrix per class, stored as its inverse and the changes not yet applied to the inverse."""

    W: FloatArray  # [K, d]
    inverses: FloatArray  # [K, d, d]
    rows: FloatArray  # [K, 32, d], the changes z of A⁻¹ −= zzᵀ
    columns: FloatArray  # [K, d, 32], the transpose of `rows`, for fast access by feature
    counts: IndexArray  # [K], the numbers of changes
    memory: FloatArray  # [3], the running totals
    settings: Settings


class DiagonalModel(NamedTuple):
    """The model with a diagonal per class."""

    W: FloatArray  # [K, d]
    A: FloatArray  # [K, d]
    memory: FloatArray  # [3], the running totals
    settings: Settings


@subroutine
def next_multiplier(model: FullModel | DiagonalModel) -> float:
    """Return ε_i² / c_i for the next round."""
    settings, memory = model.settings, model.memory
    t = memory[ROUNDS] + 1.0
    if settings.confidence == 0:
        return settings.eta  # (11)
    scale = (1.0 + settings.alpha) ** 2
    bracket: float = (
        0.5 * scale * settings.u_norm_sq
        + 0.5 * scale * memory[CONFIDENCE_SUM]
        + 9.0 * scale * log((t + 4.0) / settings.delta)
    )  # (9)
    if settings.confidence == 2:
        bracket += scale * memory[ERROR_SUM]  # (10)
    return 2.0 * bracket


@subroutine
def count_round(model: FullModel | DiagonalModel) -> None:
    """Count a round, and add q_t to the running sum."""
    settings, memory = model.settings, model.memory
    t = memory[ROUNDS] + 1.0
    memory[ROUNDS] = t
    if settings.confidence == 2:
        memory[ERROR_SUM] += settings.approx_error * t**settings.approx_error_power


@subroutine
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


@subroutine
def all_positive(c: FloatArray) -> bool:
    """Return whether the projection has a solution, which requires a non-zero x."""
    positive = True
    for k in range(c.size):
        positive = positive and c[k] > 0.0
    return positive


@subroutine
def highest_bound(scores: FloatArray, c: FloatArray, multiplier: float) -> int:
    """Return the class with the highest s_i + ε_i. Ties go to the lowest index."""
    bounds = np.empty(scores.size)
    for k in range(scores.size):
        bounds[k] = scores[k] + sqrt(multiplier * c[k])  # (4)
    return argmax(bounds)


@subroutine
def target(reward: float, v: float, settings: Settings) -> float:
    """Return the sign of the update (steps 6a, 6b and 7). A share r is right with probability r."""
    return -1.0 if v < 0.5 * (1.0 - reward) * (1.0 + settings.alpha) else 1.0


@subroutine
def _variances(x: Features, model: FullModel) -> FloatArray:
    """Return c_i = xᵀA_i⁻¹x for every class, using half of the nnz × nnz entries and the pending changes.

    The speed is limited by scattered reads, so the function uses four independent sums.
    """
    indices, values = x
    inverses, columns, counts = model.inverses, model.columns, model.counts
    n = indices.size
    c, dots = np.empty(counts.size), np.empty(PENDING_MAX)
    for k in range(c.size):
        total = 0.0
        for a in range(n):
            row = inverses[k, indices[a]]
            s0 = 0.5 * row[indices[a]] * values[a]
            s1 = s2 = s3 = 0.0
            b = a + 1
            while b + 3 < n:
                s0 += row[indices[b]] * values[b]
                s1 += row[indices[b + 1]] * values[b + 1]
                s2 += row[indices[b + 2]] * values[b + 2]
                s3 += row[indices[b + 3]] * values[b + 3]
                b += 4
            while b < n:
                s0 += row[indices[b]] * values[b]
                b += 1
            total += ((s0 + s1) + (s2 + s3)) * values[a]
        total *= 2.0
        if counts[k] > 0:
            dots[:] = 0.0
            for a in range(n):
                column = columns[k, indices[a]]
                for m in range(dots.size):
                    dots[m] += values[a] * column[m]
            for m in range(counts[k]):
                total -= dots[m] * dots[m]
        c[k] = max(total, 0.0)  # A⁻¹ is positive definite, so a negative value is a rounding error
    return c


@subroutine
def _inverse_times(k: int, x: Features, model: FullModel) -> FloatArray:
    """Return A_k⁻¹x."""
    indices, values = x
    rows, columns = model.rows, model.columns
    z = np.empty(rows.shape[2])
    sum_of_rows(model.inverses[k], indices, values, z)
    for m in range(model.counts[k]):
        change = rows[k, m]
        dot = 0.0
        for a in range(indices.size):
            dot += values[a] * columns[k, indices[a], m]
        for j in range(z.size):
            z[j] -= dot * change[j]
    return z


@subroutine
def _unit(x: Features) -> Features:
    """Scale x to unit norm."""
    return Features(x.indices, unit(x.values))


@subroutine
def _decide(event: Event, x: Features, c: FloatArray, model: FullModel | DiagonalModel) -> tuple[int, int, float]:
    """Return the class with the highest bound (steps 1-4), given x scaled to unit norm and its c_i."""
    scores, alpha = event.scores, model.settings.alpha
    linear_scores(x, model.W, scores)
    if model.settings.projection and all_positive(c):
        shift = shifts(scores, c, alpha)
        for k in range(scores.size):
            scores[k] = bounded(scores[k] + shift[k] * c[k])  # the scores of W'
    limit(scores, event.eligible)
    action = highest_bound(scores, c, next_multiplier(model))
    return action, argmax(scores), 1.0


@subroutine
def _shifts(x: Features, c: FloatArray, model: FullModel | DiagonalModel) -> FloatArray:
    """Return the shifts of the scores of x, or an empty array if the projection has no solution."""
    if not all_positive(c):
        return np.empty(0)
    scores = np.empty(c.size)
    linear_scores(x, model.W, scores)
    return shifts(scores, c, model.settings.alpha)


@kernel
def predict_full(event: Event, model: FullModel) -> tuple[int, int, float]:
    """Choose the class with the highest bound, with one full matrix per class."""
    check_event(event.x, model.W.shape[1])
    x = _unit(event.x)
    return _decide(event, x, _variances(x, model), model)


@kernel
def observe_full(event: Decided, model: FullModel) -> None:
    """Replace W with W' (step 2), with one full matrix per class, and count the round."""
    W = model.W
    check_event(event.x, W.shape[1])
    count_round(model)
    if not model.settings.projection:
        return
    x = _unit(event.x)
    shift = _shifts(x, _variances(x, model), model)
    for k in range(shift.size):
        z = _inverse_times(k, x, model)
        row = W[k]
        for j in range(z.size):
            row[j] += shift[k] * z[j]  # (7)


@kernel
def update_full(event: Decided, model: FullModel) -> bool:
    """Run steps 6-8 with one full matrix per class: w += A_new⁻¹x (±1 - wᵀx), A_new⁻¹ = A⁻¹ - zzᵀ/(1+c), z = A⁻¹x."""
    if not usable(event, *model.W.shape):
        return False
    x = _unit(event.x)
    indices, values = x
    action, counts, columns = event.action, model.counts, model.columns
    z = _inverse_times(action, x, model)
    w = model.W[action]
    score = 0.0
    c = 0.0
    for a in range(indices.size):
        score += w[indices[a]] * values[a]
        c += z[indices[a]] * values[a]
    if not c > 0.0:
        return False
    step = (target(event.reward, event.v, model.settings) - score) / (1.0 + c)
    scale = 1.0 / sqrt(1.0 + c)
    place = counts[action]
    change = model.rows[action, place]
    for j in range(z.size):
        w[j] += step * z[j]  # step 8
        change[j] = scale * z[j]
        columns[action, j, place] = scale * z[j]
    counts[action] = place + 1
    if counts[action] == PENDING_MAX:
        subtract_outer(model.inverses[action], model.rows[action])
        counts[action] = 0
    model.memory[CONFIDENCE_SUM] += c / (1.0 + c)  # xᵀA⁻¹x after this update
    return True


@kernel
def retract_full(event: Decided, assumed_reward: float, model: FullModel) -> bool:
    """Apply w_action += change · A⁻¹x, where change is the sign of the real bit minus that of the assumed bit."""
    change = target(event.reward, event.v, model.settings) - target(assumed_reward, event.v, model.settings)
    if change == 0.0 or not usable(event, *model.W.shape):
        return False
    z = _inverse_times(event.action, _unit(event.x), model)
    w = model.W[event.action]
    for j in range(z.size):
        w[j] += change * z[j]
    return event.x.indices.size > 0


@subroutine
def _variances_diagonal(x: Features, A: FloatArray) -> FloatArray:
    """Return c_i = xᵀA_i⁻¹x for every class."""
    indices, values = x
    c = np.empty(A.shape[0])
    for k in range(c.size):
        total = 0.0
        for a in range(indices.size):
            total += values[a] * values[a] / A[k, indices[a]]
        c[k] = total
    return c


@kernel
def predict_diagonal(event: Event, model: DiagonalModel) -> tuple[int, int, float]:
    """Choose the class with the highest bound, with one diagonal per class."""
    check_event(event.x, model.W.shape[1])
    x = _unit(event.x)
    return _decide(event, x, _variances_diagonal(x, model.A), model)


@kernel
def observe_diagonal(event: Decided, model: DiagonalModel) -> None:
    """Replace W with W' (step 2), with one diagonal per class, and count the round."""
    W, A = model.W, model.A
    check_event(event.x, W.shape[1])
    count_round(model)
    if not model.settings.projection:
        return
    x = _unit(event.x)
    indices, values = x
    shift = _shifts(x, _variances_diagonal(x, A), model)
    for k in range(shift.size):
        for a in range(indices.size):
            W[k, indices[a]] += shift[k] * values[a] / A[k, indices[a]]  # (7)


@kernel
def update_diagonal(event: Decided, model: DiagonalModel) -> bool:
    """Update the action's A and weights (steps 6-8), with one diagonal per class."""
    if not usable(event, *model.W.shape):
        return False
    w, a = model.W[event.action], model.A[event.action]
    indices, values = _unit(event.x)
    sign = target(event.reward, event.v, model.settings)
    c_after = 0.0
    for j in range(indices.size):
        i, x = indices[j], values[j]
        before = a[i]
        after = before + x * x
        w[i] = (before * w[i] + sign * x) / after  # step 8
        a[i] = after
        c_after += x * x / after
    model.memory[CONFIDENCE_SUM] += c_after
    return c_after > 0.0


@kernel
def retract_diagonal(event: Decided, assumed_reward: float, model: DiagonalModel) -> bool:
    """Apply w_action += change · A⁻¹x, where change is the sign of the real bit minus that of the assumed bit."""
    change = target(event.reward, event.v, model.settings) - target(assumed_reward, event.v, model.settings)
    if change == 0.0 or not usable(event, *model.W.shape):
        return False
    w, a = model.W[event.action], model.A[event.action]
    indices, values = _unit(event.x)
    for j in range(indices.size):
        w[indices[j]] += change * values[j] / a[indices[j]]
    return indices.size > 0
