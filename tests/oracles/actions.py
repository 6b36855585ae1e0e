"""The joint-ucb and igw-log learners in plain numpy."""

from typing import NamedTuple

import numpy as np

from stream.wire.records import FloatArray
from tests.oracles.late_bits import best_of, sigmoid, unit
from tests.oracles.logged import Eligible, Logged, among, sample


class Offer(NamedTuple):
    """The context and the actions in a dense x."""

    context: FloatArray
    ids: FloatArray  # float64[K]
    actions: FloatArray  # float64[K, a]


def offer_of(x: FloatArray, K: int, c: int) -> Offer:
    blocks = x[c:].reshape(K, -1)
    return Offer(x[:c], blocks[:, 0], blocks[:, 1:])


def median_of_squares(rows: FloatArray) -> float:
    n = len(rows)
    return float(np.median([np.sum((rows[i] - rows[j]) ** 2) for i in range(n) for j in range(i)]))


def deviations(rows: FloatArray) -> FloatArray:
    found = rows.std(0)
    return np.where(found > 0.0, found, 1.0)


def first_of(values: FloatArray) -> int:
    """Return the first place whose value is, up to rounding, the largest."""
    return int(np.argmax(values >= values.max() - 1e-12 * abs(values.max())))


class Observation(NamedTuple):
    """An observation in a copy of the regression."""

    id: float
    z: FloatArray
    y: float


class NaiveJointUcb:
    """The joint-ucb learner. Every decision solves the ridge regression over z and one intercept per id."""

    def __init__(
        self,
        K: int,
        c: int,
        a: int,
        omega: FloatArray,
        nu: FloatArray,
        phases: FloatArray,
        *,
        p: int = 20,
        bias: float = 0.3,
        lam: float = 1.0,
        lam_id: float = 10.0,
        eta: float = 0.1,
        shortlist: int = 4,
    ) -> None:
        self.K, self.c, self.a, self.p, self.b = K, c, a, p, bias
        self.omega, self.nu, self.phases = omega, nu, phases
        self.lam, self.lam_id, self.eta, self.M = lam, lam_id, eta, shortlist
        self.contexts: list[FloatArray] = []
        self.offered: dict[float, FloatArray] = {}
        self.is_sampled = False
        self.copies: tuple[dict[int, Observation], dict[int, Observation]] = {}, {}  # believed, settled
        self.kept: dict[int, Observation] = {}  # by id() of the decision, as in `copies`
        self.decisions: list[Logged] = []  # all decisions, so that each id() stays unique

    def z(self, context: FloatArray, action: FloatArray) -> FloatArray:
        large = max(self.c, self.a) > self.p
        waves, u, v = np.zeros(self.phases.size), unit(context), unit(action)
        if self.is_sampled:
            angles = self.omega @ context / np.sqrt(self.sx) + self.nu @ action / np.sqrt(self.sa) + self.phases
            waves = np.sqrt(2 / max(1, angles.size)) * np.cos(angles)
            u, v = unit((context - self.mx) / self.dx), unit((action - self.ma) / self.da)
            u = unit(self.Gx.T @ u) if self.c > self.p else u
            v = unit(self.Ga.T @ v) if self.a > self.p else v
        elif large:
            return np.zeros((min(self.c, self.p) + 1) * (min(self.a, self.p) + 1) + waves.size)
        return np.concatenate((np.outer([*u, self.b], [*v, self.b]).ravel(), waves))

    def solve(self, copy: int, ids: list[float], D: int) -> tuple[FloatArray, FloatArray]:
        """Return the inverse of the ridge regression's matrix, and its solution, for z and these ids."""
        A = np.diag([self.lam] * D + [self.lam_id] * len(ids))
        b = np.zeros(D + len(ids))
        for key, z, y in self.copies[copy].values():
            row = self.row(z, key, ids)
            A += np.outer(row, row)
            b += y * row
        inverse = np.linalg.inv(A)
        return inverse, inverse @ b

    def row(self, z: FloatArray, key: float, ids: list[float]) -> FloatArray:
        return np.array([*z, *(float(key == other) for other in ids)])

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        offer = offer_of(x, self.K, self.c)
        ids = sorted({*offer.ids, *(one.id for copy in self.copies for one in copy.values())})
        Z = [self.z(offer.context, action) for action in offer.actions]
        D = Z[0].size
        (inverse, believed), (_, settled) = self.solve(0, ids, D), self.solve(1, ids, D)
        rows = [self.row(z, key, ids) for z, key in zip(Z, offer.ids, strict=True)]
        own = np.array([row @ believed for row in rows])
        scores = among((own + [row @ settled for row in rows]) / 2, eligible)
        # In P and e, the intercepts are eliminated: e = z − G, and 1/A is the variance of the id's intercept alone.
        of_id = np.array(
            [1 / (self.lam_id + sum(one.id == key for one in self.copies[0].values())) for key in offer.ids]
        )
        G = [per * sum((one.z for one in self.copies[0].values() if one.id == key), np.zeros(D))
             for per, key in zip(of_id, offer.ids, strict=True)]  # fmt: skip
        P = inverse[:D, :D]
        E = np.array(Z) - G
        rough = scores + np.sqrt(self.eta * (E**2 @ np.diag(P) + of_id))
        bounds = scores + np.sqrt(self.eta * (np.einsum("ki,ij,kj->k", E, P, E) + of_id))
        listed: list[int] = []
        for _ in range(min(self.M, int(np.sum(scores > -np.inf)))):
            listed.append(first_of(rough))
            rough[listed[-1]] = -np.inf
        action = first_of(among(bounds, listed))
        logged = Logged(action, best_of(scores), 1.0, scores)
        self.decisions.append(logged)
        self.kept[id(logged)] = Observation(float(offer.ids[action]), Z[action], float(own[action]))
        return logged

    def observe(self, x: FloatArray, logged: Logged) -> None:
        self.copies[0][id(logged)] = self.kept[id(logged)]
        if len(self.contexts) == 64:
            return
        offer = offer_of(x, self.K, self.c)
        self.contexts.append(offer.context)
        for k in np.flatnonzero(logged.scores > -np.inf):
            if len(self.offered) < 64:
                self.offered.setdefault(float(offer.ids[k]), offer.actions[k])
        if len(self.contexts) == 64:
            X, A = np.array(self.contexts), np.array(list(self.offered.values()))
            self.sx, self.sa, self.is_sampled = median_of_squares(X), median_of_squares(A), True
            self.mx, self.dx, self.ma, self.da = X.mean(0), deviations(X), A.mean(0), deviations(A)
            self.Gx = np.linalg.svd(np.array([unit(x) for x in (X - self.mx) / self.dx]))[2][: self.p].T
            self.Ga = np.linalg.svd(np.array([unit(a) for a in (A - self.ma) / self.da]))[2][: self.p].T

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        one = self.kept[id(logged)]._replace(y=reward)
        self.copies[0][id(logged)] = self.copies[1][id(logged)] = one

    def weights(self) -> FloatArray:
        raise NotImplementedError


class NaiveIgwLog:
    """The igw-log learner, with one weight per pair of features instead of hashed weights."""

    def __init__(self, K: int, c: int, *, scale: float = 100.0, step: float = 0.5, bias: float = 0.2) -> None:
        self.K, self.c, self.scale, self.step, self.b = K, c, scale, step, bias
        self.w: dict[tuple[int, str], float] = {}
        self.A: dict[tuple[int, str], float] = {}
        self.t = 0

    def pairs(self, x: FloatArray, k: int) -> dict[tuple[int, str], float]:
        offer = offer_of(x, self.K, self.c)
        left = dict(enumerate([*unit(offer.context), self.b]))
        right = {str(j): value for j, value in enumerate([*unit(offer.actions[k]), self.b])}
        right[f"id {offer.ids[k]}"] = 0.5
        return {(i, j): left[i] * right[j] for i in left for j in right}

    def p(self, x: FloatArray, k: int) -> float:
        return sigmoid(sum(self.w.get(pair, 0.0) * value for pair, value in self.pairs(x, k).items()))

    def predict(self, x: FloatArray, u: float, eligible: Eligible = None) -> Logged:
        scores = among(np.array([self.p(x, k) for k in range(self.K)]), eligible)
        n, best = int(np.sum(scores > -np.inf)), best_of(scores)
        pi = np.zeros(self.K)
        for k in range(self.K):
            if k != best and scores[k] > -np.inf:
                pi[k] = 1 / (n + self.scale * np.sqrt(self.t + 1) * (scores[best] - scores[k]))
        pi[best] = 1 - pi.sum()
        action = sample(pi, u)
        return Logged(action, best, float(pi[action]), scores)

    def observe(self, x: FloatArray, logged: Logged) -> None:
        self.t += 1

    def update(self, x: FloatArray, logged: Logged, reward: float, v: float) -> None:
        error = self.p(x, logged.action) - reward
        for pair, value in self.pairs(x, logged.action).items():
            g = error * value
            self.A[pair] = self.A.get(pair, 1e-3) + g * g
            self.w[pair] = self.w.get(pair, 0.0) - self.step * g / np.sqrt(self.A[pair])

    def weights(self) -> FloatArray:
        raise NotImplementedError
