"""joint-ucb: one ridge regression over contexts and actions with features, with an intercept per action id."""

from collections.abc import Iterator, Mapping
from math import inf, pi, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.actions.blocks import action_features
from stream.learners.actions.principal_directions_kernels import principal_directions
from stream.learners.base import Cost, Extent, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import (
    Decided,
    Event,
    Kernels,
    argmax,
    bounded,
    check_decision,
    check_event,
    kernel,
    limit,
    norm_of,
    subroutine,
    unit,
)
from stream.learners.late_bits.random_features_kernels import RATIO_MAX, SAMPLE, cosines, median_of_distances
from stream.learners.late_bits.symmetric_kernels import add_observation, aligned, block_of, padded, times, variance
from stream.learners.registry import register
from stream.wire.records import NOT_ELIGIBLE, Decision, Features, FloatArray

BELIEVED, SETTLED = range(2)
"""Indices of the two copies of the regression: one of all decisions, and one of settled rewards only."""

WAVES_SEED = 20_260_103
"""Fixed seed of the random frequencies, which are part of the stored state."""

NOWHERE = -1
"""The row of an id that the model does not contain."""

CONSTANT = 1e-12
"""A column is constant, up to rounding, if its standard deviation is a smaller share of its mean."""

TIE = 1e-12
"""Bounds whose relative difference is smaller differ only by rounding. All bounds of a new model are equal."""

CHANGING = (
    "P", "pending", "beta", "counts", "ids", "used", "A", "th", "G", "contexts", "actions", "bandwidths", "scales_x",
    "scales_a", "Gx", "Ga",
)  # fmt: skip
"""The parts of the state that a decision can change."""

PER_ID = ("ids", "used", "A", "th", "G")
"""The parts of the state with a row per id."""


class Model(NamedTuple):
    """The regression's two copies, the ids, and the sample of the first contexts and actions; see `JointUcb`."""

    P: FloatArray  # [2, D + B, s], P and the changes not yet applied to it; see `symmetric_kernels`
    pending: FloatArray  # [2], the number of these changes
    beta: FloatArray  # [2, D]
    counts: FloatArray  # [4], the number of ids, of decisions, of sampled contexts, and of sampled ids
    ids: FloatArray  # [I]
    used: FloatArray  # [I], the last decision for an id
    A: FloatArray  # [I, 2]
    th: FloatArray  # [I, 2]
    G: FloatArray  # [I, 2, D]
    contexts: FloatArray  # [64, c], the first contexts; zeros when the sample is complete
    actions: FloatArray  # [64, 1 + a], the first distinct ids and their features
    bandwidths: FloatArray  # [2], sx and sa; 0 until the sample is complete
    scales_x: FloatArray  # [2, c], mean and standard deviation of each of the context's features
    scales_a: FloatArray  # [2, a], the same for actions
    Gx: FloatArray  # [c, p], principal directions of the contexts; unused if c ≤ p
    Ga: FloatArray  # [a, p], principal directions of the actions; unused if a ≤ p
    omega: FloatArray  # [m, c]
    nu: FloatArray  # [m, a]
    phases: FloatArray  # [m]
    bias: float
    lam_id: float
    eta: float
    shortlist: int


@subroutine
def dense(x: Features, n_features: int) -> FloatArray:
    """Return a checked x as float64[d]."""
    row = np.zeros(n_features)
    for j in range(x.indices.size):
        row[x.indices[j]] = x.values[j]
    return row


@subroutine
def standardised(raw: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the unit vector of (raw − mean)/standard deviation."""
    row = np.empty(raw.size)
    for i in range(raw.size):
        row[i] = bounded((raw[i] - scales[0, i]) / scales[1, i])
    return unit(row)


@subroutine
def reduced(u: FloatArray, directions: FloatArray, bias: float) -> FloatArray:
    """Return a unit vector in at most p dimensions, followed by the constant."""
    d, p = directions.shape
    if d > p:
        low = np.zeros(p)
        for i in range(d):
            if u[i] != 0.0:
                for j in range(p):
                    low[j] += directions[i, j] * u[i]
        u = unit(low)
    extended = np.empty(u.size + 1)
    for i in range(u.size):
        extended[i] = u[i]
    extended[u.size] = bias
    return extended


@subroutine
def angles_of(raw: FloatArray, bandwidth: float, frequencies: FloatArray) -> FloatArray:
    """Return ω_jᵀx/√s, float64[m], for a context or an action."""
    u = unit(raw)
    ratio = min(norm_of(raw) / sqrt(bandwidth), RATIO_MAX)
    angles = np.zeros(frequencies.shape[0])
    for j in range(angles.size):
        total = 0.0
        for i in range(u.size):
            total += frequencies[j, i] * u[i]
        angles[j] = ratio * total
    return angles


class Context(NamedTuple):
    """The context's part of z."""

    extended: FloatArray  # [min(c, p) + 1], (u, b)
    angles: FloatArray  # [m]; zeros if the sample was not complete at the decision
    is_sampled: bool  # whether the sample was complete at the decision


@subroutine
def context_of(row: FloatArray, is_sampled: bool, model: Model) -> Context:
    """Return the context's part of z."""
    raw = row[: model.Gx.shape[0]]
    angles = angles_of(raw, model.bandwidths[0], model.omega) if is_sampled else np.zeros(model.phases.size)
    u = standardised(raw, model.scales_x) if is_sampled else unit(raw)
    return Context(reduced(u, model.Gx, model.bias), angles, is_sampled)


@subroutine
def write_features(context: Context, action: FloatArray, model: Model, z: FloatArray) -> None:
    """Write z(x, a) = ((u, b)⊗(v, b), √(2/m) cos(ω·x/√sx + ν·a/√sa + φ)), float64[D]."""
    (c, p), a = model.Gx.shape, model.Ga.shape[0]
    z[:] = 0.0
    if not context.is_sampled and max(c, a) > p:
        return
    v = reduced(standardised(action, model.scales_a) if context.is_sampled else unit(action), model.Ga, model.bias)
    u = context.extended
    place = 0
    for i in range(u.size):
        for j in range(v.size):
            z[place] = u[i] * v[j]
            place += 1
    if context.is_sampled and model.phases.size > 0:
        waves = z[place:]
        angles = angles_of(action, model.bandwidths[1], model.nu)
        for j in range(angles.size):
            waves[j] = context.angles[j] + angles[j] + model.phases[j]
        cosines(waves, sqrt(2.0 / angles.size))


@subroutine
def block_start(place: int, model: Model) -> int:
    """Return the index in x of a place's id."""
    return int(model.Gx.shape[0] + place * (1 + model.Ga.shape[0]))


@subroutine
def row_of(key: float, model: Model) -> int:
    """Return an id's row, or NOWHERE."""
    for row in range(int(model.counts[0])):
        if model.ids[row] == key:
            return row
    return NOWHERE


@subroutine
def inserted(key: float, model: Model) -> int:
    """Return an id's row. A new id replaces the least recently used one if there is no free row."""
    row = row_of(key, model)
    if row == NOWHERE:
        row = int(model.counts[0])
        if row < model.ids.size:
            model.counts[0] += 1.0
        else:
            row = 0
            for other in range(1, model.ids.size):
                if model.used[other] < model.used[row]:
                    row = other
        model.ids[row] = key
        model.A[row] = model.lam_id
        model.th[row] = 0.0
        model.G[row] = 0.0
    model.used[row] = model.counts[1]
    return row


@subroutine
def score_of(z: FloatArray, row: int, copy: int, model: Model, e: FloatArray) -> float:
    """Write e = z − G_i, and return eᵀβ + θ_i."""
    beta = model.beta[copy]
    total = 0.0
    if row == NOWHERE:
        for j in range(z.size):
            e[j] = z[j]
            total += z[j] * beta[j]
        return total
    G = model.G[row, copy]
    for j in range(z.size):
        e[j] = z[j] - G[j]
        total += e[j] * beta[j]
    return float(total + model.th[row, copy])


@subroutine
def diagonal_of(P: FloatArray, pending: int, size: int) -> FloatArray:
    """Return the diagonal of P − VᵀV."""
    diagonal = np.empty(size)
    for j in range(size):
        diagonal[j] = P[j, j]
    for m in range(pending):
        for j in range(size):
            diagonal[j] -= P[size + m, j] * P[size + m, j]
    return diagonal


@subroutine
def all_of(e: FloatArray) -> Features:
    """Return a dense vector as features."""
    return Features(np.arange(e.size).astype(np.int32), e)


@subroutine
def highest_of(values: FloatArray) -> int:
    """Return the lowest place whose value is, up to rounding, the largest."""
    top = values[argmax(values)]
    place = 0
    while values[place] < top - TIE * abs(top):
        place += 1
    return place


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Play the action with the highest bound among those with the highest rough bounds."""
    check_event(event.x, block_start(event.scores.size - 2, model))
    K, D, width = event.scores.size - 2, model.beta.shape[1], model.nu.shape[1]
    scores = event.scores[:K]
    row, is_sampled = dense(event.x, block_start(K, model)), model.bandwidths[0] > 0.0
    context = context_of(row, is_sampled, model)
    P, pending = model.P[BELIEVED], int(model.pending[BELIEVED])
    diagonal = diagonal_of(P, pending, D)
    places = event.eligible
    z, e = np.empty(D), np.empty((places.size, D))
    believed, rough, per_id = np.empty(places.size), np.empty(places.size), np.empty(places.size)
    for n in range(places.size):
        start = block_start(places[n], model)
        write_features(context, row[start + 1 : start + 1 + width], model, z)
        at = row_of(row[start], model)
        settled = score_of(z, at, SETTLED, model, e[n])
        believed[n] = score_of(z, at, BELIEVED, model, e[n])
        score = bounded(0.5 * (settled + believed[n]))
        per_id[n] = 1.0 / (model.lam_id if at == NOWHERE else model.A[at, BELIEVED])
        spread = 0.0
        for j in range(D):
            spread += e[n, j] * e[n, j] * diagonal[j]
        scores[places[n]] = score
        rough[n] = score + sqrt(model.eta * (max(spread, 0.0) + per_id[n]))
    limit(scores, places)
    bounds, scratch = np.full(places.size, -inf), np.empty(P.shape[1])
    for _ in range(min(model.shortlist, places.size)):
        n = highest_of(rough)
        rough[n] = -inf
        spread = variance(P, pending, all_of(e[n]), scratch)
        bounds[n] = scores[places[n]] + sqrt(model.eta * (spread + per_id[n]))
    chosen = highest_of(bounds)
    event.scores[K] = 1.0 if is_sampled else 0.0
    event.scores[K + 1] = bounded(believed[chosen])
    return int(np.int64(places[chosen])), argmax(scores), 1.0


@subroutine
def features_of(event: Decided, model: Model) -> tuple[float, FloatArray]:
    """Return the id of the played action, and z as it was at the decision."""
    K = event.scores.size - 2
    row, start = dense(event.x, block_start(K, model)), block_start(event.action, model)
    z = np.empty(model.beta.shape[1])
    context = context_of(row, event.scores[K] != 0.0, model)
    write_features(context, row[start + 1 : start + 1 + model.nu.shape[1]], model, z)
    return row[start], z


@kernel
def log_of(event: Decided, model: Model) -> None:
    """Log whether the sample is complete, and the believed score of the played action."""
    K = event.scores.size - 2
    check_event(event.x, block_start(K, model))
    event.scores[K] = 1.0 if model.bandwidths[0] > 0.0 else 0.0
    key, z = features_of(event, model)
    event.scores[K + 1] = bounded(score_of(z, row_of(key, model), BELIEVED, model, np.empty(z.size)))


@subroutine
def add(z: FloatArray, row: int, copy: int, y: float, model: Model) -> None:
    """Add an observation with the target y to a copy of the regression."""
    e, beta = np.empty(z.size), model.beta[copy]
    lead = y - score_of(z, row, copy, model, e)
    A = model.A[row, copy]
    root = sqrt(1.0 + 1.0 / A)
    scaled = np.empty(z.size)
    for j in range(z.size):
        scaled[j] = e[j] / root
    gain = add_observation(model.P[copy], model.pending[copy : copy + 1], all_of(scaled))
    G = model.G[row, copy]
    theta = model.th[row, copy]
    for j in range(z.size):
        beta[j] += gain[j] / root * lead
        G[j] += e[j] / (A + 1.0)
    model.A[row, copy] = A + 1.0
    model.th[row, copy] = theta + (y - theta) / (A + 1.0)


@subroutine
def shift(z: FloatArray, row: int, copy: int, change: float, model: Model) -> None:
    """Add `change` to the target of an earlier observation in a copy of the regression."""
    e, beta = np.empty(z.size), model.beta[copy]
    score_of(z, row, copy, model, e)
    product = times(model.P[copy], int(model.pending[copy]), all_of(e))
    for j in range(z.size):
        beta[j] += change * product[j]
    if row != NOWHERE:
        model.th[row, copy] += change / model.A[row, copy]


@subroutine
def add_to_sample(event: Decided, model: Model) -> None:
    """Store one of the first contexts and its actions' features. After the last context, compute the bandwidths.

    A block without an id belongs to an action that was not stored with the decision.
    """
    K, c, width = event.scores.size - 2, model.Gx.shape[0], 1 + model.nu.shape[1]
    row, counts, actions = dense(event.x, block_start(K, model)), model.counts, model.actions
    n = int(counts[2])
    for i in range(c):
        model.contexts[n, i] = row[i]
    counts[2] += 1.0
    for k in range(K):
        if event.scores[k] == NOT_ELIGIBLE or counts[3] == SAMPLE:
            continue
        block = row[block_start(k, model) : block_start(k + 1, model)]
        is_new = block[0] != 0.0
        for i in range(int(counts[3])):
            is_new = is_new and actions[i, 0] != block[0]
        if is_new:
            for i in range(width):
                actions[int(counts[3]), i] = block[i]
            counts[3] += 1.0
    if counts[2] < SAMPLE:
        return
    offered = int(counts[3])
    model.bandwidths[0] = median_of_distances(model.contexts)
    model.bandwidths[1] = median_of_distances(actions[:offered, 1:].copy()) if offered > 1 else 1.0
    store_scales(model.contexts, model.scales_x)
    store_scales(actions[:offered, 1:], model.scales_a)
    if c > model.Gx.shape[1]:
        principal_directions(all_standardised(model.contexts, model.scales_x), SAMPLE, model.Gx)
    if width - 1 > model.Ga.shape[1]:
        principal_directions(all_standardised(actions[:, 1:].copy(), model.scales_a), offered, model.Ga)
    model.contexts[:] = 0.0
    actions[:] = 0.0


@subroutine
def store_scales(rows: FloatArray, scales: FloatArray) -> None:
    """Store the mean and the standard deviation of each column. A constant column has the standard deviation 1."""
    n = rows.shape[0]
    for j in range(rows.shape[1]):
        mean, square = 0.0, 0.0
        for i in range(n):
            mean += rows[i, j] / n
        for i in range(n):
            square += (rows[i, j] - mean) ** 2 / n
        deviation = sqrt(square)
        scales[0, j] = bounded(mean)
        scales[1, j] = deviation if CONSTANT * abs(mean) < deviation < inf else 1.0


@subroutine
def all_standardised(rows: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the unit vectors of standardised rows."""
    result = np.empty_like(rows)
    for i in range(rows.shape[0]):
        result[i] = standardised(rows[i], scales)
    return result


@subroutine
def check(event: Decided, model: Model) -> None:
    """Raise ValueError if an event or its decision does not match the model."""
    K = event.scores.size - 2
    check_decision(event, K, block_start(K, model), 2)


@kernel
def observe(event: Decided, model: Model) -> None:
    """Add the played action to the believed copy, with the decision's own score as the target."""
    check(event, model)
    key, z = features_of(event, model)
    model.counts[1] += 1.0
    add(z, inserted(key, model), BELIEVED, event.scores[event.scores.size - 1], model)
    if model.counts[2] < SAMPLE:
        add_to_sample(event, model)


@kernel
def update(event: Decided, model: Model) -> bool:
    """Replace the believed target by the reward, and add the reward to the settled copy."""
    check(event, model)
    key, z = features_of(event, model)
    row = inserted(key, model)
    shift(z, row, BELIEVED, event.reward - event.scores[event.scores.size - 1], model)
    add(z, row, SETTLED, event.reward, model)
    return True


@kernel
def retract(event: Decided, assumed_reward: float, model: Model) -> bool:
    """Replace the reward in both copies."""
    check(event, model)
    key, z = features_of(event, model)
    row = row_of(key, model)
    for copy in range(2):
        shift(z, row, copy, event.reward - assumed_reward, model)
    return True


@register
class JointUcb(KernelLearner):
    """One ridge regression over features of the context and the action, with confidence bounds.

    After Li, Chu, Langford, Schapire, "A contextual-bandit approach to personalized news article recommendation", WWW
    2010 (LinUCB), for rewards that arrive late.

        z(x, a)    (u, b) ⊗ (v, b), √(2/m) cos(ω·x/√sx + ν·a/√sa + φ);  u, v of x, a, each in ≤ p dimensions
        start      two copies: believed and settled;  P = I/lam, β = 0;  for each id i: A = lam_id, θ = 0, G = 0
        decide     e_k = z_k − G_k;  s_k = the mean of e_kᵀβ + θ_k over both copies
                   rough_k = s_k + √(eta (Σ_j e_kj² P_jj + 1/A_k));  the `shortlist` actions with the largest rough_k:
                   action = argmax s_k + √(eta (e_kᵀP e_k + 1/A_k)), with the believed P, G and A
        add(y)     e = z − G_i, c = 1 + 1/A_i, g = P e, q = c + eᵀg, h = y − θ_i:
                   β += g (h − eᵀβ)/q;  P −= g gᵀ/q;  A_i += 1;  θ_i += h/A_i;  G_i += e/A_i
        shift(δ)   β += δ P (z − G_i);  θ_i += δ/A_i
        decision   believed.add(believed score);  reward r: believed.shift(r − that score), settled.add(r)
        late       both.shift(r − assumed r)

    Each copy is the exact ridge regression over z with one intercept per id. The intercepts are eliminated with the
    Schur complement, so that P does not grow with the number of ids.

    Symbols: x the context [c]; a an action [a]; z [D], D = (min(c, p) + 1)(min(a, p) + 1) + m; P [D, D]; β [D]; A the
    weight, θ the intercept and G [D] the mean of z of an id; ω [m, c], ν [m, a], φ [m] random with a fixed seed. sx and
    sa are the medians of the squared distances between the first 64 contexts, and between the first 64 actions offered
    with them. u is the unit vector of (x − mean)/standard deviation, with the means and deviations of the sample's
    features; with more than p features, it is projected on the sample's top p singular vectors. v likewise. Before the
    sample is complete, u = x/‖x‖, v = a/‖a‖, and the cosines are 0; if there is a projection, all of z is 0.

    Centring matters: without it, features with a large mean, such as shares or counts, have almost equal unit vectors,
    and the ridge suppresses the small differences between them.

    Assumes dense features. Products of one-hot features exceed p dimensions; use igw-log for them.

    Delay: the order of rewards does not matter, up to rounding. A retraction is exact. The logged values are whether
    the sample was complete at the decision, and the believed score.

    Ids: up to `ids` ids have an intercept. A further id replaces the least recently used one and starts without
    evidence, but P and β keep what was learned from the replaced one. Later rewards for a replaced id start a new one.

    Departures from the paper: two regressions of which one contains all decisions, as in late-ucb; products and cosines
    of the features; the shortlist; exact intercepts per id.

    >>> from stream.learners import create
    >>> learner = create("joint-ucb", n_classes=2, n_features=6, context=2)
    >>> x = np.array([0.5, 1.0, 17.0, 1.0, 18.0, -1.0])  # two features, and ids 17 and 18 with one feature each
    >>> decision = learner.predict(x, u=0.5)
    >>> decision.action, decision.propensity
    (0, 1.0)
    >>> learner.observe(x, decision)
    >>> learner.update(x, decision, reward=0)
    True
    >>> learner.predict(x, u=0.5).action
    1
    """

    name: ClassVar[str] = "joint-ucb"
    summary: ClassVar[str] = "one ridge regression over contexts and actions with features; for dense features"
    best_for: ClassVar[str] = "actions with dense features, new or among thousands"
    paper: ClassVar[str] = "after Li, Chu, Langford, Schapire 2010"
    supports_eligible: ClassVar[bool] = True
    for_actions: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("context", 1, "number of the context's features", low=1),
        Parameter("p", 20, "largest number of dimensions of a context and of an action", low=1, high=64),
        Parameter("m", 32, "number of random cosine features", low=0, high=512),
        Parameter("bias", 0.3, "constant entry appended to contexts and actions", low=0.0, high=1e3),
        Parameter("lam", 1.0, "ridge of the regression", low=0.0, low_open=True, high=1e9),
        Parameter("lam_id", 10.0, "ridge of an id's intercept", low=0.0, low_open=True, high=1e9),
        Parameter("eta", 0.1, "width of the confidence bounds", low=0.0, high=1e9, can_change=True),
        Parameter("shortlist", 4, "number of actions whose bounds are computed exactly", low=1, can_change=True),
        Parameter("ids", 2000, "largest number of ids with an intercept; the least recently used is replaced", low=1),
    )
    from_logs: FromLogs = FromLogs.NOTHING
    retractable: bool = True
    one_right_class: bool = False
    learns_values: bool = True
    is_linear: bool = False
    logged_size: int = 2
    observed: Mapping[str, Extent] = {
        **dict.fromkeys(CHANGING, Extent.WHOLE), **dict.fromkeys(PER_ID, Extent.OTHER),
    }  # fmt: skip
    instead: ClassVar[str] = "igw-log, or a smaller p"
    kernels = Kernels(predict, update, observe, log_of, retract)

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        context: int,
        p: int,
        m: int,
        bias: float,
        lam: float,
        lam_id: float,
        eta: float,
        shortlist: int,
        ids: int,
    ) -> None:
        c, a = context, action_features(n_classes, n_features, context)
        D = (min(c, p) + 1) * (min(a, p) + 1) + m
        P = aligned(2, D + block_of(D), padded(D))
        for copy in P:
            np.fill_diagonal(copy[:D, :D], 1.0 / lam)
        seed = WAVES_SEED
        generator = np.random.Generator(np.random.PCG64(seed))
        omega, nu = generator.standard_normal((m, c)), generator.standard_normal((m, a))
        arrays = {
            "P": P,
            "pending": np.zeros(2),
            "beta": np.zeros((2, D)),
            "counts": np.zeros(4),
            "ids": np.zeros(ids),
            "used": np.zeros(ids),
            "A": np.zeros((ids, 2)),
            "th": np.zeros((ids, 2)),
            "G": np.zeros((ids, 2, D)),
            "contexts": np.zeros((SAMPLE, c)),
            "actions": np.zeros((SAMPLE, 1 + a)),
            "bandwidths": np.zeros(2),
            "scales_x": np.zeros((2, c)),
            "scales_a": np.zeros((2, a)),
            "Gx": np.zeros((c, p)),
            "Ga": np.zeros((a, p)),
            "omega": omega,
            "nu": nu,
            "phases": generator.uniform(0.0, 2.0 * pi, m),
        }
        model: Any = (*arrays.values(), bias, lam_id, eta, shortlist)
        super().__init__(n_classes, n_features, arrays, Model(*model))

    def needs_offer(self, decision: Decision) -> bool:
        """See `Learner.needs_offer`. The sample contains all actions that the first contexts offered."""
        return bool(decision.logged[0] == 0.0)

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """See `KernelLearner.observed_parts`. For the parts with a row per id, it is the row of the played action."""
        yield from super().observed_parts(x, decision)
        c, width = self.model.Gx.shape[0], 1 + self.model.nu.shape[1]
        ids, count = self.arrays["ids"], int(self.arrays["counts"][0])
        key = x.values[x.indices == c + decision.action * width].sum()  # 0 for an empty block
        found = np.flatnonzero(ids[:count] == key)
        oldest = count if count < ids.size else int(self.arrays["used"].argmin())  # as in `inserted`
        row = int(found[0]) if found.size else oldest
        yield from ((name, row) for name in PER_ID)

    def in_use(self, state: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """See `KernelLearner.in_use`. The parts with a row per id are limited to the rows in use."""
        counts = np.asarray(state.get("counts", ()))
        if counts.size != self.arrays["counts"].size:
            return self.arrays
        return {**self.arrays, **{name: self.arrays[name][: int(counts[0])] for name in PER_ID}}

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of a decision among all places."""
        c, p, m = (int(parameters[name]) for name in ("context", "p", "m"))
        a = action_features(n_classes, n_features, c)
        D = (min(c, p) + 1) * (min(a, p) + 1) + m
        per_id = 2 * int(parameters["ids"]) * (D + 3)
        touched = min(int(parameters["shortlist"]), n_classes) * D * D // 2 + 5 * D * D + 6 * n_classes * D
        return Cost(
            flops_per_event=2 * touched,
            bytes_per_event=8 * touched,
            state_bytes=8
            * (
                2 * (D + block_of(D)) * padded(D)
                + 2 * D
                + per_id
                + SAMPLE * (c + 1 + a)
                + (m + p + 2) * (c + a)
                + m
                + 8
            ),
            unused_bytes=8 * per_id,
        )
