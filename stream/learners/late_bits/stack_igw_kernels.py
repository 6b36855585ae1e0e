"""Parts of stack-igw's kernels: the evidence for each class, the stack, and their updates."""

from math import inf, log, sqrt

import numpy as np

from stream.learners.kernels import bounded, compiled, logistic, unit
from stream.learners.late_bits.word_vectors_kernels import (
    IS_ON,
    RIDGE,
    centroids_of,
    inverses_of,
    regressions_of,
    sketch_of,
    word_signals,
)
from stream.wire.records import FloatArray, IndexArray

A_START = 3e-3
"""Initial value of A; see igw-logistic. A smaller value makes the first steps larger and, with rarity weights, less
accurate."""

PRIOR = np.array([0.0, 5.0, 10.0, 0.0, -1.5, -1.0, 0.0, 0.5, 1.5])
"""Prior weights of the evidence: the initial v without its first entry. They reduce the error on 20 Newsgroups by three
percentage points."""

PRIOR_VARIANCE = 10.0

OF_WORDS = 4
"""Number of signals from the word vectors. Their weights in v start at 0."""

SCORE_CLIP = 8.0
"""Limit on a logistic regression's score. Beyond this limit, the probability hardly changes."""

CURVATURE_MIN = 0.01
"""Lower limit on ρ(1 − ρ), so that bits still have an effect when the stack is certain."""

GRADIENT_MIN = 1e-4
"""A class's regression is updated only if the class's error is at least this large."""

RARITY = 1.2
"""Constant in the rarity weights: a feature present in every x has weight ln 1.2."""

WAITING_SHARE = 0.1
"""Weight of a pending decision in the bonus of its class. A hit has weight 1."""

# Indices in `rest`: parameters and totals. The head, the counts and the word-vector data follow; see `parts`.
SCALE, STEP, OTHERS, BONUS, BIAS, DRIFT_KIND, DIMENSIONS, CLASSES, MEAN_COUNT, DECIDED, SETTLED = range(11)
PARTS = 11

# Rows of `counts`. The last column applies to all classes together.
NORM_SQ, HITS, MISSES, WAITING = range(4)
DETECTORS, ALARMS = slice(4, 7), 7
COUNTS = 8

# A feature's row: df, ln(1 + df), M, two entries for the word vectors, and then C, N, W and A, each with K entries.
FREQUENCY, RARITY_LOG, MEAN = range(3)
BY_CLASS = 5


def signals_with(dimensions: int) -> int:
    """Return the number of signals for vectors of this dimension. A dimension of 0 means no vectors."""
    return PRIOR.size + (OF_WORDS if dimensions else 0)


@compiled
def parts(rest: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the head [1 + S, S] (v, then P), the counts [8, K + 1], and the word-vector data except the vectors.

    All small parts share one array, because each array argument costs 0.1 µs.
    """
    m, K = int(rest[DIMENSIONS]), int(rest[CLASSES])
    signals = PRIOR.size + (OF_WORDS if m > 0 else 0)
    counts = PARTS + (1 + signals) * signals
    words = counts + COUNTS * (K + 1)
    return (
        rest[PARTS:counts].reshape((1 + signals, signals)),
        rest[counts:words].reshape((COUNTS, K + 1)),
        rest[words:],
    )


@compiled
def weighted(indices: IndexArray, values: FloatArray, Z: FloatArray, decided: float) -> FloatArray:
    """Scale x to unit norm, weight each entry by the rarity of its feature, and scale the result to unit norm.

    `RARITY_LOG` caches the logarithm of a feature's count.
    """
    x = unit(values)
    total_log = log(RARITY * (decided + 2.0))
    for j in range(indices.size):
        x[j] *= total_log - Z[indices[j], RARITY_LOG]
    return unit(x)


@compiled
def lead(z: FloatArray, out: FloatArray) -> None:
    """Compute, for every class k, z_k minus the largest of the other z_j."""
    largest = second = -inf
    for k in range(z.size):
        if z[k] > largest:
            second = largest
            largest = z[k]
        elif z[k] > second:
            second = z[k]
    for k in range(z.size):
        out[k] = z[k] - (largest if z[k] < largest else second)


@compiled
def evidence(indices: IndexArray, x: FloatArray, Z: FloatArray, rest: FloatArray) -> tuple[FloatArray, float]:
    """Return C_kᵀx, N_kᵀx and W_kᵀx for every class [3, K], and Mᵀx."""
    K = int(rest[CLASSES])
    dots = np.zeros(3 * K)
    last = Z[Z.shape[0] - 1]
    for k in range(K):
        dots[2 * K + k] = last[BY_CLASS + 2 * K + k] * rest[BIAS]
    mean = 0.0
    for j in range(indices.size):
        row = Z[indices[j]]
        value = x[j]
        mean += row[MEAN] * value
        of_classes = row[BY_CLASS : BY_CLASS + 3 * K]
        for k in range(3 * K):
            dots[k] += of_classes[k] * value
    return dots.reshape((3, K)), mean


@compiled
def signals(
    dots: FloatArray, mean: float, e: FloatArray, counts: FloatArray, words: FloatArray, rest: FloatArray
) -> FloatArray:
    """Return φ [K, S], the evidence for each class. e = Σ x_i V_i is empty without vectors."""
    K, m = int(rest[CLASSES]), int(rest[DIMENSIONS])
    c, s, phi = np.empty(K), np.empty(K), np.zeros((K, PRIOR.size + (OF_WORDS if m > 0 else 0)))
    mean /= max(rest[MEAN_COUNT], 1.0)
    for k in range(K):
        c[k] = dots[0, k] / sqrt(counts[NORM_SQ, k]) if counts[NORM_SQ, k] > 0.0 else 0.0
        s[k] = min(max(bounded(dots[2, k]), -SCORE_CLIP), SCORE_CLIP)
    lead_c, lead_s = np.empty(K), np.empty(K)
    lead(c, lead_c)
    lead(s, lead_s)
    for k in range(K):
        hits = counts[HITS, k]
        g = 1.0 / sqrt(1.0 + hits)
        excess = max(0.0, dots[1, k] - counts[MISSES, k] * mean)
        phi[k, 0] = 1.0
        phi[k, 1] = c[k]
        phi[k, 2] = lead_c[k]
        phi[k, 3] = 1.0 if hits == 0.0 else 0.0
        phi[k, 4] = log(1.0 + excess)
        phi[k, 5] = g
        phi[k, 6] = g * c[k]
        phi[k, 7] = s[k] / 4.0
        phi[k, 8] = lead_s[k] / 4.0
    if m > 0 and words[IS_ON] != 0.0:
        word_signals(e, words, c, s)
        lead(c, lead_c)
        lead(s, lead_s)
        for k in range(K):
            phi[k, 9] = c[k]
            phi[k, 10] = lead_c[k]
            phi[k, 11] = s[k]
            phi[k, 12] = lead_s[k]
    return phi


@compiled
def believed(head: FloatArray, phi: FloatArray) -> float:
    """Return σ(v·φ), where v is the first row of the head."""
    total = 0.0
    for i in range(phi.size):
        total += head[0, i] * phi[i]
    return logistic(total)


@compiled
def update_stack(head: FloatArray, phi: FloatArray, reward: int) -> None:
    """Update the shared logistic regression, using its running covariance (the head's rows after v)."""
    rho = believed(head, phi)
    curvature = max(rho * (1.0 - rho), CURVATURE_MIN)
    size = phi.size
    z = np.zeros(size)
    c = 0.0
    for i in range(size):
        for j in range(size):
            z[i] += head[1 + i, j] * phi[j]
        c += phi[i] * z[i]
    step = (reward - rho) / (1.0 + curvature * c)
    root = sqrt(curvature / (1.0 + curvature * c))
    for i in range(size):
        head[0, i] += step * z[i]
        for j in range(size):
            head[1 + i, j] -= (root * z[i]) * (root * z[j])  # computed like the mirrored entry, for exact symmetry


@compiled
def reset(first: int, stop: int, Z: FloatArray, rest: FloatArray) -> None:
    """Reset the models of the classes from `first` up to `stop`. Feature statistics and v are kept."""
    K, m = int(rest[CLASSES]), int(rest[DIMENSIONS])
    _, counts, words = parts(rest)
    for i in range(Z.shape[0]):
        for k in range(first, stop):
            Z[i, BY_CLASS + k] = 0.0
            Z[i, BY_CLASS + K + k] = 0.0
            Z[i, BY_CLASS + 2 * K + k] = 0.0
            Z[i, BY_CLASS + 3 * K + k] = A_START
    counts[:WAITING, first:stop] = 0.0
    if m > 0:
        sketch_of(words, K, m)[:, first:stop] = 0.0
        centroids_of(words, K, m)[:, first:stop] = 0.0
        regressions_of(words, K, m)[:, first:stop] = 0.0
        R = inverses_of(words, K, m)
        for k in range(first, stop):
            R[k] = 0.0
            for j in range(m + 1):
                R[k, j, j] = 1.0 / RIDGE
