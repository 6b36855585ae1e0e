"""Products with a symmetric matrix and rank-one changes to it, for regressions that store an inverse covariance.

The matrix P [d', d'] and the pending changes V [B, d'] are the rows of one array [d' + B, s]. Each row is padded with
zeros to s, a multiple of 8, and starts at a multiple of 64 bytes. Without this alignment, most vector loads span two
cache lines, and a product takes a fifth longer.
"""

from math import prod, sqrt

import numpy as np

from stream.learners.kernels import assign, inlined, subroutine, subtract_outer, sum_of_rows
from stream.wire.records import Features, FloatArray

DENSE_SHARE = 3
"""If more than one in three entries of x is non-zero, reading whole rows of P is faster than reading single entries."""

SMALL = 192
"""Up to this size, P fits in the cache. Changing P at every decision is then faster than storing the changes."""

BLOCK = 32
"""Number of changes that are applied in one pass over P if P is larger than SMALL. The speed of a pass is limited by
memory bandwidth."""

BAND = 32
"""Number of rows in a band; see `variance`. A multiple of 8 keeps the segments of rows aligned."""

ALIGNMENT = 8
"""Number of float64 values in a cache line, and in the widest vector register."""


@inlined
def block_of(size: int) -> int:
    """Return B, the maximum number of pending changes for a P of this size. V, the rows after P, contains them."""
    return BLOCK if size > SMALL else 0


@inlined
def padded(size: int) -> int:
    """Return s, the length of a padded row."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def aligned(*shape: int) -> FloatArray:
    """Return an array of zeros that is aligned to 64 bytes. Unwritten entries use no memory."""
    size = prod(shape)
    memory = np.zeros(size + ALIGNMENT)
    first = -(memory.ctypes.data // memory.itemsize) % ALIGNMENT
    return memory[first : first + size].reshape(shape)


@inlined
def aligned_row(columns: int) -> FloatArray:
    """Return an uninitialised row that is aligned to 64 bytes."""
    memory = np.empty(columns + ALIGNMENT - 1)
    first = -(memory.ctypes.data // memory.itemsize) % ALIGNMENT
    return memory[first : first + columns]


@inlined
def size_of(P: FloatArray) -> int:
    """Return d' for an array with the rows of P and V."""
    rows: int = P.shape[0]
    return rows - BLOCK if rows > SMALL else rows


@subroutine
def dots_of(V: FloatArray, x: Features) -> FloatArray:
    """Return V x, with four rows per pass and independent sums."""
    indices, values = x
    dots = np.zeros(V.shape[0])
    m = 0
    while m + 3 < dots.size:
        r0, r1, r2, r3 = V[m], V[m + 1], V[m + 2], V[m + 3]
        s0 = s1 = s2 = s3 = 0.0
        for a in range(values.size):
            i = indices[a]
            s0 += r0[i] * values[a]
            s1 += r1[i] * values[a]
            s2 += r2[i] * values[a]
            s3 += r3[i] * values[a]
        dots[m], dots[m + 1], dots[m + 2], dots[m + 3] = s0, s1, s2, s3
        m += 4
    while m < dots.size:
        r0 = V[m]
        for a in range(values.size):
            dots[m] += r0[indices[a]] * values[a]
        m += 1
    return dots


@inlined
def times(P: FloatArray, pending: int, x: Features) -> FloatArray:
    """Return (P − VᵀV) x, padded with zeros, for a symmetric P. V consists of the `pending` rows after P."""
    size = size_of(P)
    z = aligned_row(P.shape[1])
    sum_of_rows(P, x.indices, x.values, z)
    if pending > 0:
        dots = dots_of(P[size : size + pending], x)
        for m in range(pending):
            r0 = P[size + m]
            for j in range(z.size):
                z[j] -= dots[m] * r0[j]
    return z


@inlined
def product_of(x: Features, z: FloatArray) -> float:
    """Return zᵀx, computed as four independent sums for instruction-level parallelism."""
    indices, values = x
    s0 = s1 = s2 = s3 = 0.0
    a = 0
    while a + 3 < values.size:
        s0 += z[indices[a]] * values[a]
        s1 += z[indices[a + 1]] * values[a + 1]
        s2 += z[indices[a + 2]] * values[a + 2]
        s3 += z[indices[a + 3]] * values[a + 3]
        a += 4
    while a < values.size:
        s0 += z[indices[a]] * values[a]
        a += 1
    return (s0 + s1) + (s2 + s3)


@inlined
def variance(P: FloatArray, pending: int, x: Features, z: FloatArray) -> float:
    """Return xᵀ(P − VᵀV)x for a symmetric P, or 0 if rounding makes it negative. `z` is scratch space of s entries.

    Only the upper triangle of P and its diagonal blocks are read. For a sparse x, individual entries are read. For a
    dense x, bands of rows are read; each band begins at the first column of its diagonal block.
    """
    indices, values = x
    n, size = values.size, size_of(P)
    total = 0.0
    if pending > 0:
        for dot in dots_of(P[size : size + pending], x):
            total -= dot * dot
    if DENSE_SHARE * n <= size:
        for a in range(n):
            row = P[indices[a]]
            above = product_of(Features(indices[a + 1 :], values[a + 1 :]), row)
            total += (row[indices[a]] * values[a] + 2.0 * above) * values[a]
        return max(total, 0.0)
    z[:] = 0.0
    a = 0
    for left in range(0, size, BAND):
        for j in range(left, min(left + BAND, size)):
            z[j] *= 2.0  # entries in the bands above count twice, because P is symmetric
        out = z[left:]
        while a + 3 < n and indices[a + 3] < left + BAND:
            r0, r1 = P[indices[a], left:], P[indices[a + 1], left:]
            r2, r3 = P[indices[a + 2], left:], P[indices[a + 3], left:]
            x0, x1, x2, x3 = values[a], values[a + 1], values[a + 2], values[a + 3]
            for j in range(out.size):
                out[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
            a += 4
        while a < n and indices[a] < left + BAND:
            r0 = P[indices[a], left:]
            for j in range(out.size):
                out[j] += values[a] * r0[j]
            a += 1
    return max(total + product_of(x, z), 0.0)


@inlined
def add_observation(P: FloatArray, waiting: FloatArray, x: Features) -> FloatArray:
    """Subtract zzᵀ/(1 + xᵀz), where z = P x, from P itself, or add a row to V. Return the new P x, padded with zeros.

    Mirrored entries are computed from the same product, so P remains exactly symmetric.

    Args:
        P: A class's P, followed by V.
        waiting: float64[1], the number of rows of V in use.
        x: The features.
    """
    size, pending = size_of(P), int(waiting[0])
    z = times(P, pending, x)
    scale = 1.0 / sqrt(1.0 + max(product_of(x, z), 0.0))
    for j in range(z.size):
        z[j] *= scale
    if P.shape[0] > size:
        assign(P[size + pending], z)
        waiting[0] += 1.0
        if pending + 1 == P.shape[0] - size:
            subtract_outer(P[:size], P[size:])
            waiting[0] = 0.0
    else:
        for i in range(size):
            row = P[i]
            left = z[i]
            for j in range(z.size):
                row[j] -= left * z[j]
    for j in range(z.size):
        z[j] *= scale
    return z
