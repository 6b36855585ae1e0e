"""Newtron in plain numpy, with A and b as in the paper. The projection uses the eigenvectors of A and bisection."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream.wire.records import FloatArray
from tests.oracles.logged import Logged, sample


def projected(A: FloatArray, W: NDArray[np.floating[Any]], D: float) -> NDArray[np.floating[Any]]:
    """Return argmin_{‖V‖≤D} (V-W)ᵀA(V-W) for ‖W‖ > D. The result is (A+λI)⁻¹AW; bisection determines λ."""
    eigenvalues, Q = np.linalg.eigh(A)
    w = Q.T @ W

    def at(shift: float) -> FloatArray:
        return np.asarray(eigenvalues * w / (eigenvalues + shift))

    low, high = 0.0, 1.0
    while np.linalg.norm(at(high)) > D:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.linalg.norm(at(middle)) > D else (low, middle)
    return np.asarray(Q @ at(high))


class NaiveNewtron:
    """Algorithm 1 of the paper with the closed form from section 4. `diagonal` selects PNewtron."""

    def __init__(
        self, K: int, d: int, *, gamma: float, alpha: float, beta: float, radius: float, diagonal: bool = False
    ) -> None:
        self.K, self.d = K, d
        self.gamma, self.alpha, self.beta, self.D, self.diagonal = gamma, alpha, beta, radius, diagonal
        self.A, self.b = np.eye(K * d) / radius, np.zeros(K * d)
        self.W: NDArray[np.floating[Any]] = np.zeros((K, d))  # W'
        self.projections = 0

    def softmax(self, scores: FloatArray) -> FloatArray:
        e = np.exp(self.alpha * (scores - scores.max()))
        return np.asarray(e / e.sum())

    def predict(self, x: FloatArray, u: float) -> Logged:
        scores = np.asarray(self.W @ x, dtype=np.float64)
        mixed = (1 - self.gamma) * self.softmax(scores) + self.gamma / self.K
        action = sample(mixed, u)
        # Classes with the same history must tie. The tolerance exceeds the rounding errors of the matrix factorization.
        tolerance = (1e-13 if self.diagonal else 1e-9) * self.D * np.linalg.norm(x)
        greedy = int(np.flatnonzero(scores >= scores.max() - tolerance)[0])
        return Logged(action, greedy, float(mixed[action]), scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        played, propensity = logged.action, logged.propensity
        p = self.softmax(logged.scores)
        e, ones = np.eye(self.K)[played], np.ones(self.K)
        if reward:
            h, kappa = (1 - p[played]) / propensity * (ones / self.K - e), propensity
        else:
            h, kappa = p[played] / propensity * (e - ones / self.K), 1.0
        G = np.kron(h, x)
        G_W = float(h @ logged.scores)  # G·W'_τ; W'_τ are the weights at prediction time
        self.A = self.A + kappa * self.beta * (np.diag(G**2) if self.diagonal else np.outer(G, G))
        self.b = self.b + (1 - kappa * self.beta * G_W) * G
        W = -np.linalg.solve(self.A, self.b)
        norm = float(np.linalg.norm(W))
        if norm > self.D:
            self.projections += 1
            W = W * (self.D / norm) if self.diagonal else projected(self.A, W, self.D)
        self.W = W.reshape(self.K, self.d)

    def weights(self) -> FloatArray:
        return np.asarray(self.W, dtype=np.float64)
