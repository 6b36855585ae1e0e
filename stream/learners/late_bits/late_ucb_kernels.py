"""Parts of late-ucb's kernels: the model, the features for the regressions, and the bounds."""

from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from stream.learners.kernels import Decided, argmax, bounded, inlined, norm_of, subroutine, sum_of_rows, unit
from stream.learners.late_bits.random_features_kernels import Waves, write_waves
from stream.learners.late_bits.symmetric_kernels import aligned_row, variance
from stream.wire.records import NOT_ELIGIBLE, Features, FloatArray

PLAIN, QUADRATIC, PROJECTED = range(3)  # transformation of x; random features are a separate option

BELIEVED, SETTLED = range(2)
"""Indices of the regressions. The first uses all decisions; the second, with random features, uses settled bits
only."""


class Model(NamedTuple):
    """One or two ridge regressions per class; see `LateUcb`. R is the number of regressions."""

    weights: FloatArray  # [d', R·K]; a row contains w for all classes, then y for all classes
    inverses: FloatArray  # [R, K, d' + B, s], P and V, then Q and U; see `symmetric_kernels`
    pending: FloatArray  # [R, K], the number of changes not yet applied to P and Q
    N: FloatArray  # [K], Σ‖x‖² over a class's decisions
    detectors: FloatArray  # [3, K + 1]; the last column is for all classes together
    alarms: FloatArray  # [K + 1]
    G: FloatArray  # [d, p], the transposed projection
    waves: Waves
    lam: float
    eta: float
    shortlist: int
    bias: float
    kind: int
    drift: int  # an index into DRIFTS


@subroutine
def expanded(x: Features, d: int) -> Features:
    """Return the entries of x, followed by all products x_i x_j with i ≤ j."""
    indices, values = x
    n = indices.size
    size = n + n * (n + 1) // 2
    places, entries = np.empty(size, np.int32), np.empty(size)
    place = n
    for a in range(n):
        i = np.int64(indices[a])
        places[a], entries[a] = i, values[a]
        first = d + i * d - i * (i - 1) // 2  # the index of x_i x_i
        for b in range(a, n):
            places[place] = first + indices[b] - i
            entries[place] = values[a] * values[b]
            place += 1
    return Features(places, entries)


# A decision logs these values after its scores: with drift detection, the number of resets of its class; with random
# features, w_aᵀx and whether the features were available; and with a projection, the projected x.


@inlined
def own_score_place(model: Model) -> int:
    """Return the index of w_aᵀx in the scores [K + L]. The next entry is 1 if random features were available."""
    return model.N.size + (1 if model.drift != 0 else 0)


@inlined
def with_bias(x: Features, scores: FloatArray, model: Model) -> tuple[Features, float]:
    """Return the regression features and their squared norm.

    The features are x (expanded or projected, and scaled to unit norm) and a constant. If there are random features,
    they precede the constant, and the features before them are divided by √2. `scores` records the projected features,
    and whether random features were available when the decision was made. The squared norm is exact if x has unit norm,
    so that classes with the same number of decisions tie exactly.
    """
    indices, values = x
    kind, size, m, p = model.kind, model.weights.shape[0], model.waves.phases.size, model.G.shape[1]
    share = sqrt(0.5) if m > 0 else 1.0
    waving = m if m > 0 and scores[own_score_place(model) + 1] != 0.0 else 0
    if kind == QUADRATIC:
        indices, values = expanded(x, model.G.shape[0])
    n = indices.size
    norm = norm_of(values)
    scaled = 0.0 < norm < inf  # otherwise zeros, as `unit` returns
    first = p if kind == PROJECTED else n
    places, entries = np.empty(first + waving + 1, np.int32), np.empty(first + waving + 1)
    length_sq = 0.5 if m > 0 else 1.0
    if kind == PROJECTED:
        length_sq = 0.0
        for a in range(p):
            places[a] = a
            entries[a] = share * scores[scores.size - p + a]
            length_sq += entries[a] * entries[a]
    else:
        if not scaled:
            length_sq = 0.0
        for a in range(n):
            places[a] = indices[a]
            entries[a] = np.divide(values[a], norm) if scaled else 0.0
    if waving > 0:
        direction = entries[:n] if kind != PROJECTED else unit(values)
        z = entries[first : first + m]
        write_waves(Features(indices, direction), norm if scaled else 0.0, model.waves, z)
        for a in range(m):
            places[first + a] = size - 1 - m + a
            length_sq += entries[first + a] * entries[first + a]
    if kind != PROJECTED and m > 0:
        for a in range(n):
            entries[a] *= share
    places[first + waving] = size - 1
    entries[first + waving] = model.bias
    return Features(places, entries), length_sq + model.bias * model.bias


@inlined
def scores_of(x: Features, weights: FloatArray, scores: FloatArray) -> None:
    """Write w_kᵀx for every class, or (w_kᵀx + y_kᵀx)/2, into the first K scores."""
    K, columns = scores.size, weights.shape[1]
    sums = np.empty(columns)
    sum_of_rows(weights, x.indices, x.values, sums)
    for k in range(K):
        scores[k] = bounded(sums[k])
    if columns > K:
        for k in range(K):
            scores[k] = 0.5 * (scores[k] + bounded(sums[K + k]))


@inlined
def score_of(x: Features, weights: FloatArray, column: int) -> float:
    """Return the product of x and one column. The result is bitwise equal to the one from `scores_of`."""
    indices, values = x
    total = 0.0
    a = 0
    while a + 3 < values.size:
        total += (values[a] * weights[indices[a], column] + values[a + 1] * weights[indices[a + 1], column]) + (
            values[a + 2] * weights[indices[a + 2], column] + values[a + 3] * weights[indices[a + 3], column]
        )
        a += 4
    while a < values.size:
        total += values[a] * weights[indices[a], column]
        a += 1
    return bounded(total)


@inlined
def move(weights: FloatArray, column: int, scale: float, z: FloatArray) -> None:
    """Add scale · z to the weights in a column."""
    for j in range(weights.shape[0]):
        weights[j, column] += scale * z[j]


@inlined
def epoch(k: int, model: Model) -> float:
    """Return how many times a class has been reset."""
    return float(model.alarms[k] + model.alarms[model.N.size])


@inlined
def score_at_decision(event: Decided, model: Model) -> float:
    """Return w_aᵀx at the time of the decision."""
    return float(event.scores[own_score_place(model) if model.waves.phases.size > 0 else event.action])


@inlined
def highest_bound(x: Features, length_sq: float, scores: FloatArray, model: Model) -> int:
    """Return the shortlisted class with the highest s_k + √(η xᵀP_k x). Ties go to the lowest index."""
    P, N = model.inverses[BELIEVED], model.N
    K, size = N.size, model.weights.shape[0]
    z = aligned_row(P.shape[2])
    rough = np.empty(K)
    for k in range(K):  # numpy's division has no branch for a zero divisor, so the loop is vectorised
        rough[k] = scores[k] + sqrt(np.divide(model.eta * length_sq, model.lam + np.divide(N[k], size)))
    action = -1
    highest = 0.0
    for _ in range(min(model.shortlist, K)):
        k = argmax(rough)
        if scores[k] == NOT_ELIGIBLE:
            break  # no further class is eligible
        rough[k] = -inf
        bound = scores[k] + sqrt(model.eta * variance(P[k], int(model.pending[BELIEVED, k]), x, z))
        if action < 0 or bound > highest or (bound == highest and k < action):
            action, highest = k, bound
    return action


@subroutine
def reset(k: int, model: Model) -> None:
    """Reset the model of a class."""
    model.N[k] = 0.0
    for which in range(model.inverses.shape[0]):
        model.weights[:, which * model.N.size + k] = 0.0
        P = model.inverses[which, k]
        P[:] = 0.0
        for j in range(model.weights.shape[0]):
            P[j, j] = 1.0 / model.lam
        model.pending[which, k] = 0.0
