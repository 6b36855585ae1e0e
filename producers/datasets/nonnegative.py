"""Non-negative least squares for small problems, without a dependency on scipy.optimize (30 MB)."""

import numpy as np

from stream.wire.records import FloatArray

TOLERANCE = 1e-13
"""Values up to TOLERANCE · max(1, largest |A_ij|) · max(1, largest |b_i|) are treated as zero."""


def nnls(A: FloatArray, b: FloatArray) -> tuple[FloatArray, float]:
    """Return the x ≥ 0 that minimises ‖A x - b‖, and the minimum.

    Lawson and Hanson, "Solving Least Squares Problems", 1974, ch. 23, algorithm NNLS.

    Args:
        A: float64[m, n].
        b: float64[m].

    Departures from the book: rounding can make z non-positive for a column that steps 4 and 5 added. Such a column is
    excluded until x changes. Without this rule, the column would be added repeatedly.

    >>> nnls(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0]))
    (array([2., 0.]), 1.0)
    """
    x = np.zeros(A.shape[1])
    is_positive = np.zeros(len(x), dtype=bool)  # the set P of the book
    is_refused = is_positive.copy()
    zero = TOLERANCE * max(1.0, np.abs(A).max(initial=0.0)) * max(1.0, np.abs(b).max(initial=0.0))
    while True:
        w = np.where(is_positive | is_refused, -np.inf, A.T @ (b - A @ x))  # step 2: the direction of descent
        if w.max(initial=-np.inf) <= zero:  # step 3
            return x, float(np.linalg.norm(A @ x - b))
        new = np.argmax(w)  # step 4
        is_positive[new] = True  # step 5
        z = _unbounded(A, b, is_positive)  # step 6
        if z[new] <= 0.0:
            is_positive[new], is_refused[new] = False, True
            continue
        while (blocked := is_positive & (z <= 0.0)).any():  # step 7
            step = (x[blocked] / (x[blocked] - z[blocked])).min()  # steps 8 and 9
            x += step * (z - x)  # step 10
            is_positive &= x > zero  # step 11
            z = _unbounded(A, b, is_positive)
        x = z
        is_refused[:] = False


def _unbounded(A: FloatArray, b: FloatArray, is_positive: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> FloatArray:
    """Return the unconstrained least-squares solution for these columns."""
    z = np.zeros(A.shape[1])
    z[is_positive] = np.linalg.lstsq(A[:, is_positive], b, rcond=None)[0]
    return z
