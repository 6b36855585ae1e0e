"""Parts of late-ucb's kernels: access to the model, which is one array, and the features for the regressions."""

from math import inf, sqrt

import numpy as np

from stream.learners.kernels import argmax, bounded, compiled, inlined, norm_of, sum_of_rows, unit
from stream.learners.late_bits.random_features_kernels import SAMPLE, waves
from stream.learners.late_bits.symmetric_kernels import aligned_row, block_of, padded, variance
from stream.wire.records import NOT_ELIGIBLE, FloatArray, IndexArray

PLAIN, QUADRATIC, PROJECTED = range(3)  # transformation of x; random features are a separate option

# Indices of the numbers at the start of the model. The last two are the number of sampled contexts and σ².
LAM, ETA, SHORTLIST, BIAS, KIND, DRIFT_KIND, CLASSES, SIZE, FEATURES, WAVES, PROJECT, SAMPLED, VARIANCE = range(13)
SETTINGS = 13

# Rows of `counts`; the last column is for all classes together. PENDING counts the changes not yet applied to P and Q.
WEIGHT, DETECTORS, ALARMS, PENDING = 0, slice(1, 4), 4, slice(5, 7)
COUNTS = 7

BELIEVED, SETTLED = range(2)
"""Indices of the regressions. The first uses all decisions; the second, with random features, uses settled bits
only."""


@inlined
def regressions_of(model: FloatArray) -> int:
    """Return the number of regressions: two with random features, or one without."""
    return 2 if model[WAVES] > 0.0 else 1


@inlined
def counts_of(model: FloatArray) -> FloatArray:
    """Return the counts [7, K + 1].

    The model consists of the settings, the counts, the weights, the inverses and the constant parts. It is one array,
    because each array argument costs 0.1 µs, while reshaping a part costs half of that.
    """
    columns = int(model[CLASSES]) + 1
    return model[SETTINGS : SETTINGS + COUNTS * columns].reshape((COUNTS, columns))


@inlined
def weights_of(model: FloatArray) -> FloatArray:
    """Return the weights [d', R·K], with R regressions. Each row contains w for all classes, then y for all classes."""
    columns, size = regressions_of(model) * int(model[CLASSES]), int(model[SIZE])
    start = SETTINGS + COUNTS * (int(model[CLASSES]) + 1)
    return model[start : start + columns * size].reshape((size, columns))


@inlined
def inverses_of(model: FloatArray, which: int) -> FloatArray:
    """Return P and V for every class [K, d' + B, s], or Q and the pending changes to Q."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows, columns = size + block_of(size), padded(size)
    start = SETTINGS + COUNTS * (K + 1) + regressions_of(model) * K * size + which * K * rows * columns
    return model[start : start + K * rows * columns].reshape((K, rows, columns))


@inlined
def inverse_of_class(model: FloatArray, which: int, k: int) -> FloatArray:
    """Return P and V for a class [d' + B, s], or Q and the pending changes to Q."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows, columns = size + block_of(size), padded(size)
    start = SETTINGS + COUNTS * (K + 1) + regressions_of(model) * K * size + (which * K + k) * rows * columns
    return model[start : start + rows * columns].reshape((rows, columns))


# The constant parts are at the end of the model. Each part has its own function, because a reshape takes 0.02 µs.


@inlined
def projection_of(model: FloatArray) -> FloatArray:
    """Return Gᵀ [d, p]."""
    d, m, p = int(model[FEATURES]), int(model[WAVES]), int(model[PROJECT])
    stop = model.size - (SAMPLE * d if m else 0) - m - d * m
    return model[stop - d * p : stop].reshape((d, p))


@inlined
def waves_of(model: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return σω [d, m] and β [m], if there are random features."""
    d, m = int(model[FEATURES]), int(model[WAVES])
    phases = model.size - SAMPLE * d - m
    return model[phases - d * m : phases].reshape((d, m)), model[phases : phases + m]


@inlined
def sample_of(model: FloatArray) -> FloatArray:
    """Return the sample [64, d], if there are random features."""
    d = int(model[FEATURES])
    return model[model.size - SAMPLE * d :].reshape((SAMPLE, d))


@compiled
def expanded(indices: IndexArray, values: FloatArray, d: int) -> tuple[IndexArray, FloatArray]:
    """Return the entries of x, followed by all products x_i x_j with i ≤ j."""
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
    return places, entries


# A decision logs these values after its scores: with drift detection, the number of resets of its class; with random
# features, w_aᵀx and whether the features were available; and with a projection, the projected x.


@inlined
def own_score_place(model: FloatArray) -> int:
    """Return the index of w_aᵀx in the scores [K + L]. The next entry is 1 if random features were available."""
    return int(model[CLASSES]) + (1 if model[DRIFT_KIND] != 0.0 else 0)


@inlined
def with_bias(
    indices: IndexArray, values: FloatArray, scores: FloatArray, model: FloatArray
) -> tuple[IndexArray, FloatArray, float]:
    """Return the regression features and their squared norm.

    The features are x (expanded or projected, and scaled to unit norm) and a constant. If there are random features,
    they precede the constant, and the features before them are divided by √2. `scores` records the projected features,
    and whether random features were available when the decision was made. The squared norm is exact if x has unit norm,
    so that classes with the same number of decisions tie exactly.
    """
    kind, size, m, p = model[KIND], int(model[SIZE]), int(model[WAVES]), int(model[PROJECT])
    share = sqrt(0.5) if m > 0 else 1.0
    waving = m if m > 0 and scores[own_score_place(model) + 1] != 0.0 else 0
    if kind == QUADRATIC:
        indices, values = expanded(indices, values, int(model[FEATURES]))
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
        omega, phases = waves_of(model)
        direction = entries[:n] if kind != PROJECTED else unit(values)
        z = entries[first : first + m]
        waves(indices, direction, norm if scaled else 0.0, model[VARIANCE], phases, omega, z)
        for a in range(m):
            places[first + a] = size - 1 - m + a
            length_sq += entries[first + a] * entries[first + a]
    if kind != PROJECTED and m > 0:
        for a in range(n):
            entries[a] *= share
    places[first + waving] = size - 1
    entries[first + waving] = model[BIAS]
    return places, entries, length_sq + model[BIAS] * model[BIAS]


@inlined
def scores_of(places: IndexArray, x: FloatArray, weights: FloatArray, scores: FloatArray) -> None:
    """Write w_kᵀx for every class, or (w_kᵀx + y_kᵀx)/2, into the first K scores."""
    K, columns = scores.size, weights.shape[1]
    sums = np.empty(columns)
    sum_of_rows(weights, places, x, sums)
    for k in range(K):
        scores[k] = bounded(sums[k])
    if columns > K:
        for k in range(K):
            scores[k] = 0.5 * (scores[k] + bounded(sums[K + k]))


@inlined
def score_of(places: IndexArray, x: FloatArray, weights: FloatArray, column: int) -> float:
    """Return the product of x and one column. The result is bitwise equal to the one from `scores_of`."""
    total = 0.0
    a = 0
    while a + 3 < x.size:
        total += (x[a] * weights[places[a], column] + x[a + 1] * weights[places[a + 1], column]) + (
            x[a + 2] * weights[places[a + 2], column] + x[a + 3] * weights[places[a + 3], column]
        )
        a += 4
    while a < x.size:
        total += x[a] * weights[places[a], column]
        a += 1
    return bounded(total)


@inlined
def move(weights: FloatArray, column: int, scale: float, z: FloatArray) -> None:
    """Add scale · z to the weights in a column."""
    for j in range(weights.shape[0]):
        weights[j, column] += scale * z[j]


@compiled
def epoch(counts: FloatArray, k: int) -> float:
    """Return how many times a class has been reset."""
    return float(counts[ALARMS, k] + counts[ALARMS, counts.shape[1] - 1])


@inlined
def score_at_decision(action: int, scores: FloatArray, model: FloatArray) -> float:
    """Return w_aᵀx at the time of the decision."""
    return float(scores[own_score_place(model)] if model[WAVES] > 0.0 else scores[action])


@compiled
def highest_bound(
    places: IndexArray, x: FloatArray, length_sq: float, scores: FloatArray, counts: FloatArray, model: FloatArray
) -> int:
    """Return the shortlisted class with the highest s_k + √(η xᵀP_k x). Ties go to the lowest index."""
    P = inverses_of(model, BELIEVED)
    K, size = P.shape[0], int(model[SIZE])
    z = aligned_row(P.shape[2])
    rough = np.empty(K)
    for k in range(K):  # numpy's division has no branch for a zero divisor, so the loop is vectorised
        rough[k] = scores[k] + sqrt(np.divide(model[ETA] * length_sq, model[LAM] + np.divide(counts[WEIGHT, k], size)))
    action = -1
    highest = 0.0
    for _ in range(min(int(model[SHORTLIST]), K)):
        k = argmax(rough)
        if scores[k] == NOT_ELIGIBLE:
            break  # no further class is eligible
        rough[k] = -inf
        bound = scores[k] + sqrt(model[ETA] * variance(P[k], int(counts[PENDING][BELIEVED, k]), places, x, z))
        if action < 0 or bound > highest or (bound == highest and k < action):
            action, highest = k, bound
    return action


@compiled
def reset(k: int, model: FloatArray) -> None:
    """Reset the model of a class."""
    counts, weights = counts_of(model), weights_of(model)
    counts[WEIGHT, k] = 0.0
    for which in range(regressions_of(model)):
        weights[:, which * int(model[CLASSES]) + k] = 0.0
        P = inverse_of_class(model, which, k)
        P[:] = 0.0
        for j in range(weights.shape[0]):
            P[j, j] = 1.0 / model[LAM]
        counts[PENDING][which, k] = 0.0
