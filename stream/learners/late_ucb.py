"""late-ucb: a ridge regression of the bit per class, whose bounds move with a decision and not with its bit."""

import zlib
from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import DRIFT, Cost, KernelLearner, Kernels, Parameter, ParameterError, State, register, sparse
from stream.learners.kernels import (
    ALARM_OF_ALL,
    ALARM_OF_CLASS,
    DRIFTS,
    argmax,
    bounded,
    check_event,
    compiled,
    linear_scores,
    norm_of,
    sample_epsilon_greedy,
    subtract_outer,
    unit,
    usable,
    watch,
)
from stream.wire.events import Decision, Features, FloatArray, IndexArray

SIZE_MAX = 512
"""d' of an expansion: beyond it the pairs cost more than they bring, and memory in the square of them."""

PROJECTION_SEED = 20_260_101
"""The projection is the same in every run: it is no part of what is learned."""

DENSE_SHARE = 3
"""From one non-zero in three entries on, whole rows of P are faster than the entries that count, picked out."""

SMALL = 128
"""Up to this size a P lies so near that to leave out its lower half costs more than to read it, and to change it at
every decision less than to keep changes apart."""

BLOCK = 32
"""Changes of a larger P that are kept apart before they are taken off it in one pass, which is bound by memory."""

PLAIN, QUADRATIC, PROJECTED = range(3)  # how x becomes the regression's features

# Places at the beginning of the model.
LAM, ETA, SHORTLIST, BIAS, KIND, FLOOR, DRIFT_KIND, CLASSES, SIZE, FEATURES = range(10)
SETTINGS = 10

# Rows of `counts`, whose last column is that of all classes together.
WEIGHT, DETECTORS, ALARMS, PENDING = 0, slice(1, 4), 4, 5
COUNTS = 6


@compiled
def block_of(size: int) -> int:
    """B, how many changes of a P of this size are kept apart: its last rows, V, of which `pending` count."""
    return BLOCK if size > SMALL else 0


@compiled
def counts_of(model: FloatArray) -> FloatArray:
    """Counts [6, K + 1]: they stand behind the settings, then come W, the P and V, and Gᵀ.

    All is one array, because each that a kernel gets costs 0.1 µs; to give a part its shape costs half of that.
    """
    columns = int(model[CLASSES]) + 1
    return model[SETTINGS : SETTINGS + COUNTS * columns].reshape((COUNTS, columns))


@compiled
def weights_of(model: FloatArray) -> FloatArray:
    """W [K, d']."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    start = SETTINGS + COUNTS * (K + 1)
    return model[start : start + K * size].reshape((K, size))


@compiled
def weights_of_class(model: FloatArray, k: int) -> FloatArray:
    """w_k."""
    size = int(model[SIZE])
    start = SETTINGS + COUNTS * (int(model[CLASSES]) + 1) + k * size
    return model[start : start + size]


@compiled
def inverses_of(model: FloatArray) -> FloatArray:
    """P and V of every class [K, d' + B, d']."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows = size + block_of(size)
    start = SETTINGS + COUNTS * (K + 1) + K * size
    return model[start : start + K * rows * size].reshape((K, rows, size))


@compiled
def inverse_of_class(model: FloatArray, k: int) -> FloatArray:
    """P and V of a class [d' + B, d']."""
    K, size = int(model[CLASSES]), int(model[SIZE])
    rows = size + block_of(size)
    start = SETTINGS + COUNTS * (K + 1) + (K + k * rows) * size
    return model[start : start + rows * size].reshape((rows, size))


@compiled
def projection_of(model: FloatArray) -> FloatArray:
    """Gᵀ [d, m], at the end of the model."""
    d, m = int(model[FEATURES]), int(model[SIZE]) - 1
    return model[model.size - d * m :].reshape((d, m))


@compiled
def expanded(indices: IndexArray, values: FloatArray, d: int) -> tuple[IndexArray, FloatArray]:
    """The entries of x, and behind them all products x_i x_j with i ≤ j."""
    n = indices.size
    size = n + n * (n + 1) // 2
    places, entries = np.empty(size, np.int32), np.empty(size)
    place = n
    for a in range(n):
        i = np.int64(indices[a])
        places[a], entries[a] = i, values[a]
        first = d + i * d - i * (i - 1) // 2  # the place of x_i x_i
        for b in range(a, n):
            places[place] = first + indices[b] - i
            entries[place] = values[a] * values[b]
            place += 1
    return places, entries


@compiled
def projected(indices: IndexArray, x: FloatArray, G: FloatArray, z: FloatArray) -> None:
    """Set z to G x, by the rows of Gᵀ, four a pass."""
    z[:] = 0.0
    a = 0
    while a + 3 < x.size:
        r0, r1, r2, r3 = G[indices[a]], G[indices[a + 1]], G[indices[a + 2]], G[indices[a + 3]]
        x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
        for j in range(z.size):
            z[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        a += 4
    while a < x.size:
        r0 = G[indices[a]]
        for j in range(z.size):
            z[j] += x[a] * r0[j]
        a += 1


@compiled
def with_bias(
    indices: IndexArray, values: FloatArray, logged: FloatArray, model: FloatArray
) -> tuple[IndexArray, FloatArray]:
    """The regression's features: expanded, of unit norm, and a constant entry at the end; projected ones are logged."""
    kind, size = model[KIND], int(model[SIZE])
    if kind == PROJECTED:
        dense, every = np.empty(size), np.empty(size, np.int32)
        dense[: size - 1] = logged[logged.size - size + 1 :]
        dense[size - 1] = model[BIAS]
        for j in range(size):
            every[j] = j
        return every, dense
    if kind == QUADRATIC:
        indices, values = expanded(indices, values, int(model[FEATURES]))
    n = indices.size
    places, entries = np.empty(n + 1, np.int32), np.empty(n + 1)
    norm = norm_of(values)
    scaled = 0.0 < norm < inf  # else all zeros, as `unit` makes them
    for a in range(n):
        places[a] = indices[a]
        entries[a] = values[a] / norm if scaled else 0.0
    places[n] = size - 1
    entries[n] = model[BIAS]
    return places, entries


@compiled
def squared_length(x: FloatArray, model: FloatArray) -> float:
    """‖x‖², which is the constant's and 1 or 0, without rounding: classes with as many decisions must tie exactly."""
    total = 0.0
    for a in range(x.size - 1):
        total += x[a] * x[a]
    if model[KIND] != PROJECTED:
        total = 1.0 if total > 0.0 else 0.0
    return float(total + model[BIAS] * model[BIAS])


@compiled
def dots_of(V: FloatArray, places: IndexArray, x: FloatArray) -> FloatArray:
    """V x, four rows a pass, so that their sums do not wait for each other."""
    dots = np.zeros(V.shape[0])
    m = 0
    while m + 3 < dots.size:
        r0, r1, r2, r3 = V[m], V[m + 1], V[m + 2], V[m + 3]
        s0 = s1 = s2 = s3 = 0.0
        for a in range(x.size):
            i = places[a]
            s0 += r0[i] * x[a]
            s1 += r1[i] * x[a]
            s2 += r2[i] * x[a]
            s3 += r3[i] * x[a]
        dots[m], dots[m + 1], dots[m + 2], dots[m + 3] = s0, s1, s2, s3
        m += 4
    while m < dots.size:
        r0 = V[m]
        for a in range(x.size):
            dots[m] += r0[places[a]] * x[a]
        m += 1
    return dots


@compiled
def times(P: FloatArray, pending: int, places: IndexArray, x: FloatArray) -> FloatArray:
    """(P − VᵀV) x for a symmetric P, by its rows, four a pass; V has the `pending` rows behind P."""
    z = np.empty(P.shape[1])
    times_into(P, pending, places, x, z)
    return z


@compiled
def times_into(P: FloatArray, pending: int, places: IndexArray, x: FloatArray, z: FloatArray) -> None:
    """The same, into an array that is there."""
    size = P.shape[1]
    z[:] = 0.0
    a = 0
    while a + 3 < x.size:
        r0, r1, r2, r3 = P[places[a]], P[places[a + 1]], P[places[a + 2]], P[places[a + 3]]
        x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
        for j in range(z.size):
            z[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        a += 4
    while a < x.size:
        r0 = P[places[a]]
        for j in range(z.size):
            z[j] += x[a] * r0[j]
        a += 1
    if pending > 0:
        dots = dots_of(P[size : size + pending], places, x)
        for m in range(pending):
            r0 = P[size + m]
            for j in range(z.size):
                z[j] -= dots[m] * r0[j]


@compiled
def variance(P: FloatArray, pending: int, places: IndexArray, x: FloatArray, z: FloatArray) -> float:
    """xᵀ(P − VᵀV)x of a symmetric P, where it pays by what is above its diagonal; 0 for what rounding leaves below.

    `z` is room for d' numbers.
    """
    n, size = x.size, P.shape[1]
    diagonal = above = 0.0
    if pending > 0:
        for dot in dots_of(P[size : size + pending], places, x):
            diagonal -= dot * dot
    if DENSE_SHARE * n <= size:
        for a in range(n):
            row = P[places[a]]
            diagonal += row[places[a]] * x[a] * x[a]
            s0 = s1 = s2 = s3 = 0.0  # sums that do not wait for each other
            b = a + 1
            while b + 3 < n:
                s0 += row[places[b]] * x[b]
                s1 += row[places[b + 1]] * x[b + 1]
                s2 += row[places[b + 2]] * x[b + 2]
                s3 += row[places[b + 3]] * x[b + 3]
                b += 4
            while b < n:
                s0 += row[places[b]] * x[b]
                b += 1
            above += ((s0 + s1) + (s2 + s3)) * x[a]
        return max(diagonal + 2.0 * above, 0.0)
    if size <= SMALL:
        times_into(P, 0, places, x, z)
        for a in range(n):
            diagonal += z[places[a]] * x[a]
        return max(diagonal, 0.0)
    z[:] = 0.0  # z_j = Σ x_a P_aj over the a above j: whole pieces of rows, which become vector instructions
    a = 0
    while a < n:
        group = min(4, n - a)
        for r in range(a, a + group):
            row = P[places[r]]
            diagonal += row[places[r]] * x[r] * x[r]
            for c in range(r + 1, a + group):
                above += row[places[c]] * x[r] * x[c]
        first = places[a + group - 1] + 1
        out = z[first:]
        if group == 4:
            r0, r1 = P[places[a], first:], P[places[a + 1], first:]
            r2, r3 = P[places[a + 2], first:], P[places[a + 3], first:]
            x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
            for j in range(out.size):
                out[j] += (x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])
        else:
            for r in range(a, a + group):
                r0 = P[places[r], first:]
                for j in range(out.size):
                    out[j] += x[r] * r0[j]
        a += group
    for a in range(n):
        above += z[places[a]] * x[a]
    return max(diagonal + 2.0 * above, 0.0)


@compiled
def highest_bound(places: IndexArray, x: FloatArray, scores: FloatArray, counts: FloatArray, model: FloatArray) -> int:
    """The class of a shortlist with the highest s_k + √(η xᵀP_k x); ties go to the lowest class."""
    P = inverses_of(model)
    K, size = P.shape[0], P.shape[2]
    z = np.empty(size)
    length_sq = squared_length(x, model)
    rough = np.empty(K)
    for k in range(K):
        rough[k] = scores[k] + sqrt(model[ETA] * length_sq / (model[LAM] + counts[WEIGHT, k] / size))
    action = -1
    highest = 0.0
    for _ in range(min(int(model[SHORTLIST]), K)):
        k = argmax(rough)
        rough[k] = -inf
        bound = scores[k] + sqrt(model[ETA] * variance(P[k], int(counts[PENDING, k]), places, x, z))
        if action < 0 or bound > highest or (bound == highest and k < action):
            action, highest = k, bound
    return action


@compiled
def score_of(places: IndexArray, x: FloatArray, w: FloatArray) -> float:
    """w·x, with the bits that `linear_scores` gives it."""
    total = 0.0
    for a in range(x.size):
        total += w[places[a]] * x[a]
    return bounded(total)


@compiled
def move(w: FloatArray, scale: float, z: FloatArray) -> None:
    """Move w by scale · z."""
    for j in range(z.size):
        w[j] += scale * z[j]


@compiled
def take_in(P: FloatArray, waiting: FloatArray, places: IndexArray, x: FloatArray) -> FloatArray:
    """P −= zzᵀ/(1 + xᵀz), z = P x, at once or as a row of V; gives the new P x.

    An entry is made of the same product as its mirror image, so that P stays symmetric to the bit.

    Args:
        P: a class's P, and V behind it.
        waiting: float64[1], how many rows of V count.
        places: where x has entries.
        x: these.
    """
    size, pending = P.shape[1], int(waiting[0])
    z = times(P, pending, places, x)
    inner = 0.0
    for a in range(x.size):
        inner += x[a] * z[places[a]]
    scale = 1.0 / sqrt(1.0 + max(inner, 0.0))
    for j in range(z.size):
        z[j] *= scale
    if P.shape[0] > size:
        P[size + pending] = z
        waiting[0] += 1.0
        if pending + 1 == P.shape[0] - size:
            subtract_outer(P[:size], P[size:])
            waiting[0] = 0.0
    else:
        for i in range(size):
            row = P[i]
            left = z[i]
            for j in range(size):
                row[j] -= left * z[j]
    for j in range(z.size):
        z[j] *= scale
    return z


@compiled
def epoch(counts: FloatArray, k: int) -> float:
    """How often a class was reset."""
    return float(counts[ALARMS, k] + counts[ALARMS, counts.shape[1] - 1])


@compiled
def predict(
    indices: IndexArray, values: FloatArray, u: float, scores: FloatArray, model: FloatArray
) -> tuple[int, int, float]:
    """Play the highest bound of the shortlist, or with probability `floor` any class."""
    check_event(indices, values, int(model[FEATURES]))
    counts, W = counts_of(model), weights_of(model)
    K = W.shape[0]
    logged = scores[K:]
    if model[KIND] == PROJECTED:
        G = projection_of(model)
        projected(indices, unit(values), G, logged[logged.size - G.shape[1] :])
    places, x = with_bias(indices, values, logged, model)
    linear_scores(places, x, W, scores)
    best = highest_bound(places, x, scores[:K], counts, model)
    action, propensity = sample_epsilon_greedy(best, K, model[FLOOR], u)
    if model[DRIFT_KIND] != 0.0:
        logged[0] = epoch(counts, action)
    return action, argmax(scores[:K]), propensity


@compiled
def observe(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    greedy: int,
    propensity: float,
    scores: FloatArray,
    model: FloatArray,
) -> None:
    """Count x for the action's covariance, with the decision's own score as its target until the bit comes."""
    K = int(model[CLASSES])
    usable(indices, values, action, propensity, scores[:K], K, int(model[FEATURES]))
    counts, w = counts_of(model), weights_of_class(model, action)
    places, x = with_bias(indices, values, scores[K:], model)
    counts[WEIGHT, action] += squared_length(x, model)
    lead = scores[action] - score_of(places, x, w)
    z = take_in(inverse_of_class(model, action), counts[PENDING, action : action + 1], places, x)
    if lead != 0.0:
        move(w, lead, z)


@compiled
def reset(k: int, model: FloatArray) -> None:
    """Forget what was learned of a class."""
    counts, P = counts_of(model), inverse_of_class(model, k)
    weights_of_class(model, k)[:] = 0.0
    P[:] = 0.0
    for j in range(P.shape[1]):
        P[j, j] = 1.0 / model[LAM]
    counts[WEIGHT, k] = counts[PENDING, k] = 0.0


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
    model: FloatArray,
) -> bool:
    """Replace the target that was believed by the bit."""
    K = int(model[CLASSES])
    usable(indices, values, action, propensity, scores[:K], K, int(model[FEATURES]))  # only the form of x matters
    counts, w, P = counts_of(model), weights_of_class(model, action), inverse_of_class(model, action)
    logged = scores[K:]
    places, x = with_bias(indices, values, logged, model)
    if model[DRIFT_KIND] != 0.0 and logged[0] != epoch(counts, action):
        counts[WEIGHT, action] += squared_length(x, model)  # its class was reset since: P and w do not know it any more
        lead = reward - score_of(places, x, w)
        move(w, lead, take_in(P, counts[PENDING, action : action + 1], places, x))
    else:
        move(w, reward - scores[action], times(P, int(counts[PENDING, action]), places, x))
    alarm = watch(counts[DETECTORS], counts[ALARMS], action, reward, int(model[DRIFT_KIND]))
    if alarm == ALARM_OF_ALL:
        for k in range(K):
            reset(k, model)
    elif alarm == ALARM_OF_CLASS:
        reset(action, model)
    return True


@compiled
def retract(
    indices: IndexArray,
    values: FloatArray,
    action: int,
    propensity: float,
    scores: FloatArray,
    change: int,
    model: FloatArray,
) -> bool:
    """w_a += change · P_a x, where change is the real reward less the assumed one."""
    K = int(model[CLASSES])
    usable(indices, values, action, propensity, scores[:K], K, int(model[FEATURES]))
    if change == 0:
        return False
    places, x = with_bias(indices, values, scores[K:], model)
    pending = int(counts_of(model)[PENDING, action])
    z = times(inverse_of_class(model, action), pending, places, x)
    move(weights_of_class(model, action), float(change), z)
    return True


@register
class LateUcb(KernelLearner):
    """Ridge regression of the bit per class, played by upper confidence bounds that know what is under way.

    After Desautels, Krause, Burdick, "Parallelizing exploration-exploitation tradeoffs in Gaussian process bandit
    optimization", JMLR 15, 2014, whose hallucinated observations this takes to one linear model per class (Li, Chu,
    Langford, Schapire, WWW 2010); late bits as in Vernade et al., ICML 2020.

        x ← x/‖x‖, and a constant entry b behind it: d' = d + 1 features
        decide    s_k = w_kᵀx;  rough_k = s_k + √(η‖x‖²/(λ + N_k/d'));  the M classes with the largest are the shortlist
                  ŷ = argmax over it of s_k + √(η xᵀP_k x);  with probability f any class instead
        observe   N_ŷ += ‖x‖²;  P_ŷ −= zzᵀ/(1 + xᵀz), z = P_ŷ x;  w_ŷ += (s_ŷ − w_ŷᵀx) P_ŷ x, P_ŷ the new one
        bit r     w_ŷ += (r − s_ŷ) P_ŷ x, P_ŷ the current one

    Symbols: w_k weights, W [K, d'], the constant's last; P_k inverse covariances [K, d', d'], I/λ at the start, above
    128 features P − VᵀV with V [K, 32, d'] the changes not yet taken off P, `pending` of them for each class; N_k
    `N`[K]; s_ŷ the decision's own score; η `eta`; λ `lam`, where 0 means .03, or .1 above 200 features and for
    projections; M `shortlist`; b `bias`; f `floor`, for those who want their log judged off-policy.

    `expand`=quadratic puts all products x_i x_j, i ≤ j, beside x, before it is scaled: up to 30 features. `project`=m
    takes x of unit norm to m dimensions by a fixed Gaussian matrix of variance 1/m: for dense data of many features.

    Until its bit comes a decision's own score stands in for it, while its place in the covariance is taken at once: the
    bounds narrow with every decision, not with every bit, so that a long delay does not repeat one class.

    When all bits are in, w_k = A_k⁻¹ Σ r x with A_k = λI + Σ xxᵀ over what was played, whatever the order of the bits.

    Drift: a lasting fall of the reward (`drift`) resets every class, or one: P_k = I/λ, w_k = 0, N_k = 0. What a
    decision logs is how often its class had been reset; a bit whose class was reset since is observed anew with it, by
    the current w_ŷᵀx. `alarms` counts the resets, by class and at last of all.

    Retraction (drift=off): w_ŷ += (r_new − r_old) P_ŷ x leaves, to rounding and in any order, the model that had the
    real bit at that place. With drift an alarm cannot be taken back, and the learner is not retractable.

    Departures from the papers: bounds of constant width √η; the shortlist, whose rough bounds take no matrix; one noise
    and one ridge for all classes; the constant entry.

    >>> from stream.learners import create
    >>> learner = create("late-ucb", n_classes=3, n_features=2)
    >>> x = np.array([3.0, 4.0])
    >>> first = learner.predict(x, u=0.5)
    >>> learner.observe(x, first)
    >>> learner.predict(x, u=0.5).action  # no bit has come, and yet the bounds of the first class are narrower
    1
    >>> learner.update(x, first, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[0.536, 0.714], [0.0, 0.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "late-ucb"
    summary: ClassVar[str] = "ridge regression of the bit, bounds that know what is under way; dense data, d to 500"
    paper: ClassVar[str] = "after Desautels, Krause, Burdick 2014"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("lam", 0.0, "ridge; 0: .03, or .1 above 200 features and for projections", low=0.0, high=1e9),
        Parameter("eta", 0.1, "squared width of the bounds", low=0.0, high=1e9),
        Parameter("shortlist", 4, "classes whose bounds are computed", low=1, high=1e9),
        Parameter("bias", 0.3, "the constant entry behind x of unit norm", low=0.0, high=1e9),
        Parameter("expand", "none", "products of features beside them", choices=("none", "quadratic")),
        Parameter("project", 0, "dimensions that x is projected to; 0: none", low=0, high=100_000),
        Parameter("floor", 0.0, "share of decisions played uniformly", low=0.0, high=1.0),
        DRIFT,
    )
    retractable: ClassVar[bool] = True
    observed: ClassVar[frozenset[str]] = frozenset(
        {"P", "V", "pending", "N", "W"}
    )  # W when the model has moved since the decision
    instead: ClassVar[str] = "stack-igw for sparse data, or project=256 for dense data"

    def __new__(cls, n_classes: int, n_features: int, **parameters: Any) -> "LateUcb":
        """Make the class that fits the options: what is retractable is told by the class."""
        return object.__new__(LateUcb if parameters["drift"] == "off" else DriftingLateUcb)

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        *,
        lam: float,
        eta: float,
        shortlist: int,
        bias: float,
        expand: str,
        project: int,
        floor: float,
        drift: str,
    ) -> None:
        size = features_of(n_features, expand, project) + 1
        kind = PROJECTED if project else QUADRATIC if expand == "quadratic" else PLAIN
        self.logged_size = project + (0 if drift == "off" else 1)
        self.is_linear = kind == PLAIN
        if lam == 0.0:
            lam = 0.1 if project or size - 1 > 200 else 0.03
        shapes = [
            (COUNTS, n_classes + 1),
            (n_classes, size),
            (n_classes, size + block_of(size), size),
            (n_features, project),
        ]
        # Not np.zeros: it leaves the pages to be made small, one by one, and reading across them costs more.
        model = np.full(SETTINGS + sum(int(np.prod(shape)) for shape in shapes), 0.0)
        model[:SETTINGS] = (
            lam, eta, shortlist, bias, kind, floor, DRIFTS.index(drift), n_classes, size, n_features,
        )  # fmt: skip
        starts = np.cumsum([SETTINGS, *(int(np.prod(shape)) for shape in shapes)])
        counts, W, P, G = (
            model[start : start + int(np.prod(shape))].reshape(shape)
            for start, shape in zip(starts[:-1], shapes, strict=True)
        )
        P[:, np.arange(size), np.arange(size)] = 1.0 / lam
        self.fingerprint = 0
        if project:
            G[:] = projection(n_features, project, PROJECTION_SEED)
            self.fingerprint = zlib.crc32(G.tobytes())
        arrays: dict[str, NDArray[Any]] = {
            "W": W,
            "P": P[:, :size],
            "V": P[:, size:],
            "pending": counts[PENDING, :n_classes],
            "N": counts[WEIGHT, :n_classes],
            "detectors": counts[DETECTORS],
            "alarms": counts[ALARMS],
        }
        super().__init__(n_classes, n_features, arrays, (model,), Kernels(predict, update, observe))

    def state(self) -> State:
        """The state, as copies, and a checksum of the projection, which follows from the parameters."""
        return {**super().state(), "fingerprint": self.fingerprint} if self.fingerprint else super().state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `state()` of the same learner, sizes and parameters.

        Raises:
            ValueError: it belongs to another projection.
        """
        if int(state.get("fingerprint", 0)) != self.fingerprint:
            raise ValueError(
                f"loading {self.name}: the state belongs to another projection (checksum {state.get('fingerprint')}, "
                f"here {self.fingerprint}); use the version of numpy that it was made with"
            )
        super().load(state)

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: int, reward: int, v: float = 0.0
    ) -> bool:
        """Move w_action by the difference of the bits."""
        if not self.retractable:
            return super().retract(x, decision, assumed_reward, reward, v)
        indices, values = sparse(x, self.n_features)
        change = int(reward) - int(assumed_reward)
        action, _, propensity, scores = self._figures(decision)
        return bool(retract(indices, values, action, propensity, scores, change, *self.model))

    def weights(self) -> FloatArray:
        """The weights of x of unit norm, float64[K, d], as a copy; without the constant's.

        Raises:
            NotImplementedError: x is expanded or projected.
        """
        if not self.is_linear:
            raise NotImplementedError(f"{self.name}: the scores are not linear in x; the weights are in state()")
        weights: FloatArray = self.arrays["W"][:, : self.n_features].copy()
        return weights

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """The shortlist's nnz²/2 entries each, nnz rows twice, and a pass over one class's P."""
        project, quadratic = int(parameters["project"]), parameters["expand"] == "quadratic"
        size = features_of(n_features, str(parameters["expand"]), project) + 1
        entries = project + 1 if project else (nnz + nnz * (nnz + 1) // 2 if quadratic else nnz) + 1
        listed = min(int(parameters["shortlist"]), n_classes)
        projected = 3 * project * nnz
        touched = n_classes * entries + listed * entries * entries // 2 + 2 * entries * size + size * size + projected
        return Cost(
            flops_per_event=2 * touched,
            bytes_per_event=8 * touched,
            state_bytes=8
            * (n_classes * size * (size + block_of(size) + 1) + COUNTS * (n_classes + 1) + project * n_features),
        )


class DriftingLateUcb(LateUcb):
    """late-ucb that may be reset, which cannot be taken back."""

    retractable: ClassVar[bool] = False


def features_of(n_features: int, expand: str, project: int) -> int:
    """How many features the regression has beside the constant.

    Raises:
        ParameterError: an expansion that is too large, or that is to be projected.
    """
    if expand == "none":
        return project or n_features
    if project:
        raise ParameterError("late-ucb: expand=quadratic and project exclude each other; leave one of them out")
    size = n_features + n_features * (n_features + 1) // 2
    if size + 1 > SIZE_MAX:
        raise ParameterError(
            f"late-ucb: expand=quadratic makes {size:,} features of {n_features}, more than the {SIZE_MAX - 1} "
            "allowed; use expand=none, or project=256 for dense data, or stack-igw for sparse data"
        )
    return size


def projection(n_features: int, dimensions: int, seed: int) -> FloatArray:
    """Gᵀ: independent N(0, 1/m) entries, float64[d, m]."""
    generator = np.random.Generator(np.random.PCG64(seed))
    G: FloatArray = generator.standard_normal((n_features, dimensions)) / sqrt(dimensions)
    return G
