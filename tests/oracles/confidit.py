"""Confidit as in Fig. 1 of the paper. Solves linear systems with full matrices, and projects by bisection."""

import numpy as np

from stream.wire.records import FloatArray
from tests.oracles.late_bits import best_of
from tests.oracles.logged import Eligible, Logged, among


class NaiveConfidit:
    """Fig. 1 of the paper, with the options in Table 2 and equations (9), (10) and (11)."""

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        projection: bool,
        confidence: str,
        covariance: str,
        alpha: float = 1.0,
        eta: float = 1.0,
        u_norm_sq: float = 1.0,
        delta: float = 0.05,
        approx_error: float = 1.0,
        approx_error_power: float = -0.5,
    ) -> None:
        self.K = n_classes
        self.projection, self.confidence, self.covariance = projection, confidence, covariance
        self.alpha, self.eta, self.u_norm_sq, self.delta = alpha, eta, u_norm_sq, delta
        self.q_1, self.q_power = approx_error, approx_error_power
        self.A = np.array([(1 + alpha) ** 2 * np.eye(n_features)] * n_classes)
        self.W = np.zeros((n_classes, n_features))
        self.t = 0
        self.confidence_sum = 0.0
        self.closest = np.inf  # the smallest difference between the best and second-best values, excluding exact ties

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        x = x / np.linalg.norm(x)
        self.t += 1
        solved = np.array([np.linalg.solve(self.A[i], x) for i in range(self.K)])
        c = np.array([x @ solved[i] for i in range(self.K)])
        if self.projection:
            self._project(x, solved, c)
        scores = among(np.array([self.W[i] @ x for i in range(self.K)]), eligible)
        if self.confidence == "constant":
            eps_sq = self.eta * c
        else:
            half = 0.5 * (1 + self.alpha) ** 2
            eta_t = (
                half * self.u_norm_sq
                + half * self.confidence_sum
                + 9 * (1 + self.alpha) ** 2 * np.log((self.t + 4) / self.delta)
            )
            if self.confidence == "modified":
                eta_t += (1 + self.alpha) ** 2 * sum(self.q_1 * s**self.q_power for s in range(1, self.t))
            eps_sq = 2 * c * eta_t
        bounds = scores + np.sqrt(eps_sq)
        action = best_of(bounds)
        for values in (bounds, scores):
            behind = values[(values != values.max()) & (values > -np.inf)]
            if behind.size:
                self.closest = min(self.closest, float(values.max() - behind.max()))
        return Logged(action, best_of(scores), 1.0, scores)

    def _project(self, x: FloatArray, solved: FloatArray, c: FloatArray) -> None:
        """Project W in the norm of A. Solves the dual equation Σ_i max(-α, s_i + λ c_i) = 1 + α - Kα for λ."""
        s = np.array([self.W[i] @ x for i in range(self.K)])
        goal = 1 + self.alpha - self.K * self.alpha
        low, high = -1.0, 1.0
        while np.maximum(-self.alpha, s + low * c).sum() > goal:
            low *= 2
        while np.maximum(-self.alpha, s + high * c).sum() < goal:
            high *= 2
        for _ in range(200):
            middle = 0.5 * (low + high)
            if np.maximum(-self.alpha, s + middle * c).sum() < goal:
                low = middle
            else:
                high = middle
        moved = np.maximum(-self.alpha, s + high * c)
        self.W = np.array([self.W[i] + (moved[i] - s[i]) / c[i] * solved[i] for i in range(self.K)])

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        x = x / np.linalg.norm(x)
        a = logged.action
        X = x
        if v < (1 - reward) * (1 + self.alpha) / 2:  # a share is right with this probability
            X = -x
        before = self.A[a].copy()
        self.A[a] += np.diag(X * X) if self.covariance == "diag" else np.outer(X, X)
        self.W[a] = np.linalg.solve(self.A[a], before @ self.W[a] + X)
        self.confidence_sum += float(x @ np.linalg.solve(self.A[a], x))

    def weights(self) -> FloatArray:
        return self.W


class NaiveDualConfidit:
    """Fig. 1 with kernels and equation (11), without projection. Each class has a Gram matrix of its examples."""

    def __init__(self, K: int, *, kernel: str, degree: int, width: float, eta: float, alpha: float) -> None:
        self.kernel, self.degree, self.width, self.eta, self.alpha = kernel, degree, width, eta, alpha
        self.examples: list[list[FloatArray]] = [[] for _ in range(K)]
        self.targets: list[list[float]] = [[] for _ in range(K)]
        self.closest = np.inf

    def k(self, x: FloatArray, y: FloatArray) -> float:
        if self.kernel == "linear":
            return float(x @ y)
        if self.kernel == "rational":
            return float(1 / (1 - 0.5 * (x @ y)))
        if self.kernel == "polynomial":
            return float((1 + x @ y) ** self.degree)
        return float(np.exp(-((x - y) ** 2).sum() / (2 * self.width**2)))

    def predict(self, x: FloatArray, u: float) -> Logged:
        x = x / np.linalg.norm(x)
        lam = (1 + self.alpha) ** 2
        scores, bounds = np.zeros(len(self.examples)), np.zeros(len(self.examples))
        for i, examples in enumerate(self.examples):
            c = self.k(x, x) / lam
            if examples:
                G = lam * np.eye(len(examples)) + np.array([[self.k(a, b) for a in examples] for b in examples])
                k = np.array([self.k(x, a) for a in examples])
                scores[i] = k @ np.linalg.solve(G, np.array(self.targets[i]))
                c -= float(k @ np.linalg.solve(G, k)) / lam
            bounds[i] = scores[i] + np.sqrt(self.eta * c)
        for values in (bounds, scores):
            behind = values[values != values.max()]
            if behind.size:
                self.closest = min(self.closest, float(values.max() - behind.max()))
        return Logged(best_of(bounds), best_of(scores), 1.0, scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        self.examples[logged.action].append(x / np.linalg.norm(x))
        self.targets[logged.action].append(-1.0 if v < (1 - reward) * (1 + self.alpha) / 2 else 1.0)

    def weights(self) -> FloatArray:
        raise NotImplementedError
