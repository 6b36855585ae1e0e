"""SOBA in plain numpy, with the paper's full matrix A. Solves one linear system per round."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream.wire.records import FloatArray
from tests.oracles.banditron import explore
from tests.oracles.logged import Eligible, Logged


class NaiveSoba:
    """Algorithm 1, line by line. `diagonal` uses only the diagonal of A; `adaptive` uses the reconstructed γ_t."""

    def __init__(
        self,
        K: int,
        d: int,
        *,
        gamma: float = 0.0,
        a: float = 1.0,
        diagonal: bool = False,
        adaptive: bool = False,
        margin: str = "decision",
        condition: bool = True,
    ) -> None:
        self.margin, self.condition = margin, condition
        self.K, self.d, self.gamma, self.diagonal, self.adaptive = K, d, gamma, diagonal, adaptive
        self.A = a * np.eye(K * d)
        self.theta = np.zeros(K * d)
        self.W: NDArray[np.floating[Any]] = np.zeros((K, d))
        self.margins: list[float] = []  # n_s m_s
        self.residuals: list[float] = []
        self.refused = 0  # number of right decisions that caused no update because of the condition in line 13
        self.closest = np.inf  # the smallest non-zero |m_t + Σ n_s m_s|; tests check that it exceeds rounding errors
        self.t = 0

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        self.t += 1
        gamma = self.gamma
        if self.adaptive:
            m = self.K if eligible is None else len(eligible)
            gamma = min(1.0, np.sqrt(m * (1 + sum(r / (1 + r) for r in self.residuals)) / self.t))
        return explore(np.asarray(self.W @ x, dtype=np.float64), gamma, u, eligible)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if not reward:
            return
        y, p, Wx = logged.action, logged.propensity, logged.scores
        if self.margin == "feedback":
            Wx = np.where(logged.scores > -np.inf, self.W @ x, -np.inf)
        rivals = [i for i in range(self.K) if i != y and Wx[i] > -np.inf]
        if not rivals:
            return
        rival = max(rivals, key=lambda i: (Wx[i], -i))
        g = 1 / p * np.kron(np.eye(self.K)[rival] - np.eye(self.K)[y], x)
        z = np.sqrt(p) * g
        W_g = (Wx[rival] - Wx[y]) / p  # ⟨W_t, g_t⟩; W_t is W at prediction time, or the current W
        W_z = np.sqrt(p) * W_g
        residual = z @ np.linalg.solve(self.A, z)
        m = (W_z**2 + 2 * W_g) / (1 + residual)
        total = m + sum(self.margins)
        if total != 0:
            self.closest = min(self.closest, abs(total))
        if total < 0 and self.condition:
            self.refused += 1
            return
        self.margins.append(m)
        self.residuals.append(residual)
        self.A = self.A + (np.diag(z**2) if self.diagonal else np.outer(z, z))
        self.theta = self.theta - g
        self.W = np.linalg.solve(self.A, self.theta).reshape(self.K, self.d)

    def weights(self) -> FloatArray:
        return np.asarray(self.W, dtype=np.float64)
