"""The late-ucb, igw-logistic and stack-igw learners in plain numpy, and the drift detection that they share."""

from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from stream.wire.records import FloatArray
from tests.oracles.logged import Eligible, Logged, among, sample


def unit(x: FloatArray) -> FloatArray:
    """Return x scaled to length 1. Returns a zero vector unchanged."""
    norm = float(np.linalg.norm(x))
    return x / norm if norm > 0.0 else x


def sigmoid(s: float) -> float:
    return 1.0 / (1.0 + exp(-s))


class Alarm:
    """Drift detection for a sequence of rewards r from 0 to 1.

    n += 1; S = max(0, S + (m − r) − .2); m += (r − m)/min(n, 1000). The alarm is raised if S exceeds the threshold.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.n, self.m, self.total = 0, 0.0, 0.0

    def process(self, r: float) -> bool:
        self.n += 1
        self.total = max(0.0, self.total + (self.m - r) - 0.2)
        self.m += (r - self.m) / min(self.n, 1000)
        return self.total > self.threshold

    def forget(self) -> None:
        self.n, self.m, self.total = 0, 0.0, 0.0


class Drift:
    """Drift detection with one alarm for all classes together, and one alarm for each class."""

    def __init__(self, K: int, kind: str) -> None:
        self.kind = kind
        self.of_all, self.of_class = Alarm(15.0), [Alarm(10.0) for _ in range(K)]
        self.resets = [0] * K

    def process(self, action: int, r: float) -> list[int]:
        """Process a reward and return the classes to reset."""
        if self.kind == "off":
            return []
        everything = self.of_all.process(r)
        one = self.kind == "class" and self.of_class[action].process(r)
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
"""Values tie if their difference is at most this number, relative to the largest value if that is above 1.

The rounding errors of BLAS functions depend on the memory alignment of the arrays, so exact comparison is unreliable.
"""


def best_of(values: NDArray[np.float64]) -> int:
    """Return the first class whose value equals or ties with the largest value."""
    return int(np.argmax(values >= values.max() - TIE * max(1.0, abs(values.max()))))


def closest_of(values: NDArray[np.float64]) -> float:
    """Return the difference between the largest value and the next-largest value that does not tie with it."""
    behind = values[values < values.max() - TIE * max(1.0, abs(values.max()))]
    return float(values.max() - behind.max()) if behind.size else float("inf")


class NaiveLateUcb:
    """The late-ucb learner. Every round solves linear systems with full matrices."""

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
        waves: tuple[FloatArray, FloatArray] | None = None,
        G: FloatArray | None = None,
        drift: str = "off",
    ) -> None:
        """Create the learner. `G` is a random matrix [p, d]; `waves` is (σω [m, d], β [m]) for random features."""
        self.K, self.lam, self.eta, self.M, self.b = K, lam, eta, shortlist, bias
        self.expand, self.G, self.d = expand, G, d
        self.omega, self.beta = waves or (np.zeros((0, d)), np.zeros(0))
        self.m = self.beta.size
        own = G.shape[0] if G is not None else d + d * (d + 1) // 2 if expand == "quadratic" else d
        self.size = own + self.m + 1
        self.A, self.B = np.array([lam * np.eye(self.size)] * K), np.array([lam * np.eye(self.size)] * K)
        self.w, self.y = np.zeros((K, self.size)), np.zeros((K, self.size))
        self.N = np.zeros(K)
        self.first: list[FloatArray] = []
        self.sigma_sq = 0.0
        self.drift = Drift(K, drift)
        self.closest = np.inf
        # Keyed by id() of the logged decision: the epoch, w·x, and whether z is known.
        self.kept: dict[int, tuple[int, float, bool]] = {}

    def features(self, x: FloatArray, known: bool) -> tuple[FloatArray, float]:
        """Return x⁺ and its squared length.

        The squared length of a unit vector is exactly 1. Classes with equal numbers of decisions therefore tie exactly.
        """
        raw = x
        if self.expand == "quadratic":
            x = np.array([*x, *(x[i] * x[j] for i in range(self.d) for j in range(i, self.d))])
        x = unit(x)
        length_sq = float(np.any(x != 0))
        if self.G is not None:
            x = self.G @ x
            length_sq = float(x @ x)
        if self.m == 0:
            return np.array([*x, self.b]), length_sq + self.b**2
        z = np.zeros(self.m)
        if known:
            z = np.sqrt(2 / self.m) * np.cos(self.omega @ raw / np.sqrt(self.sigma_sq) + self.beta)
        return np.array([*(x / np.sqrt(2)), *(z / np.sqrt(2)), self.b]), length_sq / 2 + float(z @ z) / 2 + self.b**2

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        known = self.sigma_sq > 0
        x, length_sq = self.features(x, known)
        own = np.array([float(self.w[k] @ x) for k in range(self.K)])
        s = np.array([(own[k] + float(self.y[k] @ x)) / 2 for k in range(self.K)]) if self.m else own
        s = among(s, eligible)
        width = self.eta * length_sq
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
        logged = Logged(best, best_of(s), 1.0, s)
        self.kept[id(logged)] = self.drift.resets[best], float(own[best]), known
        return logged

    def observe(self, x: FloatArray, logged: Logged) -> None:
        _, believed, known = self.kept[id(logged)]
        self._take_in(*self.features(x, known), logged.action, believed)
        if self.m and len(self.first) < 64:
            self.first.append(x)
            if len(self.first) == 64:
                pairs = [float((a - b) @ (a - b)) for i, a in enumerate(self.first) for b in self.first[:i]]
                self.sigma_sq = float(np.median(pairs)) or 1.0

    def _take_in(self, x: FloatArray, length_sq: float, a: int, believed: float) -> None:
        self.N[a] += length_sq
        self.A[a] += np.outer(x, x)
        self.w[a] += (believed - float(self.w[a] @ x)) * np.linalg.solve(self.A[a], x)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        epoch, believed, known = self.kept.pop(id(logged))
        (x, length_sq), a = self.features(x, known), logged.action
        if epoch != self.drift.resets[a]:
            believed = float(self.w[a] @ x)
            self._take_in(x, length_sq, a, believed)
        self.w[a] += (reward - believed) * np.linalg.solve(self.A[a], x)
        if self.m:
            lead = reward - float(self.y[a] @ x)
            self.B[a] += np.outer(x, x)
            self.y[a] += lead * np.linalg.solve(self.B[a], x)
        for k in self.drift.process(a, reward):
            self.A[k], self.w[k], self.N[k] = self.lam * np.eye(self.size), 0.0, 0.0
            self.B[k], self.y[k] = self.lam * np.eye(self.size), 0.0

    def weights(self) -> FloatArray:
        return np.asarray(self.w[:, : self.d])


class NaiveIgwLogistic:
    """The igw-logistic learner: one logistic regression per class, updated entry by entry."""

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

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        x = np.array([*unit(x), self.b])
        p = among(np.array([sigmoid(float(self.W[k] @ x)) for k in range(self.K)]), eligible)
        b = best_of(p)
        self.closest = min(self.closest, closest_of(p))
        gamma, m = self.scale * sqrt(self.t + 1), int(np.sum(p > -np.inf))
        pi = np.array([0.0 if k == b else 1 / (m + gamma * (p[b] - p[k])) for k in range(self.K)])
        pi[b] = 1 - pi.sum()
        action = sample(pi, u)
        return Logged(action, b, float(pi[action]), p)

    def observe(self, x: FloatArray, logged: Logged) -> None:
        self.t += 1

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
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
        for k in self.drift.process(a, reward):
            self.W[k], self.A[k] = 0.0, 1e-3

    def weights(self) -> FloatArray:
        return np.asarray(self.W[:, : self.d])


def mar(z: FloatArray) -> FloatArray:
    top, second = sorted(z, reverse=True)[:2]
    return np.array([z_k - (top if z_k < top else second) for z_k in z])


MASK = (1 << 64) - 1


def hashed(feature: int, column: int) -> float:
    """Return the hash of a feature and a column as a number between −½ and ½."""
    h = (feature * 64 + column + 0x9E3779B97F4A7C15) & MASK
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
    h ^= h >> 31
    return ((h >> 11) + 0.5) / (1 << 53) - 0.5


class NaiveWordVectors:
    """The word vectors of stack-igw. Only features with `has_row` have a vector. A refresh recomputes all vectors."""

    def __init__(self, K: int, d: int, m: int) -> None:
        self.K, self.m = K, m
        self.V, self.G = np.zeros((d, m)), np.zeros((d, m))
        self.has_row = np.zeros(d, dtype=bool)
        self.rows_max = 32_768
        self.on = False
        self.R, self.b = np.array([np.eye(m + 1) / 0.3] * K), np.zeros((K, m + 1))
        self.C = np.zeros((K, m))

    def embed(self, x: FloatArray) -> FloatArray:
        return np.asarray(self.V.T @ (x * self.has_row))

    def signals(self, x: FloatArray) -> FloatArray:
        """Return the signals c', mar(c'), t and mar(t) for each class, float64[4, K]."""
        if not self.on:
            return np.zeros((4, self.K))
        e = unit(self.embed(x))
        c = np.array([float(e @ unit(self.C[k])) for k in range(self.K)])
        t = np.array([float(self.b[k] @ [*e, 0.3]) for k in range(self.K)])
        return np.array([c, mar(c), t, mar(t)])

    def observe(self, x: FloatArray, df: FloatArray, n: int, C: FloatArray) -> None:
        """Add a decision's context x. The counts df and n already include this decision."""
        self.G += np.outer(x * self.has_row, self.embed(x))
        for i in np.flatnonzero((df == 3) & (x != 0)):
            if self.has_row.sum() < self.rows_max:
                self.has_row[i] = True
                if not self.on:
                    self.V[i] = [hashed(int(i), j) for j in range(self.m)]
        if any(n == 125 * 2**j for j in range(20)) and np.any(self.G != 0):
            self.refresh(n, C)

    def refresh(self, n: int, C: FloatArray) -> None:
        V = np.zeros(self.V.shape)
        gram = self.G.T @ self.G
        upper = np.zeros((self.m, self.m))
        for j in range(self.m):  # solve V R = G column by column
            for i in range(j):
                upper[i, j] = (gram[i, j] - upper[:i, i] @ upper[:i, j]) / upper[i, i] if upper[i, i] else 0.0
            pivot = gram[j, j] - float(upper[:j, j] @ upper[:j, j])
            if pivot > 1e-10 * gram[j, j]:
                upper[j, j] = sqrt(pivot)
                V[:, j] = (self.G[:, j] - V[:, :j] @ upper[:j, j]) / upper[j, j]
        if self.on:
            T = np.eye(self.m + 1)
            T[: self.m, : self.m] = V.T @ self.V
            for k in range(self.K):
                self.b[k] = T @ self.b[k]
                self.R[k] = T @ self.R[k] @ T.T + (np.eye(self.m + 1) - T @ T.T) / 0.3
        self.V, self.G = V, np.zeros(self.G.shape)
        self.on = self.on or n >= 500
        self.C = C @ self.V

    def update(self, x: FloatArray, a: int, reward: float) -> None:
        e = self.embed(x)
        if self.on:
            y = np.array([*unit(e), 0.3])
            z = self.R[a] @ y
            c = 1 + float(y @ z)
            self.b[a] += z * (reward - float(self.b[a] @ y)) / c
            self.R[a] -= np.outer(z, z) / c
        self.C[a] += reward * e

    def forget(self, k: int) -> None:
        self.R[k], self.b[k], self.C[k] = np.eye(self.m + 1) / 0.3, 0.0, 0.0


class NaiveStackIgw:
    """The stack-igw learner with dense vectors."""

    def __init__(self, K: int, d: int, *, vectors: int = 64, others: float = 0.3, drift: str = "off") -> None:
        self.others = others
        self.K, self.d = K, d
        self.W, self.A = np.zeros((K, d + 1)), np.full((K, d + 1), 3e-3)
        self.C, self.N = np.zeros((K, d)), np.zeros((K, d))
        self.M, self.m = np.zeros(d), 0
        self.df, self.n = np.zeros(d), 0
        self.nr, self.h, self.w, self.pend = np.zeros(K), np.zeros(K), np.zeros(K), np.zeros(K)
        self.words = NaiveWordVectors(K, d, vectors) if vectors else None
        self.v = np.array([-log(K - 1), 5, 10, 0, -1.5, -1, 0, 0.5, 1.5, *([0] * 4 if vectors else [])])
        self.P = 10.0 * np.eye(self.v.size)
        self.settled = 0
        self.drift = Drift(K, drift)
        self.closest = np.inf

    def scaled(self, x: FloatArray, n: int) -> FloatArray:
        x = unit(x)
        return unit(np.array([x[i] * log(1.2 * (n + 2) / (self.df[i] + 1)) for i in range(self.d)]))

    def signals(self, x: FloatArray) -> FloatArray:
        """Return the signals φ of a scaled x, float64[K, 9], or float64[K, 13] with word vectors."""
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
        return phi if self.words is None else np.hstack((phi, self.words.signals(x).T))

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        phi = self.signals(self.scaled(x, self.n))
        p = among(np.array([sigmoid(float(self.v @ phi[k])) for k in range(self.K)]), eligible)
        q = np.array([p[k] * (1 + 2.5 * self.K / (1 + self.h[k] + 0.1 * self.pend[k])) for k in range(self.K)])
        b = best_of(q)
        self.closest = min(self.closest, closest_of(p), closest_of(q))
        gamma, m = 300 * sqrt(self.settled + 1), int(np.sum(p > -np.inf))
        pi = np.array([0.0 if k == b else 1 / (m + gamma * (q[b] - q[k])) for k in range(self.K)])
        pi[b] = 1 - pi.sum()
        action = sample(pi, u)
        return Logged(action, best_of(p), float(pi[action]), p)

    def observe(self, x: FloatArray, logged: Logged) -> None:
        x = self.scaled(x, self.n)
        self.M += x
        self.m += 1
        self.pend[logged.action] += 1
        self.df += x != 0
        self.n += 1
        if self.words is not None:
            self.words.observe(x, self.df, self.n, self.C)

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        a = logged.action
        self.pend[a] -= 1
        x = self.scaled(x, self.n - 1)
        phi = self.signals(x)[a]
        rho = sigmoid(float(self.v @ phi))
        H = max(rho * (1 - rho), 0.01)
        z = self.P @ phi
        c = float(phi @ z)
        self.v = self.v + z * (reward - rho) / (1 + H * c)
        self.P = self.P - H * np.outer(z, z) / (1 + H * c)
        if self.words is not None:
            self.words.update(x, a, reward)
        self.nr[a] += 2 * reward * float(self.C[a] @ x) + reward**2
        self.C[a] += reward * x
        self.h[a] += reward
        self.N[a] += (1 - reward) * x
        self.w[a] += 1 - reward
        biased = np.array([*x, 0.1])
        p = [sigmoid(float(self.W[k] @ biased)) for k in range(self.K)]
        for k in range(self.K):
            e = p[k] - reward if k == a else self.others * p[k] * reward
            if abs(e) >= 1e-4:
                self.A[k] += (e * biased) ** 2
                self.W[k] -= 2 * e * biased / np.sqrt(self.A[k])
        self.settled += 1
        for k in self.drift.process(a, reward):
            self.W[k], self.A[k], self.C[k], self.N[k] = 0.0, 3e-3, 0.0, 0.0
            self.nr[k] = self.h[k] = self.w[k] = 0.0
            if self.words is not None:
                self.words.forget(k)

    def weights(self) -> FloatArray:
        raise NotImplementedError
