"""Parts of stack-igw's kernels: the evidence for each class, the stack, and their updates."""

from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np

from stream.learners.kernels import bounded, logistic, subroutine, unit
from stream.learners.late_bits.word_vectors_kernels import IS_ON, RIDGE, WordVectors, word_signals
from stream.wire.records import Features, FloatArray

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

# Indices in `totals`.
MEAN_COUNT, DECIDED, SETTLED = range(3)

# A feature's row: df, ln(1 + df), M, two entries for the word vectors, and then C, N, W and A, each with K entries.
FREQUENCY, RARITY_LOG, MEAN = range(3)
BY_CLASS = 5


class Model(NamedTuple):
    """The statistics of the features and the classes, the stack and the word vectors; see `StackIgw`."""

    Z: FloatArray  # [d + 1, 5 + 4K], a row per feature and a last row for the constant entry
    v: FloatArray  # [S]
    P: FloatArray  # [S, S], the running covariance of v
    norm_sq: FloatArray  # [K]
    hits: FloatArray  # [K]
    misses: FloatArray  # [K]
    waiting: FloatArray  # [K]
    detectors: FloatArray  # [3, K + 1]
    alarms: FloatArray  # [K + 1]
    totals: FloatArray  # the number of contexts in M, of decisions and of settled bits
    words: WordVectors
    scale: float
    step: float
    others: float
    bonus: float
    bias: float
    drift: int  # an index into DRIFTS


def signals_with(dimensions: int) -> int:
    """Return the number of signals for vectors of this dimension. A dimension of 0 means no vectors."""
    return PRIOR.size + (OF_WORDS if dimensions else 0)


@subroutine
def weighted(x: Features, Z: FloatArray, decided: float) -> Features:
    """Scale x to unit norm, weight each entry by the rarity of its feature, and scale the result to unit norm.

    `RARITY_LOG` caches the logarithm of a feature's count.
    """
    indices, values = x.indices, unit(x.values)
    total_log = log(RARITY * (decided + 2.0))
    for j in range(indices.size):
        values[j] *= total_log - Z[indices[j], RARITY_LOG]
    return Features(indices, unit(values))


@subroutine
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


@subroutine
def evidence(x: Features, model: Model) -> tuple[FloatArray, float]:
    """Return C_kᵀx, N_kᵀx and W_kᵀx for every class [3, K], and Mᵀx."""
    indices, values = x
    Z, K = model.Z, model.hits.size
    dots = np.zeros(3 * K)
    last = Z[Z.shape[0] - 1]
    for k in range(K):
        dots[2 * K + k] = last[BY_CLASS + 2 * K + k] * model.bias
    mean = 0.0
    for j in range(indices.size):
        row = Z[indices[j]]
        value = values[j]
        mean += row[MEAN] * value
        of_classes = row[BY_CLASS : BY_CLASS + 3 * K]
        for k in range(3 * K):
            dots[k] += of_classes[k] * value
    return dots.reshape((3, K)), mean


@subroutine
def signals(dots: FloatArray, mean: float, e: FloatArray, model: Model) -> FloatArray:
    """Return φ [K, S], the evidence for each class. e = Σ x_i V_i is empty without vectors."""
    norm_sq, all_hits, misses = model.norm_sq, model.hits, model.misses
    K = all_hits.size
    c, s, phi = np.empty(K), np.empty(K), np.zeros((K, model.v.size))
    mean /= max(model.totals[MEAN_COUNT], 1.0)
    for k in range(K):
        c[k] = dots[0, k] / sqrt(norm_sq[k]) if norm_sq[k] > 0.0 else 0.0
        s[k] = min(max(bounded(dots[2, k]), -SCORE_CLIP), SCORE_CLIP)
    lead_c, lead_s = np.empty(K), np.empty(K)
    lead(c, lead_c)
    lead(s, lead_s)
    for k in range(K):
        hits = all_hits[k]
        g = 1.0 / sqrt(1.0 + hits)
        excess = max(0.0, dots[1, k] - misses[k] * mean)
        phi[k, 0] = 1.0
        phi[k, 1] = c[k]
        phi[k, 2] = lead_c[k]
        phi[k, 3] = 1.0 if hits == 0.0 else 0.0
        phi[k, 4] = log(1.0 + excess)
        phi[k, 5] = g
        phi[k, 6] = g * c[k]
        phi[k, 7] = s[k] / 4.0
        phi[k, 8] = lead_s[k] / 4.0
    if e.size > 0 and model.words.state[IS_ON] != 0.0:
        word_signals(e, model.words, c, s)
        lead(c, lead_c)
        lead(s, lead_s)
        for k in range(K):
            phi[k, 9] = c[k]
            phi[k, 10] = lead_c[k]
            phi[k, 11] = s[k]
            phi[k, 12] = lead_s[k]
    return phi


@subroutine
def believed(v: FloatArray, phi: FloatArray) -> float:
    """Return σ(v·φ)."""
    total = 0.0
    for i in range(phi.size):
        total += v[i] * phi[i]
    return logistic(total)


@subroutine
def update_stack(v: FloatArray, P: FloatArray, phi: FloatArray, reward: float) -> None:
    """Update the shared logistic regression v, using its running covariance P."""
    rho = believed(v, phi)
    curvature = max(rho * (1.0 - rho), CURVATURE_MIN)
    size = phi.size
    z = np.zeros(size)
    c = 0.0
    for i in range(size):
        for j in range(size):
            z[i] += P[i, j] * phi[j]
        c += phi[i] * z[i]
    step = (reward - rho) / (1.0 + curvature * c)
    root = sqrt(curvature / (1.0 + curvature * c))
    for i in range(size):
        v[i] += step * z[i]
        for j in range(size):
            P[i, j] -= (root * z[i]) * (root * z[j])  # computed like the mirrored entry, for exact symmetry


@subroutine
def reset(first: int, stop: int, model: Model) -> None:
    """Reset the models of the classes from `first` up to `stop`. Feature statistics and v are kept."""
    Z, words, K = model.Z, model.words, model.hits.size
    for i in range(Z.shape[0]):
        for k in range(first, stop):
            Z[i, BY_CLASS + k] = 0.0
            Z[i, BY_CLASS + K + k] = 0.0
            Z[i, BY_CLASS + 2 * K + k] = 0.0
            Z[i, BY_CLASS + 3 * K + k] = A_START
    model.norm_sq[first:stop] = 0.0
    model.hits[first:stop] = 0.0
    model.misses[first:stop] = 0.0
    words.sketch[:, first:stop] = 0.0
    words.centroids[:, first:stop] = 0.0
    words.b[:, first:stop] = 0.0
    for k in range(first, stop):
        words.R[k] = 0.0
        for j in range(words.b.shape[0]):
            words.R[k, j, j] = 1.0 / RIDGE
