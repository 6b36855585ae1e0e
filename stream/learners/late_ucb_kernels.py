"""What late-ucb's kernels are made of: its model as one array, x as its regression sees it, and products with P."""

from math import inf, sqrt

import numpy as np

from stream.learners.kernels import bounded, compiled, inlined, norm_of, subtract_outer
from stream.wire.events import FloatArray, IndexArray

DENSE_SHARE = 3
"""From one non-zero in three entries on, whole rows of P are faster than the entries that count, picked out."""

SMALL = 128
"""Up to this size a P lies so near that to leave out its lower half costs more than to read it, and to change it at
every decision less than to keep changes apart."""

BLOCK = 32
"""Changes of a larger P that are kept apart before they are taken off it in one pass, which is bound by memory."""

PLAIN, QUADRATIC, PROJECTED = range(3)  # how x becomes the regression's features

# Places at the beginning of the model.
LAM, ETA, SHORTLIST, BIAS, KIND, FLOOR, DRIFT_KIND, CLASSES, SIZE, FEATURES = range(10)
SETTINGS = 10

# Rows of `counts`, whose last column is that of all classes together.
WEIGHT, DETECTORS, ALARMS, PENDING = 0, slice(1, 4), 4, 5
COUNTS = 6


@inlined
def block_of(size: int) -> int:
    """B, how many changes of a P of this size are kept apart: its last rows, V, of which `pending` count."""
    return BLOCK if size > SMALL else 0


@inlined
def counts_of(model: FloatArray) -> FloatArray:
    """Counts [6, K + 1]: they stand behind the settings, then come W, the P and V, and Gᵀ.

    All is one array, because each that a kernel gets costs 0.1 µs; to give a part its shape costs half of that.
    """
    columns = int(model[CLASSES]) + 1
    return model[SETTINGS : SETTINGS + COUNTS * columns].reshape((COUNTS, columns))


@inlined
def weights_of(model: FloatArray) -> FloatArray:
    """W [K, d']."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    start = SETTINGS + COUNTS * (K + 1)
    return model[start : start + K * size].reshape((K, size))


@inlined
def weights_of_class(model: FloatArray, k: int) -> FloatArray:
    """w_k."""
    size = int(model[SIZE])
    start = SETTINGS + COUNTS * (int(model[CLASSES]) + 1) + k * size
    return model[start : start + size]


@inlined
def inverses_of(model: FloatArray) -> FloatArray:
    """P and V of every class [K, d' + B, d']."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows = size + block_of(size)
    start = SETTINGS + COUNTS * (K + 1) + K * size
    return model[start : start + K * rows * size].reshape((K, rows, size))


@inlined
def inverse_of_class(model: FloatArray, k: int) -> FloatArray:
    """P and V of a class [d' + B, d']."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows = size + block_of(size)
    start = SETTINGS + COUNTS * (K + 1) + (K + k * rows) * size
    return model[start : start + rows * size].reshape((rows, size))


@compiled
def projection_of(model: FloatArray) -> FloatArray:
    """Gᵀ [d, m], at the end of the model."""
    d, m = int(model[FEATURES]), int(model[SIZE]) - 1
    return model[model.size - d * m :].reshape((d, m))


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


@inlined
def sum_of_rows(M: FloatArray, places: IndexArray, x: FloatArray, z: FloatArray) -> None:
    """Set z to Mᵀ x, by the rows of M at the places of x, four a pass."""
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


@inlined
def with_bias(
    indices: IndexArray, values: FloatArray, logged: FloatArray, model: FloatArray
) -> tuple[IndexArray, FloatArray]:
    """The regression's features: expanded, of unit norm, and a constant entry at the end; projected ones are logged."""
    kind, size = model[KIND], int(model[SIZE])
    if kind == PROJECTED:
        dense, every = np.empty(size), np.empty(size, np.int32)
        dense[: size - 1] = logged[logged.size - size + 1 :]
        dense[size - 1] = model[BIAS]
        for j in range(size):
            every[j] = j
        return every, dense
    if kind == QUADRATIC:
        indices, values = expanded(indices, values, int(model[FEATURES]))
    n = indices.size
    places, entries = np.empty(n + 1, np.int32), np.empty(n + 1)
    norm = norm_of(values)
    scaled = 0.0 < norm < inf  # else all zeros, as `unit` makes them
    for a in range(n):
        places[a] = indices[a]
        entries[a] = np.divide(values[a], norm) if scaled else 0.0
    places[n] = size - 1
    entries[n] = model[BIAS]
    return places, entries


@inlined
def squared_length(x: FloatArray, model: FloatArray) -> float:
    """‖x‖², which is the constant's and 1 or 0, without rounding: classes with as many decisions must tie exactly."""
    total = 0.0
    for a in range(x.size - 1):
        total += x[a] * x[a]
    if model[KIND] != PROJECTED:
        total = 1.0 if total > 0.0 else 0.0
    return float(total + model[BIAS] * model[BIAS])


@compiled
def dots_of(V: FloatArray, places: IndexArray, x: FloatArray) -> FloatArray:
    """V x, four rows a pass, so that their sums do not wait for each other."""
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
    """(P − VᵀV) x for a symmetric P, by its rows, four a pass; V has the `pending` rows behind P."""
    z = np.empty(P.shape[1])
    times_into(P, pending, places, x, z)
    return z


@inlined
def times_into(P: FloatArray, pending: int, places: IndexArray, x: FloatArray, z: FloatArray) -> None:
    """The same, into an array that is there."""
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
    """xᵀ(P − VᵀV)x of a symmetric P, where it pays by what is above its diagonal; 0 for what rounding leaves below.

    `z` is room for d' numbers.
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
            s0 = s1 = s2 = s3 = 0.0  # sums that do not wait for each other
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
    z[:] = 0.0  # z_j = Σ x_a P_aj over the a above j: whole pieces of rows, which become vector instructions
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
def score_of(places: IndexArray, x: FloatArray, w: FloatArray) -> float:
    """w·x, with the bits that `linear_scores` gives it."""
    total = 0.0
    for a in range(x.size):
        total += w[places[a]] * x[a]
    return bounded(total)


@inlined
def move(w: FloatArray, scale: float, z: FloatArray) -> None:
    """Move w by scale · z."""
    for j in range(z.size):
        w[j] += scale * z[j]


@inlined
def take_in(P: FloatArray, waiting: FloatArray, places: IndexArray, x: FloatArray) -> FloatArray:
    """P −= zzᵀ/(1 + xᵀz), z = P x, at once or as a row of V; gives the new P x.

    An entry is made of the same product as its mirror image, so that P stays symmetric to the bit.

    Args:
        P: a class's P, and V behind it.
        waiting: float64[1], how many rows of V count.
        places: where x has entries.
        x: these.
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


@compiled
def epoch(counts: FloatArray, k: int) -> float:
    """How often a class was reset."""
    return float(counts[ALARMS, k] + counts[ALARMS, counts.shape[1] - 1])
