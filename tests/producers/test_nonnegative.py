import numpy as np
import pytest
from scipy.optimize import nnls as theirs

from producers.datasets.nonnegative import nnls


@pytest.mark.parametrize("seed", range(40))
def test_nnls_agrees_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 12)), int(rng.integers(1, 30))
    A, b = rng.normal(size=(m, n)), rng.normal(size=m)
    if seed % 2:  # labelled points on a sphere, some repeated, as in the adversary's problems
        A = A / np.linalg.norm(A, axis=0)
        A[-1], b = 0.05, np.eye(m)[-1]
        A = np.hstack([A, A[:, : n // 2]])
    x, norm = nnls(A, b)
    _, their_norm = theirs(A, b)

    assert x.min() >= 0.0
    assert norm == pytest.approx(np.linalg.norm(A @ x - b), abs=1e-12)
    assert norm == pytest.approx(their_norm, abs=1e-9)


def test_nnls_returns_zeros_if_nothing_reduces_the_residual() -> None:
    x, norm = nnls(np.array([[-1.0, -2.0], [0.0, 0.0]]), np.array([1.0, 1.0]))
    assert x.tolist() == [0.0, 0.0]
    assert norm == pytest.approx(np.sqrt(2.0))
