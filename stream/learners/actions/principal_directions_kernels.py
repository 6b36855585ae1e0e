"""The principal directions of a sample of vectors.

Jacobi's eigenvalue algorithm: Golub, Van Loan, "Matrix Computations", 4th edition, 2013, section 8.5.
"""

from math import inf, sqrt

import numpy as np

from stream.learners.kernels import compiled, norm_of
from stream.wire.records import FloatArray

SWEEPS = 12
"""Passes over all pairs of rows. Jacobi's method converges quadratically; 64 rows need about 8 passes."""

RANK_MIN = 1e-20
"""Directions with a smaller share of the largest squared singular value are rounding errors, and are omitted."""


@compiled
def principal_directions(rows: FloatArray, count: int, directions: FloatArray) -> None:
    """Write the top right singular vectors of some rows into the columns of an array. The rest of the array is zero.

    The vectors are computed from the eigenvectors of the rows' inner products with Jacobi rotations, so that the result
    is bitwise equal on every machine.

    Args:
        rows: float64[n, d].
        count: The number of rows to use.
        directions: The result, float64[d, p].
    """
    n, d = count, rows.shape[1]
    A, V = np.zeros((n, n)), np.eye(n)
    for i in range(n):
        for j in range(n):
            for t in range(d):
                A[i, j] += rows[i, t] * rows[j, t]
    for _ in range(SWEEPS):
        for i in range(n - 1):
            for j in range(i + 1, n):
                if A[i, j] == 0.0:
                    continue
                theta = 0.5 * (A[j, j] - A[i, i]) / A[i, j]
                t = 1.0 / (abs(theta) + sqrt(theta * theta + 1.0))
                t = -t if theta < 0.0 else t
                c = 1.0 / sqrt(t * t + 1.0)
                s = t * c
                for m in range(n):
                    left, right = A[m, i], A[m, j]
                    A[m, i], A[m, j] = c * left - s * right, s * left + c * right
                for m in range(n):
                    left, right = A[i, m], A[j, m]
                    A[i, m], A[j, m] = c * left - s * right, s * left + c * right
                    left, right = V[m, i], V[m, j]
                    V[m, i], V[m, j] = c * left - s * right, s * left + c * right
    directions[:] = 0.0
    largest = 0.0
    for i in range(n):
        largest = max(largest, A[i, i])
    for p in range(min(directions.shape[1], n)):
        top = 0
        for i in range(1, n):
            if A[i, i] > A[top, top]:
                top = i
        if not A[top, top] > RANK_MIN * largest:
            break
        for i in range(n):
            for t in range(d):
                directions[t, p] += V[i, top] * rows[i, t]
        length = norm_of(directions[:, p].copy())
        for t in range(d):
            directions[t, p] /= length
        A[top, top] = -inf
