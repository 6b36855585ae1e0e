"""Word vectors learned from the stream by an incremental factorisation of feature co-occurrence.

    e = Σ x_i V_i over the features with a row; a feature gets a row, if one is free, at the third x that contains it
    observe                  G_i += x_i e
    after 125·2^j decisions  V' = G R⁻¹ with RᵀR = GᵀG;  G = 0;  T = [V'ᵀV, 0; 0, 1];  V = V'
    new rows of V            a fixed hash in (−½, ½) before 500 decisions, 0 from then on

A pass over all rows would take 0.1 s for 32,768 rows. A refresh avoids such a pass by using these quantities:

    V = U B, B = R⁻¹, and U is the value of G before the refresh. A row consists of two slots that swap roles at each
    refresh. A row whose stamp is older than the refresh before the last one is 0. For rows added since the last
    refresh, U contains V itself.
    GᵀG  += e hᵀ + h eᵀ,  h = Gᵀx + ‖x‖² e/2        summed over the rows of x, as are Gᵀx and C_kᵀx
    GᵀV  += e eᵀ                                     so that V'ᵀV = Bᵀ GᵀV
    GᵀC_k += e C_kᵀx;  where x is added to C_a: GᵀC_a += Gᵀx     so that VᵀC_k = Bᵀ GᵀC_k

If a column of G depends linearly on the previous ones (to within 1e-10 of its squared norm), that column of V' is zero.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np

from stream.learners.kernels import assign, compiled, inlined, subroutine, sum_of_rows
from stream.learners.late_bits.symmetric_kernels import aligned, aligned_row, padded
from stream.wire.records import Features, FloatArray, IndexArray

ROWS_MAX = 32_768
"""Limit on the number of features with a vector. A vector uses 1 kB. More vectors did not improve the accuracy on
text."""

FREQUENCY_MIN = 3
"""Number of contexts that must contain a feature, including the current one, before the feature gets a row."""

FIRST_REFRESH = 125
ON_FROM = 500
"""Number of decisions after which the vectors are used. Before that, the vectors are mostly noise."""

PIVOT_MIN = 1e-10

RIDGE = 0.3
CONSTANT = 0.3
"""Constant entry in the regressions on (ê, .3)."""

# Indices in `WordVectors.state`.
USED, REFRESHES, IS_ON, OLD = range(4)

ROW, STAMP = 3, 4
"""Indices in a feature's row of Z: its row in the vectors (from 1, or 0 if it has none), and its last refresh."""


class WordVectors(NamedTuple):
    """The vectors and what is learned with them. Without vectors, m = 0."""

    vectors: FloatArray  # [rows, 2m]; a row consists of two slots
    state: FloatArray  # [4]: rows in use, refreshes, whether the vectors are used, rows at the last refresh
    basis: FloatArray  # [m, m], B
    gram: FloatArray  # [m, m], GᵀG
    overlap: FloatArray  # [m, m], GᵀV
    sketch: FloatArray  # [m, K], GᵀC_k
    centroids: FloatArray  # [m, K], Ĉ_k
    b: FloatArray  # [m + 1, K], the regressions' weights
    R: FloatArray  # [K, m + 1, s], the regressions' inverses; the rows are padded with zeros


def word_vectors(n_classes: int, dimensions: int, rows: int) -> WordVectors:
    """Return the initial vectors. Rows that are never written use no memory."""
    K, m = n_classes, dimensions
    words = WordVectors(
        vectors=aligned(rows, 2 * m),
        state=np.zeros(4),
        basis=aligned(m, m),
        gram=aligned(m, m),
        overlap=aligned(m, m),
        sketch=aligned(m, K),
        centroids=aligned(m, K),
        b=np.zeros((m + 1, K)),
        R=aligned(K, m + 1, padded(m + 1)),
    )
    words.basis[:] = np.eye(m)
    words.R[:, :, : m + 1] = np.eye(m + 1) / RIDGE
    return words


def words_size(K: int, m: int) -> int:
    """Return the number of values other than the vectors, including padding."""
    return 4 + 3 * m * m + 2 * K * m + K * (m + 1) * (1 + padded(m + 1)) if m > 0 else 0


@subroutine
def hashed(feature: int, column: int) -> float:
    """Return a fixed number in (−½, ½), computed with SplitMix64's finaliser."""
    h = np.uint64(feature) * np.uint64(64) + np.uint64(column) + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return (np.float64(h >> np.uint64(11)) + 0.5) * 2.0**-53 - 0.5


@inlined
def add_rows(vectors: FloatArray, rows: IndexArray, x: FloatArray, first: int, total: FloatArray) -> None:
    """Add Σ x_i r_i to `total`, where r_i is the slot of row i that starts at `first`. Four rows are added per pass."""
    m = total.size
    a = 0
    while a + 3 < x.size:
        r0, r1 = vectors[rows[a], first : first + m], vectors[rows[a + 1], first : first + m]
        r2, r3 = vectors[rows[a + 2], first : first + m], vectors[rows[a + 3], first : first + m]
        x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
        for j in range(m):
            total[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        a += 4
    while a < x.size:
        r0, x0 = vectors[rows[a], first : first + m], x[a]
        for j in range(m):
            total[j] += x0 * r0[j]
        a += 1


@inlined
def add_in_order(total: FloatArray, x: FloatArray, M: FloatArray, i: int, left: int) -> None:
    """Add x_i M_i, ..., x_{i+3} M_{i+3} to the total in one pass, in this order, starting at column `left`."""
    r0, r1, r2, r3 = M[i, left:], M[i + 1, left:], M[i + 2, left:], M[i + 3, left:]
    x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    for j in range(total.size):
        total[j] = (((total[j] + x0 * r0[j]) + x1 * r1[j]) + x2 * r2[j]) + x3 * r3[j]


@inlined
def rows_since(x: Features, Z: FloatArray, stamp_min: float, first: float, end: float) -> tuple[IndexArray, FloatArray]:
    """Return the rows in (first, end] for features of x whose stamp is at least `stamp_min`, and their entries in x."""
    indices, values = x
    rows, entries = np.empty(indices.size, np.int32), np.empty(indices.size)
    n = 0
    for j in range(indices.size):  # without a branch, which would often be mispredicted
        row, stamp = Z[indices[j], ROW], Z[indices[j], STAMP]
        rows[n], entries[n] = int(row) - 1, values[j]
        n += (row > first) & (row <= end) & (stamp >= stamp_min)
    return rows[:n], entries[:n]


@inlined
def slots(words: WordVectors) -> tuple[int, int]:
    """Return the offsets of U and G in a row of the vectors."""
    m, odd = words.basis.shape[0], int(words.state[REFRESHES]) % 2
    return m * (1 - odd), m * odd


@subroutine
def embedded(x: Features, Z: FloatArray, words: WordVectors) -> FloatArray:
    """Return Σ x_i V_i = Bᵀ Σ x_i U_i, plus the rows newer than B, which are 0 once the vectors are in use.

    Without vectors, the result is empty.
    """
    m, state, of_u = words.basis.shape[0], words.state, slots(words)[0]
    if m == 0:
        return np.empty(0)
    rows, entries = rows_since(x, Z, state[REFRESHES] - 1.0, 0.0, state[OLD])
    u = np.zeros(m)
    add_rows(words.vectors, rows, entries, of_u, u)
    e = from_basis(words.basis, u)
    if state[IS_ON] == 0.0:
        rows, entries = rows_since(x, Z, state[REFRESHES], state[OLD], state[USED])
        u[:] = 0.0
        add_rows(words.vectors, rows, entries, of_u, u)
        for j in range(m):
            e[j] += u[j]
    return e


@inlined
def from_basis(B: FloatArray, u: FloatArray) -> FloatArray:
    """Return Bᵀu for an upper triangular B. Each row is read from a multiple of 16 at or before its diagonal entry."""
    e = np.zeros(u.size)
    for j in range(0, u.size, 4):
        left = j // 16 * 16
        add_in_order(e[left:], u, B, j, left)
    return e


@subroutine
def pulled(x: Features, Z: FloatArray, words: WordVectors) -> FloatArray:
    """Return Gᵀx."""
    rows, entries = rows_since(x, Z, words.state[REFRESHES], 0.0, words.state[USED])
    g = np.zeros(words.basis.shape[0])
    add_rows(words.vectors, rows, entries, slots(words)[1], g)
    return g


@subroutine
def observe_words(x: Features, Z: FloatArray, words: WordVectors, classes: int) -> None:
    """Add x eᵀ to the rows of G for features in x, and update the products of G. `classes` is the offset of C in Z."""
    indices, values = x
    vectors, sketch = words.vectors, words.sketch
    m, K = sketch.shape
    refreshes = words.state[REFRESHES]
    of_u, of_g = slots(words)
    for j in range(indices.size):
        feature = Z[indices[j]]
        if feature[ROW] > 0.0 and feature[STAMP] < refreshes:
            row = vectors[int(feature[ROW]) - 1]
            row[of_g : of_g + m] = 0.0
            if feature[STAMP] < refreshes - 1.0:
                row[of_u : of_u + m] = 0.0
            feature[STAMP] = refreshes
    rows, entries = rows_since(x, Z, refreshes, 0.0, words.state[USED])
    if rows.size == 0:
        return
    e, h = embedded(x, Z, words), np.zeros(m)
    add_rows(vectors, rows, entries, of_g, h)
    half = 0.0
    for a in range(rows.size):
        half += 0.5 * entries[a] * entries[a]
        g = vectors[rows[a], of_g : of_g + m]
        for i in range(m):
            g[i] += entries[a] * e[i]
    for i in range(m):
        h[i] += half * e[i]
    for j in range(m):
        gram, overlap = words.gram[j], words.overlap[j]
        for i in range(m):
            gram[i] += e[j] * h[i] + h[j] * e[i]
            overlap[i] += e[j] * e[i]
    dots = np.zeros(K)
    for j in range(indices.size):
        feature = Z[indices[j]]
        if feature[ROW] > 0.0:
            right = feature[classes : classes + K]
            for k in range(K):
                dots[k] += values[j] * right[k]
    for j in range(m):
        for k in range(K):
            sketch[j, k] += e[j] * dots[k]


@subroutine
def allocate_row(feature: int, Z: FloatArray, words: WordVectors) -> None:
    """Assign a row to a feature, if a row is free."""
    state, m = words.state, words.basis.shape[0]
    used = int(state[USED])
    if used == words.vectors.shape[0]:
        return
    row, first = words.vectors[used], slots(words)[0]
    row[:] = 0.0
    if state[IS_ON] == 0.0:
        for j in range(m):
            row[first + j] = hashed(feature, j)
    state[USED] += 1.0
    Z[feature, ROW], Z[feature, STAMP] = state[USED], state[REFRESHES]


@compiled
def is_refreshed_at(decided: float) -> bool:
    """Return whether a decision causes a refresh, as decisions 125, 250, 500, ... do."""
    at = FIRST_REFRESH
    while at < decided:
        at *= 2
    return at == decided


@subroutine
def inverse_factor(gram: FloatArray) -> FloatArray:
    """Return R⁻¹ for an upper triangular R with RᵀR = GᵀG. Linearly dependent columns are 0."""
    m = gram.shape[0]
    R, B = np.zeros((m, m)), np.zeros((m, m))  # B is stored transposed until the end
    for j in range(m):
        rest = gram[j].copy()
        for i in range(j):
            for c in range(j, m):
                rest[c] -= R[i, j] * R[i, c]
        if rest[j] <= PIVOT_MIN * gram[j, j]:
            continue
        root = sqrt(rest[j])
        for c in range(j, m):
            R[j, c] = rest[c] / root
        B[j, j] = 1.0
        for i in range(j):
            for c in range(i + 1):
                B[j, c] -= B[i, c] * R[i, j]
        for c in range(j + 1):
            B[j, c] /= R[j, j]
    return np.ascontiguousarray(B.T)


@subroutine
def refresh(words: WordVectors, decided: float) -> None:
    """Compute new vectors, and transform the parameters that were learned with the old vectors."""
    state, gram, overlap, sketch, centroids = words.state, words.gram, words.overlap, words.sketch, words.centroids
    m, K = sketch.shape
    trace = 0.0
    for j in range(m):
        trace += gram[j, j]
    if trace == 0.0:  # since the last refresh, no context has had a feature with a row
        return
    B = inverse_factor(gram)
    if state[IS_ON] != 0.0:
        T = np.zeros((m + 1, m + 1))
        T[m, m] = 1.0
        for i in range(m):
            for j in range(i, m):
                for c in range(m):
                    T[j, c] += B[i, j] * overlap[i, c]
        transform(T, words.b, words.R)
    centroids[:] = 0.0
    for i in range(m):
        for j in range(i, m):
            for k in range(K):
                centroids[j, k] += B[i, j] * sketch[i, k]
    sketch[:] = 0.0
    gram[:] = 0.0
    overlap[:] = 0.0
    for j in range(m):
        assign(words.basis[j], B[j])
    if decided >= ON_FROM:
        state[IS_ON] = 1.0
    state[OLD] = state[USED]
    state[REFRESHES] += 1.0


@subroutine
def transform(T: FloatArray, b: FloatArray, R: FloatArray) -> None:
    """Set b_k = T b_k and R_k = T R_k Tᵀ + (I − T Tᵀ)/.3, that is, T (R_k − I/.3) Tᵀ + I/.3."""
    size = T.shape[0]
    every = np.arange(size).astype(np.int32)
    moved, half, row = np.empty(b.shape), np.empty((size, size)), np.empty(size)
    for j in range(size):
        sum_of_rows(b, every, T[j], moved[j])
    for j in range(size):
        assign(b[j], moved[j])
    across = np.ascontiguousarray(T.T)
    for k in range(R.shape[0]):
        for j in range(size):
            R[k, j, j] -= 1.0 / RIDGE
        for j in range(size):
            sum_of_rows(R[k], every, T[j], half[j])
        for j in range(size):
            sum_of_rows(across, every, half[j], row)
            assign(R[k, j, j:], row[j:])
        for j in range(size):
            R[k, j, j] += 1.0 / RIDGE
            for c in range(j):
                R[k, j, c] = R[k, c, j]


@subroutine
def learn_words(e: FloatArray, action: int, reward: float, words: WordVectors) -> None:
    """Update the action's regression of the reward on (ê, .3)."""
    m = e.size
    b, P = words.b, words.R[action]
    y = with_constant(e)
    size = m + 1
    z = aligned_row(P.shape[1])
    z[:] = 0.0
    for i in range(0, m, 4):
        add_in_order(z, y, P, i, 0)
    last = P[m]
    for j in range(z.size):
        z[j] += y[m] * last[j]
    c, score = 1.0, 0.0
    for i in range(size):
        c += y[i] * z[i]
        score += y[i] * b[i, action]
    step, root = (reward - score) / c, 1.0 / sqrt(c)
    for i in range(size):
        b[i, action] += step * z[i]
        z[i] *= root
    for i in range(size):
        row, left = P[i], z[i]
        for j in range(z.size):
            row[j] -= left * z[j]  # computed like the mirrored entry, for exact symmetry


@inlined
def with_constant(e: FloatArray) -> FloatArray:
    """Return (ê, .3): e scaled to unit norm, or 0 if e is 0, followed by the constant."""
    m = e.size
    total = 0.0
    for j in range(m):
        total += e[j] * e[j]
    y = np.zeros(m + 1)
    if total > 0.0:
        norm = sqrt(total)
        for j in range(m):
            y[j] = np.divide(e[j], norm)
    y[m] = CONSTANT
    return y


@subroutine
def word_signals(e: FloatArray, words: WordVectors, near: FloatArray, fit: FloatArray) -> None:
    """Compute c'_k = ê·Ĉ_k/‖Ĉ_k‖ and t_k = b_k·(ê, .3)."""
    m, K = e.size, near.size
    centroids, b = words.centroids, words.b
    y = with_constant(e)
    norm_sq = np.zeros(K)
    near[:] = 0.0
    for k in range(K):
        fit[k] = CONSTANT * b[m, k]
    for j in range(0, m, 4):
        add_in_order(near, y, centroids, j, 0)
        add_in_order(fit, y, b, j, 0)
        r0, r1, r2, r3 = centroids[j], centroids[j + 1], centroids[j + 2], centroids[j + 3]
        for k in range(K):
            norm_sq[k] = (((norm_sq[k] + r0[k] * r0[k]) + r1[k] * r1[k]) + r2[k] * r2[k]) + r3[k] * r3[k]
    for k in range(K):
        near[k] = near[k] / sqrt(norm_sq[k]) if norm_sq[k] > 0.0 else 0.0
