"""Full-information baselines in plain numpy."""

import numpy as np

from stream.wire.records import FloatArray
from tests.oracles.logged import Eligible, Logged, among


class NaivePerceptron:
    """Algorithm 1 of the Notes."""

    def __init__(self, K: int, d: int, margin: str = "decision") -> None:
        self.W, self.margin = np.zeros((K, d)), margin

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        scores = among(self.W @ x, eligible)
        greedy = int(np.argmax(scores))
        return Logged(greedy, greedy, 1.0, scores)

    def held_against(self, x: FloatArray, logged: Logged) -> FloatArray:
        """Return the scores to compare with the label: the decision's scores, or the current scores."""
        now = np.where(logged.scores > -np.inf, self.W @ x, -np.inf)
        return now if self.margin == "feedback" else logged.scores

    def learn(self, x: FloatArray, logged: Logged, label: int) -> None:
        greedy = int(np.argmax(self.held_against(x, logged)))
        if greedy != label:
            self.W[label] += x
            self.W[greedy] -= x

    def weights(self) -> FloatArray:
        return self.W


class NaiveSecondOrderPerceptron(NaivePerceptron):
    """The second-order perceptron, with one diagonal correlation matrix per class."""

    def __init__(self, K: int, d: int, a: float, margin: str = "decision") -> None:
        super().__init__(K, d, margin)
        self.V, self.A = np.zeros((K, d)), np.full((K, d), a)

    def learn(self, x: FloatArray, logged: Logged, label: int) -> None:
        greedy = int(np.argmax(self.held_against(x, logged)))
        if greedy != label:
            self.V[label] += x
            self.V[greedy] -= x
            self.A[[label, greedy]] += x**2
            self.W = self.V / self.A


class NaiveArow(NaivePerceptron):
    """Diagonal AROW. The margin is the label's score minus the highest score of the other classes."""

    def __init__(self, K: int, d: int, r: float, margin: str = "decision") -> None:
        super().__init__(K, d, margin)
        self.r, self.precision = r, np.ones((K, d))

    def learn(self, x: FloatArray, logged: Logged, label: int) -> None:
        scores = self.held_against(x, logged)
        others = scores.copy()
        others[label] = -np.inf
        rival = int(np.argmax(others))
        margin = scores[label] - scores[rival]
        if margin < 1 and rival != label and scores[label] > -np.inf:
            S = 1 / self.precision
            v = float(x**2 @ (S[label] + S[rival]))
            alpha = (1 - margin) / (v + self.r)
            self.W[label] += alpha * S[label] * x
            self.W[rival] -= alpha * S[rival] * x
            self.precision[[label, rival]] += x**2 / self.r
