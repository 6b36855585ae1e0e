"""What late-ucb's kernels are made of: its model as one array, and x as its regressions see it."""

from math import inf, sqrt

import numpy as np

from stream.learners.kernels import argmax, bounded, compiled, inlined, norm_of
from stream.learners.random_features_kernels import SAMPLE, waves
from stream.learners.symmetric_kernels import block_of, sum_of_rows, variance
from stream.wire.events import FloatArray, IndexArray

PLAIN, QUADRATIC, PROJECTED = range(3)  # how x becomes the regression's features, random ones beside them or not

# Places at the beginning of the model; at the end of them how many contexts of the sample there are, and σ².
LAM, ETA, SHORTLIST, BIAS, KIND, FLOOR, DRIFT_KIND, CLASSES, SIZE, FEATURES, WAVES, PROJECT, SAMPLED, VARIANCE = range(
    14
)
SETTINGS = 14

# Rows of `counts`, whose last column is that of all classes together; changes of P and of Q that are kept apart.
WEIGHT, DETECTORS, ALARMS, PENDING = 0, slice(1, 4), 4, slice(5, 7)
COUNTS = 7

BELIEVED, SETTLED = range(2)
"""The two regressions: of all decisions, and with random features that of settled bits alone."""


@inlined
def regressions_of(model: FloatArray) -> int:
    """One, or two with random features."""
    return 2 if model[WAVES] > 0.0 else 1


@inlined
def counts_of(model: FloatArray) -> FloatArray:
    """Counts [7, K + 1]: they are behind the settings, then come the weights, the inverses, and what never changes.

    All is one array, because each that a kernel gets costs 0.1 µs; to give a part its shape costs half of that.
    """
    columns = int(model[CLASSES]) + 1
    return model[SETTINGS : SETTINGS + COUNTS * columns].reshape((COUNTS, columns))


@inlined
def weights_of(model: FloatArray) -> FloatArray:
    """[d', R·K]: for each feature the weights w of all classes, then their y."""
    columns, size = regressions_of(model) * int(model[CLASSES]), int(model[SIZE])
    start = SETTINGS + COUNTS * (int(model[CLASSES]) + 1)
    return model[start : start + columns * size].reshape((size, columns))


@inlined
def inverses_of(model: FloatArray, which: int) -> FloatArray:
    """P and V of every class [K, d' + B, d'], or Q and its own V."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows = size + block_of(size)
    start = SETTINGS + COUNTS * (K + 1) + (regressions_of(model) + which * rows) * K * size
    return model[start : start + K * rows * size].reshape((K, rows, size))


@inlined
def inverse_of_class(model: FloatArray, which: int, k: int) -> FloatArray:
    """P and V of a class [d' + B, d'], or Q and its own V."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows = size + block_of(size)
    start = SETTINGS + COUNTS * (K + 1) + (regressions_of(model) * K + (which * K + k) * rows) * size
    return model[start : start + rows * size].reshape((rows, size))


@inlined
def fixed_parts(model: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Gᵀ [d, p], σω [d, m], β [m], and the sample [64, d]: the end of the model."""
    d, m, p = int(model[FEATURES]), int(model[WAVES]), int(model[PROJECT])
    sample = model.size - (SAMPLE * d if m else 0)
    phases = sample - m
    omega = phases - d * m
    return (
        model[omega - d * p : omega].reshape((d, p)),
        model[omega:phases].reshape((d, m)),
        model[phases:sample],
        model[sample:].reshape((SAMPLE if m else 0, d)),
    )


@compiled
def expanded(indices: IndexArray, values: FloatArray, d: int) -> tuple[IndexArray, FloatArray]:
    """The entries of x, and behind them all products x_i x_j with i ≤ j."""
    n = indices.size
    size = n + n * (n + 1) // 2
    places, entries = np.empty(size, np.int32), np.empty(size)
    place = n
    for a in range(n):
        i = np.int64(indices[a])
        places[a], entries[a] = i, values[a]
        first = d + i * d - i * (i - 1) // 2  # the place of x_i x_i
        for b in range(a, n):
            places[place] = first + indices[b] - i
            entries[place] = values[a] * values[b]
            place += 1
    return places, entries


# What a decision logs, behind its scores: with drift, how often its class had been reset; with random features, its own
# w_aᵀx and whether the features were known; with a projection, the projected x.


@inlined
def own_score_place(model: FloatArray) -> int:
    """Where the scores [K + L] have w_aᵀx with random features; whether these were known is the next place."""
    return int(model[CLASSES]) + (1 if model[DRIFT_KIND] != 0.0 else 0)


@inlined
def with_bias(
    indices: IndexArray, values: FloatArray, scores: FloatArray, model: FloatArray
) -> tuple[IndexArray, FloatArray, float]:
    """The regression's features: expanded or projected, of unit norm, and a constant entry at the end; and ‖·‖².

    With random features between them, the others are divided by √2. What is logged in `scores` says whether they were
    known when the decision was made; projected features are logged themselves. In ‖·‖² an x of unit norm counts without
    rounding: classes with as many decisions must tie exactly.
    """
    kind, size, m, p = model[KIND], int(model[SIZE]), int(model[WAVES]), int(model[PROJECT])
    share = sqrt(0.5) if m > 0 else 1.0
    waving = m if m > 0 and scores[own_score_place(model) + 1] != 0.0 else 0
    if kind == QUADRATIC:
        indices, values = expanded(indices, values, int(model[FEATURES]))
    n = indices.size
    norm = norm_of(values)
    scaled = 0.0 < norm < inf  # else all zeros, as `unit` makes them
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
        _, omega, phases, _ = fixed_parts(model)
        direction = entries[:n] if kind != PROJECTED else unit_of(values, norm, scaled)
        entries[first : first + m] = waves(indices, direction, norm if scaled else 0.0, model[VARIANCE], phases, omega)
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
def unit_of(values: FloatArray, norm: float, scaled: bool) -> FloatArray:
    """Scale x to unit norm, or to zeros."""
    direction = np.zeros(values.size)
    if scaled:
        for a in range(values.size):
            direction[a] = np.divide(values[a], norm)
    return direction


@inlined
def scores_of(places: IndexArray, x: FloatArray, weights: FloatArray, scores: FloatArray) -> None:
    """w_kᵀx of every class, or (w_kᵀx + y_kᵀx)/2, in the first K places of the scores."""
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
    """One of the sums, with the bits that `scores_of` gives it."""
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
    """Move the weights of a column by scale · z."""
    for j in range(z.size):
        weights[j, column] += scale * z[j]


@compiled
def epoch(counts: FloatArray, k: int) -> float:
    """How often a class was reset."""
    return float(counts[ALARMS, k] + counts[ALARMS, counts.shape[1] - 1])


@inlined
def believed_score(action: int, scores: FloatArray, model: FloatArray) -> float:
    """The w_aᵀx of a decision."""
    return float(scores[own_score_place(model)] if model[WAVES] > 0.0 else scores[action])


@compiled
def highest_bound(
    places: IndexArray, x: FloatArray, length_sq: float, scores: FloatArray, counts: FloatArray, model: FloatArray
) -> int:
    """The class of a shortlist with the highest s_k + √(η xᵀP_k x); ties go to the lowest class."""
    P = inverses_of(model, BELIEVED)
    K, size = P.shape[0], P.shape[2]
    z = np.empty(size)
    rough = np.empty(K)
    for k in range(K):  # numpy's division has no branch for a divisor of 0: the loop becomes vector instructions
        rough[k] = scores[k] + sqrt(np.divide(model[ETA] * length_sq, model[LAM] + np.divide(counts[WEIGHT, k], size)))
    action = -1
    highest = 0.0
    for _ in range(min(int(model[SHORTLIST]), K)):
        k = argmax(rough)
        rough[k] = -inf
        bound = scores[k] + sqrt(model[ETA] * variance(P[k], int(counts[PENDING][BELIEVED, k]), places, x, z))
        if action < 0 or bound > highest or (bound == highest and k < action):
            action, highest = k, bound
    return action


@compiled
def reset(k: int, model: FloatArray) -> None:
    """Forget what was learned of a class."""
    counts, weights = counts_of(model), weights_of(model)
    counts[WEIGHT, k] = 0.0
    for which in range(regressions_of(model)):
        weights[:, which * int(model[CLASSES]) + k] = 0.0
        P = inverse_of_class(model, which, k)
        P[:] = 0.0
        for j in range(P.shape[1]):
            P[j, j] = 1.0 / model[LAM]
        counts[PENDING][which, k] = 0.0
