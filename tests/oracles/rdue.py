"""Randomized decoding with uniform exploration (RDUE) in plain numpy. Computes all distributions explicitly."""

import numpy as np

from stream.wire.records import FloatArray
from tests.oracles.logged import Logged, sample


class NaiveRdue:
    """Algorithms 1 and 2 of Shibukawa et al. (2025), with section 3.3's estimator and appendix H.1's rate."""

    def __init__(self, K: int, d: int, q: float, diameter: float) -> None:
        self.W, self.q, self.B = np.zeros((K, d)), q, diameter
        self.gradients: list[FloatArray] = []

    def regularized(self, theta: FloatArray) -> FloatArray:
        """Return ŷ_Ω(θ) = argmax_y <θ, y> + H(y)."""
        weights = np.exp(theta - theta.max())
        return np.asarray(weights / weights.sum())

    def predict(self, x: FloatArray, u: float) -> Logged:
        theta = self.W @ x
        K, nu = theta.size, 2.0
        y_hat = self.regularized(theta)
        distances = np.array([np.abs(y - y_hat).sum() for y in np.eye(K)])
        # The nearest vertex (line 2 of algorithm 1) is found from `theta`, because `distances` has rounding errors.
        nearest = int(np.argmax(theta))
        assert distances[nearest] <= distances.min() + 1e-12
        p = min(1.0, 2.0 * distances[nearest] / nu)
        decoded = (1 - p) * np.eye(K)[nearest] + p * y_hat
        played = (1 - self.q) * decoded + self.q * np.full(K, 1 / K)
        action = sample(played, u)
        return Logged(action, nearest, float(played[action]), theta)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        y_hat = self.regularized(logged.scores)
        G = np.outer(y_hat - np.eye(y_hat.size)[logged.action], x)
        self.gradients.append(reward / logged.propensity * G)
        if reward:
            total = sum(np.linalg.norm(gradient) ** 2 for gradient in self.gradients)
            self.W = self.W - self.B / np.sqrt(2 * (1e-8 + total)) * self.gradients[-1]

    def weights(self) -> FloatArray:
        return self.W
