"""The three learners for late bits in plain numpy, and the alarm that they share."""

from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from stream.wire.events import FloatArray
from tests.oracles.logged import Logged, sample


def unit(x: FloatArray) -> FloatArray:
    """To length 1; 0 stays 0."""
    norm = float(np.linalg.norm(x))
    return x / norm if norm > 0.0 else x


def sigmoid(s: float) -> float:
    return 1.0 / (1.0 + exp(-s))


class Alarm:
    """n += 1; S = max(0, S + (m − r) − .2); m += (r − m)/min(n, 1000); above a threshold: start anew."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.n, self.m, self.total = 0, 0.0, 0.0

    def hear(self, r: int) -> bool:
        self.n += 1
        self.total = max(0.0, self.total + (self.m - r) - 0.2)
        self.m += (r - self.m) / min(self.n, 1000)
        return self.total > self.threshold

    def forget(self) -> None:
        self.n, self.m, self.total = 0, 0.0, 0.0


class Drift:
    """One alarm for all, and one for each class."""

    def __init__(self, K: int, kind: str) -> None:
        self.kind = kind
        self.of_all, self.of_class = Alarm(15.0), [Alarm(10.0) for _ in range(K)]
        self.resets = [0] * K

    def hear(self, action: int, r: int) -> list[int]:
        """The classes to reset."""
        if self.kind == "off":
            return []
        everything = self.of_all.hear(r)
        one = self.kind == "class" and self.of_class[action].hear(r)
        gone: list[int] = []
        if everything:
            gone = list(range(len(self.of_class)))
            self.of_all.forget()
        elif one:
            gone = [action]
        for k in gone:
            self.of_class[k].forget()
            self.resets[k] += 1
        return gone


TIE = 1e-13
"""Classes that are alike differ by less than this, relative to them: a BLAS rounds by where its arrays lie."""


def best_of(values: NDArray[np.float64]) -> int:
    """The first class of those that tie for the largest value."""
    return int(np.argmax(values >= values.max() - TIE * abs(values.max())))


def closest_of(values: NDArray[np.float64]) -> float:
    """How far the largest leads over the largest that does not tie with it."""
    behind = values[values < values.max() - TIE * abs(values.max())]
    return float(values.max() - behind.max()) if behind.size else float("inf")


class NaiveLateUcb:
    """Matrices inverted anew from their sums at every round."""

    def __init__(
        self,
        K: int,
        d: int,
        *,
        lam: float = 0.03,
        eta: float = 0.1,
        shortlist: int = 4,
        bias: float = 0.3,
        expand: str = "none",
        G: FloatArray | None = None,
        floor: float = 0.0,
        drift: str = "off",
    ) -> None:
        self.K, self.lam, self.eta, self.M, self.b, self.f = K, lam, eta, shortlist, bias, floor
        self.expand, self.G, self.d = expand, G, d
        self.size = 1 + (G.shape[0] if G is not None else d + d * (d + 1) // 2 if expand == "quadratic" else d)
        self.A = np.array([lam * np.eye(self.size)] * K)
        self.w = np.zeros((K, self.size))
        self.N = np.zeros(K)
        self.drift = Drift(K, drift)
        self.closest = np.inf
        self.epochs: dict[int, int] = {}  # by the identity of what was logged

    def features(self, x: FloatArray) -> FloatArray:
        if self.expand == "quadratic":
            x = np.array([*x, *(x[i] * x[j] for i in range(self.d) for j in range(i, self.d))])
        x = unit(x)
        if self.G is not None:
            x = self.G @ x
        return np.array([*x, self.b])

    def squared_length(self, x: FloatArray) -> float:
        """Of unit norm are all x but 0; said exactly, since the number of decisions makes ties."""
        return (float(x[:-1] @ x[:-1]) if self.G is not None else float(np.any(x[:-1] != 0))) + self.b * self.b

    def predict(self, x: FloatArray, u: float) -> Logged:
        x = self.features(x)
        s = np.array([float(self.w[k] @ x) for k in range(self.K)])
        width = self.eta * self.squared_length(x)
        rough = np.array([s[k] + sqrt(width / (self.lam + self.N[k] / self.size)) for k in range(self.K)])
        listed = sorted(sorted(range(self.K), key=lambda k: (-rough[k], k))[: self.M])
        bounds = np.full(self.K, -np.inf)
        for k in listed:
            bounds[k] = s[k] + sqrt(self.eta * max(0.0, float(x @ np.linalg.solve(self.A[k], x))))
        best = best_of(bounds)
        self.closest = min(self.closest, closest_of(bounds), closest_of(s))
        if self.M < self.K:
            ordered = np.sort(rough)[::-1]
            if ordered[self.M - 1] != ordered[self.M]:
                self.closest = min(self.closest, float(ordered[self.M - 1] - ordered[self.M]))
        p = np.full(self.K, self.f / self.K)
        p[best] += 1 - self.f
        action = sample(p, u)
        logged = Logged(action, best_of(s), float(p[action]), s)
        self.epochs[id(logged)] = self.drift.resets[action]
        return logged

    def observe(self, x: FloatArray, logged: Logged) -> None:
        x, a = self.features(x), logged.action
        self._take_in(x, a, float(logged.scores[a]))

    def _take_in(self, x: FloatArray, a: int, believed: float) -> None:
        self.N[a] += self.squared_length(x)
        self.A[a] += np.outer(x, x)
        self.w[a] += (believed - float(self.w[a] @ x)) * np.linalg.solve(self.A[a], x)

    def update(self, x: FloatArray, logged: Logged, reward: int, v: float) -> None:
        features, a = self.features(x), logged.action
        believed = float(logged.scores[a])
        if self.epochs.pop(id(logged)) != self.drift.resets[a]:
            believed = float(self.w[a] @ features)
            self._take_in(features, a, believed)
        self.w[a] += (reward - believed) * np.linalg.solve(self.A[a], features)
        for k in self.drift.hear(a, reward):
            self.A[k], self.w[k], self.N[k] = self.lam * np.eye(self.size), 0.0, 0.0

    def weights(self) -> FloatArray:
        return np.asarray(self.w[:, : self.d])


class NaiveIgwLogistic:
    """One logistic regression per class, entry by entry."""

    def __init__(
        self,
        K: int,
        d: int,
        *,
        scale: float = 300.0,
        step: float = 2.0,
        others: float = 0.3,
        bias: float = 0.1,
        drift: str = "off",
    ) -> None:
        self.K, self.d, self.scale, self.step, self.others, self.b = K, d, scale, step, others, bias
        self.W, self.A = np.zeros((K, d + 1)), np.full((K, d + 1), 1e-3)
        self.t = 0
        self.drift = Drift(K, drift)
        self.closest = np.inf

    def predict(self, x: FloatArray, u: float) -> Logged:
        x = np.array([*unit(x), self.b])
        p = np.array([sigmoid(float(self.W[k] @ x)) for k in range(self.K)])
        b = best_of(p)
        self.closest = min(self.closest, closest_of(p))
        gamma = self.scale * sqrt(self.t + 1)
        pi = np.array([0.0 if k == b else 1 / (self.K + gamma * (p[b] - p[k])) for k in range(self.K)])
        pi[b] = 1 - pi.sum()
        action = sample(pi, u)
        return Logged(action, b, float(pi[action]), p)

    def observe(self, x: FloatArray, logged: Logged) -> None:
        self.t += 1

    def update(self, x: FloatArray, logged: Logged, reward: int, v: float) -> None:
        x, a = np.array([*unit(x), self.b]), logged.action
        p = [sigmoid(float(self.W[k] @ x)) for k in range(self.K)]
        rest = sum(p[j] for j in range(self.K) if j != a)
        for k in range(self.K):
            y = float(reward) if k == a else 0.0
            if k != a and not reward:
                y = min(1.0, p[k] / max(rest, 1e-9))
            e = (1.0 if k == a else self.others) * (p[k] - y)
            for i in range(x.size):
                self.A[k, i] += (e * x[i]) ** 2
                self.W[k, i] -= self.step * e * x[i] / sqrt(self.A[k, i])
        for k in self.drift.hear(a, reward):
            self.W[k], self.A[k] = 0.0, 1e-3

    def weights(self) -> FloatArray:
        return np.asarray(self.W[:, : self.d])


def mar(z: FloatArray) -> FloatArray:
    top, second = sorted(z, reverse=True)[:2]
    return np.array([z_k - (top if z_k < top else second) for z_k in z])


class NaiveStackIgw:
    """Dense sums, entry by entry."""

    def __init__(self, K: int, d: int, *, drift: str = "off") -> None:
        self.K, self.d = K, d
        self.W, self.A = np.zeros((K, d + 1)), np.full((K, d + 1), 3e-3)
        self.C, self.N = np.zeros((K, d)), np.zeros((K, d))
        self.M, self.m = np.zeros(d), 0
        self.df, self.n = np.zeros(d), 0
        self.nr, self.h, self.w, self.pend = np.zeros(K), np.zeros(K), np.zeros(K), np.zeros(K)
        self.v = np.array([-log(K - 1), 5, 10, 0, -1.5, -1, 0, 0.5, 1.5])
        self.P = 10.0 * np.eye(9)
        self.settled = 0
        self.drift = Drift(K, drift)
        self.closest = np.inf
        self.phi_of: dict[int, FloatArray] = {}  # by the identity of what was logged

    def scaled(self, x: FloatArray, n: int) -> FloatArray:
        x = unit(x)
        return unit(np.array([x[i] * log(1.2 * (n + 2) / (self.df[i] + 1)) for i in range(self.d)]))

    def predict(self, x: FloatArray, u: float) -> Logged:
        x = self.scaled(x, self.n)
        biased = np.array([*x, 0.1])
        mu = float(self.M @ x) / max(self.m, 1)
        c = np.array([float(self.C[k] @ x) / sqrt(self.nr[k]) if self.nr[k] > 0 else 0.0 for k in range(self.K)])
        E = [max(0.0, float(self.N[k] @ x) - self.w[k] * mu) for k in range(self.K)]
        s = np.array([min(max(float(self.W[k] @ biased), -8.0), 8.0) for k in range(self.K)])
        g = [1 / sqrt(1 + self.h[k]) for k in range(self.K)]
        mar_c, mar_s = mar(c), mar(s)
        phi = np.array(
            [
                [1, c[k], mar_c[k], self.h[k] == 0, log(1 + E[k]), g[k], g[k] * c[k], s[k] / 4, mar_s[k] / 4]
                for k in range(self.K)
            ]
        )
        p = np.array([sigmoid(float(self.v @ phi[k])) for k in range(self.K)])
        q = np.array([p[k] * (1 + 2.5 * self.K / (1 + self.h[k] + 0.1 * self.pend[k])) for k in range(self.K)])
        b = best_of(q)
        self.closest = min(self.closest, closest_of(p), closest_of(q))
        gamma = 300 * sqrt(self.settled + 1)
        pi = np.array([0.0 if k == b else 1 / (self.K + gamma * (q[b] - q[k])) for k in range(self.K)])
        pi[b] = 1 - pi.sum()
        action = sample(pi, u)
        logged = Logged(action, best_of(p), float(pi[action]), p)
        self.phi_of[id(logged)] = phi[action]
        return logged

    def observe(self, x: FloatArray, logged: Logged) -> None:
        x = self.scaled(x, self.n)
        self.M += x
        self.m += 1
        self.pend[logged.action] += 1
        self.df += x != 0
        self.n += 1

    def update(self, x: FloatArray, logged: Logged, reward: int, v: float) -> None:
        a, phi = logged.action, self.phi_of.pop(id(logged))
        self.pend[a] -= 1
        rho = sigmoid(float(self.v @ phi))
        H = max(rho * (1 - rho), 0.01)
        z = self.P @ phi
        c = float(phi @ z)
        self.v = self.v + z * (reward - rho) / (1 + H * c)
        self.P = self.P - H * np.outer(z, z) / (1 + H * c)
        x = self.scaled(x, self.n - 1)
        if reward:
            self.nr[a] += 2 * float(self.C[a] @ x) + 1
            self.C[a] += x
            self.h[a] += 1
        else:
            self.N[a] += x
            self.w[a] += 1
        biased = np.array([*x, 0.1])
        p = [sigmoid(float(self.W[k] @ biased)) for k in range(self.K)]
        for k in range(self.K):
            e = p[k] - reward if k == a else 0.3 * p[k] * reward
            if abs(e) >= 1e-4:
                for i in range(self.d + 1):
                    self.A[k, i] += (e * biased[i]) ** 2
                    self.W[k, i] -= 2 * e * biased[i] / sqrt(self.A[k, i])
        self.settled += 1
        for k in self.drift.hear(a, reward):
            self.W[k], self.A[k], self.C[k], self.N[k] = 0.0, 3e-3, 0.0, 0.0
            self.nr[k] = self.h[k] = self.w[k] = 0.0

    def weights(self) -> FloatArray:
        raise NotImplementedError
