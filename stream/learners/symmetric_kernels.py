"""Products with a symmetric matrix and rank-one changes to it, for regressions that store an inverse covariance."""

from math import sqrt

import numpy as np

from stream.learners.kernels import compiled, inlined, subtract_outer
from stream.wire.records import FloatArray, IndexArray

DENSE_SHARE = 3
"""If more than one in three entries is non-zero, reading whole rows of P is faster than selecting entries."""

SMALL = 192
"""Up to this size, P fits in the cache. Reading all of it is then faster than reading its upper half, and changing it
at every decision is faster than storing changes.
"""

BLOCK = 32
"""Number of changes that are applied together to a P larger than SMALL. Memory bandwidth limits a pass over P."""


@inlined
def block_of(size: int) -> int:
    """Return B, the maximum number of pending changes for a P of this size. They are in V, the rows after P."""
    return BLOCK if size > SMALL else 0


@inlined
def sum_of_rows(M: FloatArray, places: IndexArray, x: FloatArray, z: FloatArray) -> None:
    """Set z to Mᵀ x, using the rows of M at the indices of x, four per pass."""
    z[:] = 0.0
    a = 0
    while a + 3 < x.size:
        r0, r1, r2, r3 = M[places[a]], M[places[a + 1]], M[places[a + 2]], M[places[a + 3]]
        x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
        for j in range(z.size):
            z[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        a += 4
    while a < x.size:
        r0 = M[places[a]]
        for j in range(z.size):
            z[j] += x[a] * r0[j]
        a += 1


@compiled
def dots_of(V: FloatArray, places: IndexArray, x: FloatArray) -> FloatArray:
    """Return V x, four rows per pass with independent sums."""
    dots = np.zeros(V.shape[0])
    m = 0
    while m + 3 < dots.size:
        r0, r1, r2, r3 = V[m], V[m + 1], V[m + 2], V[m + 3]
        s0 = s1 = s2 = s3 = 0.0
        for a in range(x.size):
            i = places[a]
            s0 += r0[i] * x[a]
            s1 += r1[i] * x[a]
            s2 += r2[i] * x[a]
            s3 += r3[i] * x[a]
        dots[m], dots[m + 1], dots[m + 2], dots[m + 3] = s0, s1, s2, s3
        m += 4
    while m < dots.size:
        r0 = V[m]
        for a in range(x.size):
            dots[m] += r0[places[a]] * x[a]
        m += 1
    return dots


@inlined
def times(P: FloatArray, pending: int, places: IndexArray, x: FloatArray) -> FloatArray:
    """Return (P − VᵀV) x for a symmetric P, using four rows of P per pass. V consists of the `pending` rows after P."""
    z = np.empty(P.shape[1])
    times_into(P, pending, places, x, z)
    return z


@inlined
def times_into(P: FloatArray, pending: int, places: IndexArray, x: FloatArray, z: FloatArray) -> None:
    """Write (P − VᵀV) x into an existing array."""
    size = P.shape[1]
    sum_of_rows(P, places, x, z)
    if pending > 0:
        dots = dots_of(P[size : size + pending], places, x)
        for m in range(pending):
            r0 = P[size + m]
            for j in range(z.size):
                z[j] -= dots[m] * r0[j]


@inlined
def variance(P: FloatArray, pending: int, places: IndexArray, x: FloatArray, z: FloatArray) -> float:
    """Return xᵀ(P − VᵀV)x for a symmetric P, at least 0. Only the upper triangle is used if that is faster.

    `z` is scratch space of d' entries.
    """
    n, size = x.size, P.shape[1]
    diagonal = above = 0.0
    if pending > 0:
        for dot in dots_of(P[size : size + pending], places, x):
            diagonal -= dot * dot
    if DENSE_SHARE * n <= size:
        for a in range(n):
            row = P[places[a]]
            diagonal += row[places[a]] * x[a] * x[a]
            s0 = s1 = s2 = s3 = 0.0  # independent sums, for instruction-level parallelism
            b = a + 1
            while b + 3 < n:
                s0 += row[places[b]] * x[b]
                s1 += row[places[b + 1]] * x[b + 1]
                s2 += row[places[b + 2]] * x[b + 2]
                s3 += row[places[b + 3]] * x[b + 3]
                b += 4
            while b < n:
                s0 += row[places[b]] * x[b]
                b += 1
            above += ((s0 + s1) + (s2 + s3)) * x[a]
        return max(diagonal + 2.0 * above, 0.0)
    if size <= SMALL:
        times_into(P, 0, places, x, z)
        for a in range(n):
            diagonal += z[places[a]] * x[a]
        return max(diagonal, 0.0)
    z[:] = 0.0  # z_j = Σ x_a P_aj over a above j, along contiguous parts of rows, which are vectorised
    a = 0
    while a < n:
        group = min(4, n - a)
        for r in range(a, a + group):
            row = P[places[r]]
            diagonal += row[places[r]] * x[r] * x[r]
            for c in range(r + 1, a + group):
                above += row[places[c]] * x[r] * x[c]
        first = places[a + group - 1] + 1
        out = z[first:]
        if group == 4:
            r0, r1 = P[places[a], first:], P[places[a + 1], first:]
            r2, r3 = P[places[a + 2], first:], P[places[a + 3], first:]
            x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
            for j in range(out.size):
                out[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        else:
            for r in range(a, a + group):
                r0 = P[places[r], first:]
                for j in range(out.size):
                    out[j] += x[r] * r0[j]
        a += group
    for a in range(n):
        above += z[places[a]] * x[a]
    return max(diagonal + 2.0 * above, 0.0)


@inlined
def move(w: FloatArray, scale: float, z: FloatArray) -> None:
    """Add scale · z to w."""
    for j in range(z.size):
        w[j] += scale * z[j]


@inlined
def add_observation(P: FloatArray, waiting: FloatArray, places: IndexArray, x: FloatArray) -> FloatArray:
    """Subtract zzᵀ/(1 + xᵀz), z = P x, from P, directly or as a row of V. Return the new P x.

    Mirrored entries are computed from the same product, so P remains exactly symmetric.

    Args:
        P: A class's P, followed by V.
        waiting: float64[1], number of rows of V in use.
        places: The indices of x.
        x: The entries of x.
    """
    size, pending = P.shape[1], int(waiting[0])
    z = times(P, pending, places, x)
    inner = 0.0
    for a in range(x.size):
        inner += x[a] * z[places[a]]
    scale = 1.0 / sqrt(1.0 + max(inner, 0.0))
    for j in range(z.size):
        z[j] *= scale
    if P.shape[0] > size:
        P[size + pending] = z
        waiting[0] += 1.0
        if pending + 1 == P.shape[0] - size:
            subtract_outer(P[:size], P[size:])
            waiting[0] = 0.0
    else:
        for i in range(size):
            row = P[i]
            left = z[i]
            for j in range(size):
                row[j] -= left * z[j]
    for j in range(z.size):
        z[j] *= scale
    return z
