"""stack-igw: logistic regressions and centroids, stacked into one probability of being right; for sparse data."""

from collections.abc import Mapping
from math import inf, log, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import DRIFT, INVERSE_GAP, Cost, Extent, FromLogs, Parameter, WatchingLearner
from stream.learners.kernels import (
    ALARM_OF_ALL,
    ALARM_OF_CLASS,
    DRIFTS,
    argmax,
    bounded,
    check_decision,
    check_event,
    compiled,
    logistic,
    sample_from,
    unit,
    watch,
)
from stream.learners.registry import register
from stream.wire.events import FloatArray, IndexArray

A_START = 3e-3
"""A's start, see igw-logistic; here x has passed the weighting by rarity, and larger steps at the start do harm."""

PRIOR = np.array([0.0, 5.0, 10.0, 0.0, -1.5, -1.0, 0.0, 0.5, 1.5])
"""v at the start, but for its first entry: what is known beforehand of how far the evidence can be trusted. Without it
20 Newsgroups costs three points."""

PRIOR_VARIANCE = 10.0
SIGNALS = PRIOR.size

SCORE_CLIP = 8.0
"""Beyond it a logistic regression's score says no more than that it is sure."""

CURVATURE_MIN = 0.01
"""The least ρ(1 − ρ): where the stack is sure, a bit still counts for something."""

GRADIENT_MIN = 1e-4
"""Smaller errors of a class are left alone."""

RARITY = 1.2
"""A feature that every x has keeps the weight ln 1.2."""

WAITING_SHARE = 0.1
"""What a decision that waits counts for in the bonus of its class, a hit counting 1."""

# Places in `rest`: the parameters, and what is counted; behind them stand the head and the counts, see `parts`.
SCALE, STEP, OTHERS, BONUS, BIAS, DRIFT_KIND, MEAN_COUNT, DECIDED, SETTLED = range(9)
PARTS = 9

# Rows of `counts`, whose last column is that of all classes together.
NORM_SQ, HITS, MISSES, WAITING = range(4)
DETECTORS, ALARMS = slice(4, 7), 7
COUNTS = 8

# A feature's row: how many x had it, ln(1 + that), the sum of them, and then the classes' C, N, W and A, K of each.
FREQUENCY, RARITY_LOG, MEAN, CLASSES = range(4)


@compiled
def parts(rest: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The head [1 + 9, 9], v and then P, and the counts [8, K + 1].

    All that is small is one array: each that a kernel gets costs 0.1 µs.
    """
    counts = PARTS + (1 + SIGNALS) * SIGNALS
    return (
        rest[PARTS:counts].reshape((1 + SIGNALS, SIGNALS)),
        rest[counts:].reshape((COUNTS, (rest.size - counts) // COUNTS)),
    )


@compiled
def weighted(indices: IndexArray, values: FloatArray, Z: FloatArray, decided: float) -> FloatArray:
    """Scale x to unit norm, each entry then by its rarity among the decisions so far, and to unit norm again.

    The logarithm of a feature's count changes with the count, not with every x that has it.
    """
    x = unit(values)
    total_log = log(RARITY * (decided + 2.0))
    for j in range(indices.size):
        x[j] *= total_log - Z[indices[j], RARITY_LOG]
    return unit(x)


@compiled
def lead(z: FloatArray, out: FloatArray) -> None:
    """z_k less the largest of the others."""
    largest = second = -inf
    for k in range(z.size):
        if z[k] > largest:
            second = largest
            largest = z[k]
        elif z[k] > second:
            second = z[k]
    for k in range(z.size):
        out[k] = z[k] - (largest if z[k] < largest else second)


@compiled
def signals(
    indices: IndexArray,
    x: FloatArray,
    Z: FloatArray,
    counts: FloatArray,
    rest: FloatArray,
    phi: FloatArray,
) -> None:
    """Fill in φ [K, 9]: what speaks for each class."""
    K = phi.shape[0]
    c, near, s = np.zeros(K), np.zeros(K), np.empty(K)
    last = Z[Z.shape[0] - 1]
    for k in range(K):
        s[k] = last[CLASSES + 2 * K + k] * rest[BIAS]
    mean = 0.0
    for j in range(indices.size):
        row = Z[indices[j]]
        value = x[j]
        mean += row[MEAN] * value
        of_right = row[CLASSES : CLASSES + K]
        of_wrong = row[CLASSES + K : CLASSES + 2 * K]
        w = row[CLASSES + 2 * K : CLASSES + 3 * K]
        for k in range(K):
            c[k] += of_right[k] * value
            near[k] += of_wrong[k] * value
            s[k] += w[k] * value
    mean /= max(rest[MEAN_COUNT], 1.0)
    for k in range(K):
        c[k] = c[k] / sqrt(counts[NORM_SQ, k]) if counts[NORM_SQ, k] > 0.0 else 0.0
        s[k] = min(max(bounded(s[k]), -SCORE_CLIP), SCORE_CLIP)
    lead_c, lead_s = np.empty(K), np.empty(K)
    lead(c, lead_c)
    lead(s, lead_s)
    for k in range(K):
        hits = counts[HITS, k]
        g = 1.0 / sqrt(1.0 + hits)
        excess = max(0.0, near[k] - counts[MISSES, k] * mean)
        phi[k, 0] = 1.0
        phi[k, 1] = c[k]
        phi[k, 2] = lead_c[k]
        phi[k, 3] = 1.0 if hits == 0.0 else 0.0
        phi[k, 4] = log(1.0 + excess)
        phi[k, 5] = g
        phi[k, 6] = g * c[k]
        phi[k, 7] = s[k] / 4.0
        phi[k, 8] = lead_s[k] / 4.0


@compiled
def believed(head: FloatArray, phi: FloatArray) -> float:
    """σ(v·φ); v is the first row of the head."""
    total = 0.0
    for i in range(phi.size):
        total += head[0, i] * phi[i]
    return logistic(total)


@compiled
def predict(
    indices: IndexArray,
    values: FloatArray,
    u: float,
    scores: FloatArray,
    Z: FloatArray,
    rest: FloatArray,
) -> tuple[int, int, float]:
    """Sample by inverse-gap weighting of the probabilities times a bonus; the scores are the probabilities."""
    check_event(indices, values, Z.shape[0] - 1)
    head, counts = parts(rest)
    K = counts.shape[1] - 1
    x = weighted(indices, values, Z, rest[DECIDED])
    phi = np.empty((K, SIGNALS))
    signals(indices, x, Z, counts, rest, phi)
    q = np.empty(K)
    for k in range(K):
        scores[k] = believed(head, phi[k])
        known = 1.0 + counts[HITS, k] + WAITING_SHARE * counts[WAITING, k]
        q[k] = scores[k] * (1.0 + rest[BONUS] * K / known)
    best = argmax(q)
    gamma = rest[SCALE] * sqrt(rest[SETTLED] + 1.0)
    played = np.empty(K)
    left = 1.0
    for k in range(K):
        if k != best:
            played[k] = 1.0 / (K + gamma * (q[best] - q[k]))
            left -= played[k]
    played[best] = left
    action = sample_from(played, u)
    scores[K:] = phi[action]
    return action, argmax(scores[:K]), played[action]


@compiled
def log_of(
    indices: IndexArray, values: FloatArray, action: int, scores: FloatArray, Z: FloatArray, rest: FloatArray
) -> None:
    """What an update will need to know of an action: its φ."""
    check_event(indices, values, Z.shape[0] - 1)
    _, counts = parts(rest)
    K = counts.shape[1] - 1
    phi = np.empty((K, SIGNALS))
    signals(indices, weighted(indices, values, Z, rest[DECIDED]), Z, counts, rest, phi)
    scores[K:] = phi[action]


@compiled
def observe(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    Z: FloatArray,
    rest: FloatArray,
) -> None:
    """Add x to the mean of all, and count the decision, its features, and that it waits."""
    _, counts = parts(rest)
    K = counts.shape[1] - 1
    check_decision(indices, values, action, scores[:K], K, Z.shape[0] - 1)
    x = weighted(indices, values, Z, rest[DECIDED])
    for j in range(indices.size):
        row = Z[indices[j]]
        row[MEAN] += x[j]
        if x[j] != 0.0:
            row[FREQUENCY] += 1.0
            row[RARITY_LOG] = log(row[FREQUENCY] + 1.0)
    rest[MEAN_COUNT] += 1.0
    rest[DECIDED] += 1.0
    counts[WAITING, action] += 1.0


@compiled
def update_stack(head: FloatArray, phi: FloatArray, reward: int) -> None:
    """A step of the shared logistic regression, by its running covariance, the rows of the head behind v."""
    rho = believed(head, phi)
    curvature = max(rho * (1.0 - rho), CURVATURE_MIN)
    z = np.zeros(SIGNALS)
    c = 0.0
    for i in range(SIGNALS):
        for j in range(SIGNALS):
            z[i] += head[1 + i, j] * phi[j]
        c += phi[i] * z[i]
    step = (reward - rho) / (1.0 + curvature * c)
    root = sqrt(curvature / (1.0 + curvature * c))
    for i in range(SIGNALS):
        head[0, i] += step * z[i]
        for j in range(SIGNALS):
            head[1 + i, j] -= (root * z[i]) * (root * z[j])  # the same product for the mirror image


@compiled
def descend(w: FloatArray, a: FloatArray, e: FloatArray, value: float, step: float) -> None:
    """A += (e x_i)², W −= step · e x_i/√A, for a feature.

    numpy's division has no branch for a divisor of 0, so that the loop becomes vector instructions.
    """
    for k in range(e.size):
        gradient = e[k] * value
        squares = a[k] + gradient * gradient
        a[k] = squares
        w[k] -= np.divide(step * gradient, sqrt(squares))


@compiled
def reset(first: int, stop: int, Z: FloatArray, counts: FloatArray) -> None:
    """Forget what was learned of the classes from `first` up to `stop`; not what is known of features, nor v."""
    K = counts.shape[1] - 1
    for i in range(Z.shape[0]):
        for k in range(first, stop):
            Z[i, CLASSES + k] = 0.0
            Z[i, CLASSES + K + k] = 0.0
            Z[i, CLASSES + 2 * K + k] = 0.0
            Z[i, CLASSES + 3 * K + k] = A_START
    counts[:WAITING, first:stop] = 0.0


@compiled
def update(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    reward: int,
    v: float,
    label: int,
    Z: FloatArray,
    rest: FloatArray,
) -> bool:
    """The stack, the centroid of the action, and the regressions take in the bit."""
    head, counts = parts(rest)
    K, d = counts.shape[1] - 1, Z.shape[0] - 1
    check_decision(indices, values, action, scores[:K], K, d)
    counts[WAITING, action] -= 1.0
    update_stack(head, scores[K:], reward)
    x = weighted(indices, values, Z, rest[DECIDED] - 1.0)
    e = np.empty(K)
    for k in range(K):
        e[k] = Z[d, CLASSES + 2 * K + k] * rest[BIAS]
    overlap = 0.0
    for j in range(indices.size):
        row = Z[indices[j]]
        w = row[CLASSES + 2 * K : CLASSES + 3 * K]
        for k in range(K):
            e[k] += w[k] * x[j]
        overlap += row[CLASSES + action] * x[j]
    if reward == 1:
        counts[NORM_SQ, action] += 2.0 * overlap + 1.0
    counts[HITS if reward == 1 else MISSES, action] += 1.0
    centroid = CLASSES + action + (0 if reward == 1 else K)
    for j in range(indices.size):
        Z[indices[j], centroid] += x[j]
    largest = 0.0
    for k in range(K):
        p = logistic(bounded(e[k]))
        if k == action:
            e[k] = p - reward
        else:
            e[k] = rest[OTHERS] * p if reward == 1 else 0.0
        if abs(e[k]) < GRADIENT_MIN:
            e[k] = 0.0
        largest = max(largest, abs(e[k]))
    if largest > 0.0:
        for j in range(indices.size + 1):
            row = Z[d] if j == indices.size else Z[indices[j]]
            value = rest[BIAS] if j == indices.size else x[j]
            w, a = row[CLASSES + 2 * K : CLASSES + 3 * K], row[CLASSES + 3 * K : CLASSES + 4 * K]
            if reward == 1:
                descend(w, a, e, value, rest[STEP])
            else:  # the other classes' errors are 0
                own = slice(action, action + 1)
                descend(w[own], a[own], e[own], value, rest[STEP])
    rest[SETTLED] += 1.0
    alarm = watch(counts[DETECTORS], counts[ALARMS], action, reward, int(rest[DRIFT_KIND]))
    if alarm == ALARM_OF_ALL:
        reset(0, K, Z, counts)
    elif alarm == ALARM_OF_CLASS:
        reset(action, action + 1, Z, counts)
    return True


@register
class StackIgw(WatchingLearner):
    """Logistic regressions and centroids of right and wrong examples, stacked, and played by inverse-gap weighting.

    Ours; inverse-gap weighting after Foster, Rakhlin, "Beyond UCB: optimal and efficient contextual bandits with
    regression oracles", ICML 2020; stacking after Wolpert, "Stacked generalization", Neural Networks 5, 1992.

        x ← x/‖x‖;  x_i ← x_i ln(1.2 (n+2)/(df_i+1));  x ← x/‖x‖;  for W a constant entry `bias` behind it
        decide    μ = Mᵀx/max(m, 1);  c_k = C_kᵀx/√nr_k (0 at the start);  E_k = max(0, N_kᵀx − w_k μ)
                  s_k = W_kᵀx, within ±8;  g_k = 1/√(1 + h_k);  mar(z)_k = z_k − max_{j≠k} z_j
                  φ_k = (1, c_k, mar(c)_k, [h_k = 0], ln(1 + E_k), g_k, g_k c_k, s_k/4, mar(s)_k/4);  p_k = σ(vᵀφ_k)
                  q_k = p_k (1 + bonus K/(1 + h_k + pend_k/10));  b = argmax q;  γ = scale √(settled + 1)
                  π_k = 1/(K + γ (q_b − q_k)) for k ≠ b, π_b the rest;  logs φ of the action
        observe   M += x;  m += 1;  pend_a += 1;  df_i += 1 where x_i ≠ 0;  n += 1
        bit r     pend_a −= 1;  ρ = σ(vᵀφ_a);  H = max(ρ(1−ρ), .01);  z = Pφ_a;  c = φ_aᵀz
                  v += z (r − ρ)/(1 + Hc);  P −= H zzᵀ/(1 + Hc)
                  right: nr_a += 2C_aᵀx + 1, C_a += x, h_a += 1;  wrong: N_a += x, w_a += 1
                  p = σ(Wx);  right: e_a = p_a − 1, e_k = others p_k;  wrong: e_a = p_a alone
                  where |e_k| ≥ 1e-4:  A_k += (e_k x)²;  W_k −= step · e_k x/√A_k;  settled += 1

    Symbols: n decisions, df how many x had a feature; M the sum of all x, m of them; C and N [K, d] the sums of the x
    that were right and wrong as a class, h and w [K] of them, nr = ‖C_k‖² (`norm_sq`, `hits`, `misses`); pend
    (`waiting`) decisions without their bit; `df_log` ln(df+1); W and A [K, d+1]; v and P [9] and [9, 9] of the stack,
    shared by all classes; `totals` m, n and settled bits; π_a the propensity; scores p.

    The sums are of the x as it was weighted when it came: n and df go on. Of the decision that a bit belongs to, n does
    not count itself when x is weighted again, df does.

    Assumes sparse x, such as words. With very many classes the discovery of each costs K²: no gain is known there.

    Under delay an update uses what is current, and of the decision the action and φ_a. The order of the bits matters,
    so that an update cannot be taken back.

    Drift: a lasting fall of the reward (`drift`) sets W, A, C, N, nr, h and w of every class, or of one, to their
    start. `alarms` counts the resets, by class and at last of all. A learner that is itself unsteady may raise one on a
    stationary stream: one in six orders of a review set of 7 classes and 13,000 rows, with bits 1,000 decisions late.

    Departures from the papers: the oracle is a stack, what is compared are its probabilities times a bonus, and γ is a
    schedule that follows from no bound.

    >>> from stream.learners import create
    >>> learner = create("stack-igw", n_classes=3, n_features=2)
    >>> x = np.array([3.0, 4.0])
    >>> decision = learner.predict(x, u=0.5)
    >>> decision.action, round(decision.propensity, 3), decision.logged.round(3).tolist()
    (1, 0.333, [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    >>> learner.observe(x, decision)
    >>> learner.update(x, decision, reward=1)
    True
    >>> learner.predict(x, u=0.5)[:2]
    (1, 1)
    """

    name: ClassVar[str] = "stack-igw"
    summary: ClassVar[str] = "logistic regressions and centroids, stacked; sparse data, such as words"
    best_for: ClassVar[str] = "sparse data, such as words; bits that come late"
    paper: ClassVar[str] = "after Foster, Rakhlin 2020"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        *INVERSE_GAP,
        Parameter("bonus", 2.5, "of classes with few right answers", low=0.0, high=1e6),
        DRIFT,
    )
    from_logs: ClassVar[FromLogs] = FromLogs.NOTHING
    one_right_class: ClassVar[bool] = False
    observed: ClassVar[Mapping[str, Extent]] = {
        **dict.fromkeys(("M", "df", "df_log"), Extent.FEATURES),
        "waiting": Extent.ACTION,
        "totals": Extent.WHOLE,
    }
    instead: ClassVar[str] = "igw-logistic, whose state is half of it, or fewer features"
    logged_size = SIGNALS
    predict_kernel = staticmethod(predict)
    update_kernel = staticmethod(update)
    log_kernel = staticmethod(log_of)
    observe_kernel = staticmethod(observe)

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        scale: float,
        step: float,
        others: float,
        bonus: float,
        bias: float,
        drift: str,
    ) -> None:
        K, d = n_classes, n_features
        # By feature, so that an event touches few and whole rows; the constant has a row, too.
        Z = np.zeros((d + 1, CLASSES + 4 * K))
        C, N, W, A = (Z[:, CLASSES + part * K : CLASSES + (part + 1) * K].T for part in range(4))
        A[:] = A_START
        rest = np.zeros(PARTS + (1 + SIGNALS) * SIGNALS + COUNTS * (K + 1))
        rest[:MEAN_COUNT] = (scale, step, others, bonus, bias, DRIFTS.index(drift))
        head = rest[PARTS : PARTS + (1 + SIGNALS) * SIGNALS].reshape(1 + SIGNALS, SIGNALS)
        counts = rest[PARTS + (1 + SIGNALS) * SIGNALS :].reshape(COUNTS, K + 1)
        head[0] = PRIOR
        head[0, 0] = -log(K - 1)
        head[1:] = PRIOR_VARIANCE * np.eye(SIGNALS)
        arrays: dict[str, NDArray[Any]] = {
            "W": W,
            "A": A,
            "C": C[:, :d],
            "N": N[:, :d],
            "M": Z[:d, MEAN],
            "df": Z[:d, FREQUENCY],
            "df_log": Z[:d, RARITY_LOG],
            "norm_sq": counts[NORM_SQ, :K],
            "hits": counts[HITS, :K],
            "misses": counts[MISSES, :K],
            "waiting": counts[WAITING, :K],
            "totals": rest[MEAN_COUNT:PARTS],
            "v": head[0],
            "P": head[1:],
            "detectors": counts[DETECTORS],
            "alarms": counts[ALARMS],
        }
        super().__init__(n_classes, n_features, arrays, (Z, rest))

    def weights(self) -> FloatArray:
        """Not linear in x.

        Raises:
            NotImplementedError: always; the parts are in `state()`.
        """
        raise NotImplementedError(f"{self.name}: several models are stacked, so there are no linear weights")

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """K·nnz products four times, when right K·nnz steps with a root and a division; three logarithms per entry."""
        return Cost(
            flops_per_event=n_classes * (nnz + 1) * 15 + 60 * nnz + 400,
            bytes_per_event=8 * n_classes * (nnz + 1) * 8,
            state_bytes=8 * ((n_features + 1) * (CLASSES + 4 * n_classes) + 8 * (n_classes + 1) + 3 + 90),
        )
