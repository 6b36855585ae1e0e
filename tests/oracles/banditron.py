"""Banditron in plain numpy, with the paper's full update matrix."""

import numpy as np

from stream.wire.records import FloatArray
from tests.oracles.logged import Eligible, Logged, among, sample


def explore(scores: FloatArray, gamma: float, u: float, eligible: Eligible = None) -> Logged:
    """Draw an action from p = (1-γ) e_greedy + (γ/K) 1, over the eligible classes only."""
    scores = among(scores, eligible)
    greedy = int(np.argmax(scores))
    p = (1 - gamma) * np.eye(scores.size)[greedy] + gamma * (scores > -np.inf) / np.sum(scores > -np.inf)
    action = sample(p, u)
    return Logged(action, greedy, float(p[action]), scores)


class NaiveBanditron:
    """Algorithm 1 of Kakade, Shalev-Shwartz and Tewari (2008)."""

    def __init__(self, K: int, d: int, gamma: float, margin: str = "decision") -> None:
        self.W, self.gamma, self.margin = np.zeros((K, d)), gamma, margin

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        return explore(self.W @ x, self.gamma, u, eligible)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        K, d = self.W.shape
        U = np.zeros((K, d))
        now = np.where(logged.scores > -np.inf, self.W @ x, -np.inf)
        greedy = int(np.argmax(now)) if self.margin == "feedback" else logged.greedy
        for r in range(K):
            for j in range(d):
                U[r, j] = x[j] * (reward * (logged.action == r) / logged.propensity - (greedy == r))
        self.W = self.W + U

    def weights(self) -> FloatArray:
        return self.W
