"""Line-by-line implementations of the algorithms in the Notes, in plain numpy on dense vectors."""

from typing import NoReturn

import numpy as np

from stream.wire.records import FloatArray
from tests.oracles.logged import Logged, sample


def no_weights() -> NoReturn:
    raise NotImplementedError


def uniform(K: int) -> FloatArray:
    return np.full(K, 1.0 / K)


class NaiveOvaPerceptron:
    """Algorithm 3 of the Notes."""

    def __init__(self, K: int, d: int) -> None:
        self.W = np.zeros((K, d))

    def predict(self, x: FloatArray, u: float) -> Logged:
        scores = self.W @ x
        greedy = int(np.argmax(scores))
        if (scores >= 0).any():
            return Logged(greedy, greedy, 1.0, scores)
        return Logged(sample(uniform(scores.size), u), greedy, 1.0 / scores.size, scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if (logged.scores >= 0).any():
            if not reward:
                self.W[logged.action] -= x
        elif reward:
            self.W[logged.action] += x

    def weights(self) -> FloatArray:
        return self.W


class NaiveOvaKernelPerceptron:
    """Algorithm 3 of the Notes with kernels (section 5): w_i = Σ ± φ(x_p) over the last `support_max` examples."""

    def __init__(self, K: int, kernel: str, degree: int, width: float, support_max: int) -> None:
        self.K, self.kernel, self.degree, self.width, self.support_max = K, kernel, degree, width, support_max
        self.support: list[tuple[FloatArray, int, float]] = []

    def k(self, x: FloatArray, y: FloatArray) -> float:
        if self.kernel == "rational":
            x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
            return float(1 / (1 - 0.5 * (x @ y)))
        if self.kernel == "polynomial":
            return float((1 + x @ y) ** self.degree)
        return float(np.exp(-((x - y) ** 2).sum() / (2 * self.width**2)))

    def predict(self, x: FloatArray, u: float) -> Logged:
        scores = np.zeros(self.K)
        for example, owner, sign in self.support:
            scores[owner] += sign * self.k(example, x)
        greedy = int(np.argmax(scores))
        if (scores >= 0).any():
            return Logged(greedy, greedy, 1.0, scores)
        return Logged(sample(uniform(self.K), u), greedy, 1.0 / self.K, scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if (logged.scores >= 0).any():
            if not reward:
                self.support.append((x, logged.action, -1.0))
        elif reward:
            self.support.append((x, logged.action, 1.0))
        self.support = self.support[-self.support_max :]

    def weights(self) -> FloatArray:
        no_weights()


def project(W: FloatArray, radius: float) -> FloatArray:
    """Return the matrix nearest to W with ‖W_i‖ ≤ radius and Σ_i W_i = 0. Uses Newton's method on the dual problem.

    Let μ be the Lagrange multiplier of the sum constraint. For a given μ, row i of the solution is the projection of
    W_i - μ onto the ball. Newton's method finds the μ for which the rows sum to zero.
    """

    def rows(mu: FloatArray) -> FloatArray:
        shifted = W - mu
        norms = np.linalg.norm(shifted, axis=1, keepdims=True)
        shrunk: FloatArray = shifted * np.where(norms > radius, radius / np.maximum(norms, 1e-300), 1.0)
        return shrunk

    mu = W.mean(axis=0)
    eye = np.eye(W.shape[1])
    for _ in range(200):
        total = rows(mu).sum(axis=0)
        if np.abs(total).max() < 1e-14:
            break
        jacobian = np.zeros_like(eye)
        for row in W - mu:
            norm = np.linalg.norm(row)
            jacobian -= eye if norm <= radius else radius / norm * (eye - np.outer(row, row) / norm**2)
        step = np.linalg.lstsq(jacobian, -total, rcond=None)[0]
        scale = 1.0
        while scale > 1e-9 and np.linalg.norm(rows(mu + scale * step).sum(axis=0)) >= np.linalg.norm(total):
            scale /= 2
        mu = mu + scale * step
    return rows(mu)


class NaiveOneSidedBanditron:
    """Algorithm 4 of the Notes, with projection onto matrices whose rows sum to zero and have a limited norm."""

    def __init__(self, K: int, d: int, eta: float, radius: float) -> None:
        self.W, self.eta, self.radius = np.zeros((K, d)), eta, radius

    def predict(self, x: FloatArray, u: float) -> Logged:
        # One product per row ensures that equal rows have equal scores. A matrix product does not guarantee this.
        scores = np.array([row @ x for row in self.W])
        greedy = int(np.argmax(scores))
        return Logged(greedy, greedy, 1.0, scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if not reward:
            stepped = self.W.copy()
            stepped[logged.action] -= self.eta * x
            self.W = project(stepped, self.radius)

    def weights(self) -> FloatArray:
        return self.W


class NaiveSelectron:
    """Algorithm 5 of the Notes. Refits W to all right guesses: (13) by a linear system, (15) by projected gradients."""

    def __init__(self, K: int, d: int, *, epsilon: float, eta: float, loss: str, alpha: float, radius: float) -> None:
        self.epsilon, self.eta, self.loss, self.alpha, self.radius = epsilon, eta, loss, alpha, radius
        self.W = np.zeros((K, d))
        self.M = np.eye(d)
        self.right: list[tuple[FloatArray, int]] = []

    def predict(self, x: FloatArray, u: float) -> Logged:
        scores = np.array([row @ x for row in self.W])
        greedy = int(np.argmax(scores))
        if np.sqrt(x @ np.linalg.solve(self.M, x)) >= self.epsilon:
            return Logged(sample(uniform(scores.size), u), greedy, 1.0 / scores.size, scores)
        return Logged(greedy, greedy, 1.0, scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if reward:
            self.M += np.outer(x, x)
            self.right.append((x, logged.action))
            self.W = self._ridge() if self.loss == "quadratic" else self._logistic()

    def _ridge(self) -> FloatArray:
        K, d = self.W.shape
        G = np.eye(d) / self.eta
        b = np.zeros((K, d))
        for x, y in self.right:
            G += np.outer(x, x) / (self.alpha + 1)
            for i in range(K):
                b[i] += ((i == y) - self.alpha / (self.alpha + 1)) * x
        return np.array([np.linalg.solve(G, b[i]) for i in range(K)])

    def _logistic(self) -> FloatArray:
        X: FloatArray = np.array([x for x, _ in self.right])
        Y: FloatArray = np.eye(self.W.shape[0])[[y for _, y in self.right]]
        smoothness = 1 / self.eta + 0.5 * np.linalg.eigvalsh(X.T @ X).max()
        W = self.W
        for _ in range(100_000):
            scores = X @ W.T
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            stepped: FloatArray = W - ((p - Y).T @ X + W / self.eta) / smoothness
            norms = np.linalg.norm(stepped, axis=1, keepdims=True)
            stepped *= np.minimum(1.0, self.radius / np.maximum(norms, 1e-300))
            if np.abs(stepped - W).max() < 1e-14:
                return stepped
            W = stepped
        raise AssertionError("the naive fit did not converge")

    def weights(self) -> FloatArray:
        return self.W


class NaiveKwikBanditron:
    """Algorithm 6 of the Notes."""

    def __init__(self, comparator: FloatArray, epsilon: float, D: float) -> None:
        self.comparator, self.epsilon, self.D = comparator, epsilon, D
        self.W = np.zeros_like(comparator)
        self.M = np.eye(comparator.shape[1])

    def predict(self, x: FloatArray, u: float) -> Logged:
        scores = np.array([row @ x for row in self.W])
        greedy = int(np.argmax(scores))
        unknown = np.sqrt(x @ np.linalg.inv(self.M) @ x) >= self.epsilon
        if unknown and np.linalg.norm(self.W - self.comparator) >= 1:
            return Logged(sample(uniform(scores.size), u), greedy, 1.0 / scores.size, scores)
        return Logged(greedy, greedy, 1.0, scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if not reward:
            return
        y = logged.action
        scores = self.W @ x
        others = np.where(np.arange(scores.size) == y, -np.inf, scores)
        r = int(np.argmax(others))
        hinge = max(0.0, 1 - scores[y] + scores[r])
        gradient = np.zeros_like(self.W)
        gradient[y] -= 2 * hinge * x
        gradient[r] += 2 * hinge * x
        self.M += hinge**2 * np.outer(x, x)
        self.W = self.W - gradient / 8
        for i in range(scores.size):
            self.W[i] *= min(1.0, self.D / max(float(np.linalg.norm(self.W[i])), 1e-300))

    def weights(self) -> FloatArray:
        return self.W


class NaiveHalving:
    """Algorithm 2 of the Notes, over a list of hypotheses."""

    def __init__(self, hypotheses: FloatArray) -> None:
        self.left = list(hypotheses)
        self.K = hypotheses.shape[1]

    def classes(self, x: FloatArray) -> list[int]:
        return [int(np.argmax([row @ x for row in W])) for W in self.left]

    def predict(self, x: FloatArray, u: float) -> Logged:
        votes = np.bincount(self.classes(x), minlength=self.K).astype(np.float64)
        return Logged(int(np.argmax(votes)), int(np.argmax(votes)), 1.0, votes)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if not reward:
            self.keep([W for W, k in zip(self.left, self.classes(x), strict=True) if k != logged.action])

    def keep(self, kept: list[FloatArray]) -> None:
        self.left = kept or self.left

    def weights(self) -> FloatArray:
        no_weights()


class NaiveBiasedHalving(NaiveHalving):
    """Algorithm 8 of the Notes, over a list of hypotheses."""

    def __init__(self, hypotheses: FloatArray, alpha: float) -> None:
        super().__init__(hypotheses)
        self.alpha = alpha

    def predict(self, x: FloatArray, u: float) -> Logged:
        majority = super().predict(x, u)
        if majority.scores.max() / majority.scores.sum() >= 1 - self.alpha:
            return majority
        return majority._replace(action=sample(uniform(self.K), u), propensity=1.0 / self.K)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        agree = [k == logged.action for k in self.classes(x)]
        if logged.scores.max() / logged.scores.sum() >= 1 - self.alpha:
            if not reward:
                self.keep([W for W, agrees in zip(self.left, agree, strict=True) if not agrees])
        elif reward:
            self.keep([W for W, agrees in zip(self.left, agree, strict=True) if agrees])


class NaiveExp4:
    """Algorithm 9 of the Notes, over a list of hypotheses. One uniform number determines the draw of (ỹ, ŷ)."""

    def __init__(self, hypotheses: FloatArray, gamma: float, alpha: float) -> None:
        self.H, self.gamma, self.alpha = hypotheses, gamma, alpha
        self.losses = np.zeros(len(hypotheses))

    def joint(self, x: FloatArray) -> FloatArray:
        """Return P(ỹ, ŷ), float64[K, K]."""
        K = self.H.shape[1]
        q = np.exp(-self.alpha * (self.losses - self.losses.min()))
        q /= q.sum()
        classes = [int(np.argmax([row @ x for row in W])) for W in self.H]
        Q = np.bincount(classes, weights=q, minlength=K)
        conditional = (1 - self.gamma) * np.eye(K) + self.gamma / K
        return np.array([conditional[i] * Q for i in range(K)])  # column ŷ is P(ỹ | ŷ) Q_ŷ

    def predict(self, x: FloatArray, u: float) -> Logged:
        joint = self.joint(x)
        p = joint.sum(axis=1)
        action = sample(p, u)
        rest = (u - p[:action].sum()) / p[action]
        greedy = sample(joint[action] / p[action], rest)
        return Logged(action, greedy, float(p[action]), joint.sum(axis=0))

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        K = self.H.shape[1]
        if reward:
            played = 1 - self.gamma + self.gamma / K if logged.greedy == logged.action else self.gamma / K
            for h, W in enumerate(self.H):
                scores = W @ x
                self.losses[h] += max(0.0, 1 - scores[logged.action] + scores.max()) / played

    def weights(self) -> FloatArray:
        no_weights()


class NaiveHypothesisExhaustion:
    """A learner from section 2 of the Notes. Uses each hypothesis until it makes a mistake, then uses the next one."""

    def __init__(self, hypotheses: FloatArray) -> None:
        self.H, self.j = hypotheses, 0

    def predict(self, x: FloatArray, u: float) -> Logged:
        scores = np.array([row @ x for row in self.H[self.j]])
        greedy = int(np.argmax(scores))
        return Logged(greedy, greedy, 1.0, scores)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        if not reward and self.predict(x, 0.0).action == logged.action:
            self.j = (self.j + 1) % len(self.H)

    def weights(self) -> FloatArray:
        weights: FloatArray = self.H[self.j]
        return weights


class NaiveFeatureBlocks:
    """A learner from section 2 of the Notes. Divides the feature space into blocks and learns one class per block."""

    def __init__(self, K: int, d: int, gamma: float) -> None:
        self.K, self.side = K, gamma / np.sqrt(d)
        self.known: dict[tuple[int, ...], int] = {}
        self.out: dict[tuple[int, ...], set[int]] = {}

    def block(self, x: FloatArray) -> tuple[int, ...]:
        return tuple(int(c) for c in np.floor(x / self.side))

    def predict(self, x: FloatArray, u: float) -> Logged:
        block = self.block(x)
        p = np.zeros(self.K)
        if block in self.known:
            p[self.known[block]] = 1.0
        else:
            left = [i for i in range(self.K) if i not in self.out.get(block, set())]
            p[left] = 1.0 / len(left)
        action = sample(p, u)
        return Logged(action, int(np.argmax(p)), float(p[action]), p)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        block = self.block(x)
        out = self.out.setdefault(block, set())
        if reward:
            self.known[block] = logged.action
            return
        out.add(logged.action)
        if self.known.get(block) == logged.action:
            del self.known[block]
        if len(out) == self.K:
            out.clear()

    def weights(self) -> FloatArray:
        no_weights()
