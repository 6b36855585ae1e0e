"""stack-igw, which combines logistic regressions and centroids into one probability of being right, for sparse data."""

from collections.abc import Iterator, Mapping
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import DRIFT, INVERSE_GAP, Cost, Extent, FromLogs, KernelLearner, Parameter
from stream.learners.kernels import (
    ALARM_OF_ALL,
    ALARM_OF_CLASS,
    DRIFTS,
    Decided,
    Event,
    Kernels,
    argmax,
    bounded,
    check_decision,
    check_event,
    descend,
    kernel,
    limit,
    logistic,
    sample_inverse_gap,
    watch,
)
from stream.learners.late_bits.stack_igw_kernels import (
    A_START,
    BY_CLASS,
    DECIDED,
    FREQUENCY,
    GRADIENT_MIN,
    MEAN,
    MEAN_COUNT,
    PRIOR,
    PRIOR_VARIANCE,
    RARITY_LOG,
    SETTLED,
    WAITING_SHARE,
    Model,
    believed,
    evidence,
    reset,
    signals,
    signals_with,
    update_stack,
    weighted,
)
from stream.learners.late_bits.word_vectors_kernels import (
    FREQUENCY_MIN,
    IS_ON,
    ROW,
    ROWS_MAX,
    STAMP,
    USED,
    allocate_row,
    embedded,
    is_refreshed_at,
    learn_words,
    observe_words,
    pulled,
    refresh,
    word_vectors,
    words_size,
)
from stream.learners.registry import register
from stream.wire.records import NOT_ELIGIBLE, Decision, Features


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Sample an action by inverse-gap weighting of probabilities times bonuses. The scores are the probabilities."""
    scores, eligible, v, hits, waiting = event.scores, event.eligible, model.v, model.hits, model.waiting
    check_event(event.x, model.Z.shape[0] - 1)
    K = hits.size
    x = weighted(event.x, model.Z, model.totals[DECIDED])
    dots, mean = evidence(x, model)
    phi = signals(dots, mean, embedded(x, model.Z, model.words), model)
    q = np.full(K, NOT_ELIGIBLE)
    for k in range(K):
        scores[k] = believed(v, phi[k])
    limit(scores, eligible)
    for k in eligible:
        known = 1.0 + hits[k] + WAITING_SHARE * waiting[k]
        q[k] = scores[k] * (1.0 + model.bonus * K / known)
    action, _, propensity = sample_inverse_gap(q, eligible, model.scale * sqrt(model.totals[SETTLED] + 1.0), event.u)
    return action, argmax(scores), propensity


@kernel
def observe(event: Decided, model: Model) -> None:
    """Add x to the mean and the word vectors. Count the decision, the features of x, and a pending bit."""
    Z, words, totals = model.Z, model.words, model.totals
    m = words.basis.shape[0]
    check_decision(event, model.hits.size, Z.shape[0] - 1)
    x = weighted(event.x, Z, totals[DECIDED])
    indices, values = x
    if m > 0:
        observe_words(x, Z, words, BY_CLASS)
    for j in range(indices.size):
        row = Z[indices[j]]
        row[MEAN] += values[j]
        if values[j] != 0.0:
            row[FREQUENCY] += 1.0
            row[RARITY_LOG] = log(row[FREQUENCY] + 1.0)
            if m > 0 and row[FREQUENCY] == FREQUENCY_MIN:
                allocate_row(indices[j], Z, words)
    totals[MEAN_COUNT] += 1.0
    totals[DECIDED] += 1.0
    model.waiting[event.action] += 1.0
    if m > 0 and is_refreshed_at(totals[DECIDED]):
        refresh(words, totals[DECIDED])


@kernel
def update(event: Decided, model: Model) -> bool:
    """Update the stack, the word vectors, the action's centroid and the regressions with the bit."""
    Z, words, action, reward = model.Z, model.words, event.action, event.reward
    K, d = model.hits.size, Z.shape[0] - 1
    check_decision(event, K, d)
    model.waiting[action] -= 1.0
    x = weighted(event.x, Z, model.totals[DECIDED] - 1.0)
    indices, values = x
    dots, mean = evidence(x, model)
    embedding = embedded(x, Z, words)
    update_stack(model.v, model.P, signals(dots, mean, embedding, model)[action], reward)
    if embedding.size > 0:
        if words.state[IS_ON] != 0.0:
            learn_words(embedding, action, reward, words)
        if reward > 0:
            sketch, centroids = words.sketch, words.centroids
            g = pulled(x, Z, words)
            for j in range(g.size):
                centroids[j, action] += reward * embedding[j]
                sketch[j, action] += reward * g[j]
    centroid = BY_CLASS + action
    if reward > 0:
        model.norm_sq[action] += reward * (2.0 * dots[0, action] + reward)
        model.hits[action] += reward
        for j in range(indices.size):
            Z[indices[j], centroid] += reward * values[j]
    if reward < 1:
        model.misses[action] += 1 - reward
        for j in range(indices.size):
            Z[indices[j], centroid + K] += (1 - reward) * values[j]
    e = dots[2]
    largest = 0.0
    for k in range(K):
        p = logistic(bounded(e[k]))
        if k == action:
            e[k] = p - reward
        else:
            e[k] = model.others * p if reward == 1 else 0.0
        if abs(e[k]) < GRADIENT_MIN:
            e[k] = 0.0
        largest = max(largest, abs(e[k]))
    first, stop = (0, K) if reward == 1 else (action, action + 1)  # after a wrong bit, the other errors are 0
    if largest > 0.0:
        for j in range(indices.size + 1):
            row = Z[d] if j == indices.size else Z[indices[j]]
            value = model.bias if j == indices.size else values[j]
            w, a = row[BY_CLASS + 2 * K : BY_CLASS + 3 * K], row[BY_CLASS + 3 * K : BY_CLASS + 4 * K]
            descend(w, a, e, value, model.step, first, stop)
    model.totals[SETTLED] += 1.0
    alarm = watch(model.detectors, model.alarms, action, reward, model.drift)
    if alarm == ALARM_OF_ALL:
        reset(0, K, model)
    elif alarm == ALARM_OF_CLASS:
        reset(action, action + 1, model)
    return True


@register
class StackIgw(KernelLearner):
    """Stacks logistic regressions with centroids of right and wrong examples. Samples by inverse-gap weighting.

    Developed for Onebit. Inverse-gap weighting follows Foster, Rakhlin, "Beyond UCB: optimal and efficient contextual
    bandits with regression oracles", ICML 2020; stacking follows Wolpert, "Stacked generalization", Neural Networks 5,
    1992.

        x ← x/‖x‖;  x_i ← x_i ln(1.2 (n+2)/(df_i+1));  x ← x/‖x‖;  for W a constant entry `bias` is appended
        decide    μ = Mᵀx/max(m, 1);  c_k = C_kᵀx/√nr_k (0 at the start);  E_k = max(0, N_kᵀx − w_k μ)
                  s_k = W_kᵀx, within ±8;  g_k = 1/√(1 + h_k);  mar(z)_k = z_k − max_{j≠k} z_j
                  φ_k = (1, c_k, mar(c)_k, [h_k = 0], ln(1 + E_k), g_k, g_k c_k, s_k/4, mar(s)_k/4,
                         c'_k, mar(c')_k, t_k, mar(t)_k);  p_k = σ(vᵀφ_k)
                  q_k = p_k (1 + bonus K/(1 + h_k + pend_k/10));  b = argmax q;  γ = scale √(settled + 1)
                  π_k = 1/(K + γ (q_b − q_k)) for k ≠ b, π_b the remainder
        observe   M += x;  m += 1;  pend_a += 1;  df_i += 1 where x_i ≠ 0;  n += 1
        bit r     pend_a −= 1;  φ_a recomputed from the current model;  ρ = σ(vᵀφ_a);  H = max(ρ(1−ρ), .01);  z = Pφ_a;
                  c = φ_aᵀz;  v += z (r − ρ)/(1 + Hc);  P −= H zzᵀ/(1 + Hc)
                  nr_a += r(2C_aᵀx + r), C_a += r x, h_a += r;  N_a += (1 − r) x, w_a += 1 − r
                  p = σ(Wx);  right: e_a = p_a − 1, e_k = others p_k;  wrong: e_a = p_a only
                  where |e_k| ≥ 1e-4:  A_k += (e_k x)²;  W_k −= step · e_k x/√A_k;  settled += 1

    `vectors` is the number of dimensions of the feature vectors V: 32, 64, or 0 for no vectors. The vectors are learned
    from the co-occurrence of features (`word_vectors_kernels`). Learning them requires no bits, and they help most when
    bits are late. With e = Σ x_i V_i and ê = e/‖e‖:

        decide    c'_k = ê·Ĉ_k/‖Ĉ_k‖;  t_k = b_k·(ê, .3);  both 0 before the 500th decision
        bit r     y = (ê, .3), z = R_a y, c = 1 + y·z:  b_a += z(r − b_a·y)/c,  R_a −= z zᵀ/c;  Ĉ_a += r e

    Symbols: n decisions; df number of x that contain a feature; M the sum of all x, m their number; C and N [K, d] the
    sums of the x for which a class was right and wrong, h and w [K] their numbers, nr = ‖C_k‖² (`norm_sq`, `hits`,
    `misses`); pend (`waiting`) pending decisions; `df_log` ln(df+1); W and A [K, d+1]; v [13] and P [13, 13] of the
    stack, shared by all classes (without vectors, 9 instead of 13); `totals` m, n and settled bits; π_a the propensity;
    scores p. Word vectors: `row` and `stamp` of each feature; `vectors` [rows, 128] with U and G, allocated as needed;
    `words` rows in use, number of refreshes, whether the vectors are used, rows at the last refresh; `basis` B, `gram`
    GᵀG, `overlap` GᵀV, `sketch` GᵀC; `centroids` Ĉ.

    The sums contain each x with its rarity weights at the time of the event, while n and df continue to grow. An update
    computes the rarity weights of x again; n then excludes the decision itself, and df includes it.

    Assumes sparse x, such as words. With very many classes, about K² events are needed to discover every class, and no
    benefit has been measured.

    Delay: an update uses the current model and the decision's action, but no other field of the decision. The order of
    the bits matters, so an update cannot be retracted.

    Drift: a sustained drop in reward (`drift`) resets W, A, C, N, nr, h, w, Ĉ, b and R for every class or for one
    class. `alarms` counts the resets, with one entry per class and a last entry for resets of all classes. An unstable
    learner may raise an alarm on a stationary stream. This happened in one of six random orders of a review data set
    with 7 classes and 13,000 rows, with a delay of 1,000 events.

    Departures from the papers: the regression oracle is a stack of models; the gaps are differences between q, the
    probabilities times the bonuses; the schedule γ is not derived from a regret bound.

    >>> from stream.learners import create
    >>> learner = create("stack-igw", n_classes=3, n_features=2)
    >>> x = np.array([3.0, 4.0])
    >>> decision = learner.predict(x, u=0.5)
    >>> decision.action, round(decision.propensity, 3)
    (1, 0.333)
    >>> learner.observe(x, decision)
    >>> learner.update(x, decision, reward=1)
    True
    >>> learner.predict(x, u=0.5)[:2]
    (1, 1)
    """

    name: ClassVar[str] = "stack-igw"
    summary: ClassVar[str] = "stacked logistic regressions, centroids and word vectors; for sparse data, such as words"
    best_for: ClassVar[str] = "sparse data, such as words; late bits"
    paper: ClassVar[str] = "after Foster, Rakhlin 2020"
    is_linear = False
    supports_eligible: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        *INVERSE_GAP,
        Parameter("bonus", 2.5, "bonus for classes with few right answers", low=0.0, high=1e6, can_change=True),
        Parameter(
            "vectors", 64, "number of dimensions of the feature vectors; 0 means no vectors", choices=("0", "32", "64")
        ),
        DRIFT,
    )
    from_logs: FromLogs = FromLogs.NOTHING
    grows: bool = True
    one_right_class: bool = False
    learns_values: bool = True
    observed: Mapping[str, Extent] = {
        **dict.fromkeys(("M", "df", "df_log"), Extent.FEATURES),
        "waiting": Extent.ACTION,
        "totals": Extent.WHOLE,
        **dict.fromkeys(("row", "stamp"), Extent.FEATURES),
        **dict.fromkeys(("vectors", "basis", "centroids", "b", "R"), Extent.OTHER),
        **dict.fromkeys(("words", "gram", "overlap", "sketch"), Extent.WHOLE),
    }
    instead: ClassVar[str] = "igw-logistic, whose state is half as large, or fewer features"
    kernels = Kernels(predict, update, observe)

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
        vectors: int,
        drift: str,
    ) -> None:
        K, d, m = n_classes, n_features, vectors
        # The arrays are stored by feature, so that an event accesses a few whole rows. The constant entry also has a
        # row.
        Z = np.zeros((d + 1, BY_CLASS + 4 * K))
        C, N, W, A = (Z[:, BY_CLASS + part * K : BY_CLASS + (part + 1) * K].T for part in range(4))
        A[:] = A_START
        S = signals_with(m)
        model = Model(
            Z=Z,
            v=np.zeros(S),
            P=PRIOR_VARIANCE * np.eye(S),
            norm_sq=np.zeros(K),
            hits=np.zeros(K),
            misses=np.zeros(K),
            waiting=np.zeros(K),
            detectors=np.zeros((3, K + 1)),
            alarms=np.zeros(K + 1),
            totals=np.zeros(3),
            words=word_vectors(K, m, min(d, ROWS_MAX) if m else 0),
            scale=scale,
            step=step,
            others=others,
            bonus=bonus,
            bias=bias,
            drift=DRIFTS.index(drift),
        )
        model.v[: PRIOR.size] = PRIOR
        model.v[0] = -log(K - 1)
        arrays: dict[str, NDArray[Any]] = {
            "W": W,
            "A": A,
            "C": C[:, :d],
            "N": N[:, :d],
            "M": Z[:d, MEAN],
            "df": Z[:d, FREQUENCY],
            "df_log": Z[:d, RARITY_LOG],
        }
        parts = ("norm_sq", "hits", "misses", "waiting", "totals", "v", "P", "detectors", "alarms")
        arrays |= {name: getattr(model, name) for name in parts}
        if m:
            words = model.words._asdict()
            arrays |= {"row": Z[:d, ROW], "stamp": Z[:d, STAMP], "words": words.pop("state"), **words}
            arrays["R"] = model.words.R[:, :, : m + 1]
        self.observed = {name: extent for name, extent in self.observed.items() if name in arrays}
        super().__init__(n_classes, n_features, arrays, model)

    def observed_parts(self, x: Features, decision: Decision) -> Iterator[tuple[str, Any]]:
        """See `KernelLearner.observed_parts`. For `vectors`, the parts are the rows of x and the next unused rows.

        The array `vectors` has its maximum size; the state contains only the rows in use.
        """
        yield from super().observed_parts(x, decision)
        if "vectors" not in self.arrays:
            return
        used = int(self.arrays["words"][USED])
        is_new = (self.arrays["df"][x.indices] == FREQUENCY_MIN - 1) & (x.values != 0.0)
        end = min(used + int(np.count_nonzero(is_new)), self.arrays["vectors"].shape[0])
        if is_refreshed_at(self.arrays["totals"][1] + 1.0):
            yield from ((name, ...) for name in ("basis", "centroids", "b", "R"))
        rows = self.arrays["row"][x.indices].astype(np.int64)
        yield "vectors", np.concatenate((rows[rows > 0] - 1, np.arange(used, end)))

    def in_use(self, state: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """See `KernelLearner.in_use`. `vectors` is limited to its rows in use."""
        if "vectors" not in self.arrays or np.size(state.get("words", ())) != self.arrays["words"].size:
            return self.arrays
        return {**self.arrays, "vectors": self.arrays["vectors"][: int(np.asarray(state["words"])[USED])]}

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of 7·K·nnz + 5·m·nnz products and, after a right bit, K·nnz divisions and square roots."""
        K, m = n_classes, int(parameters["vectors"])
        S = signals_with(m)
        words = 2 * m * (5 * nnz + 6 * m + 4 * K)
        vectors = 2 * m * min(n_features, ROWS_MAX)
        return Cost(
            flops_per_event=K * (nnz + 1) * 18 + 60 * nnz + 400 + words,
            bytes_per_event=8 * K * (nnz + 1) * 10 + 4 * words,
            state_bytes=8
            * ((n_features + 1) * (BY_CLASS + 4 * K) + 11 + (1 + S) * S + 8 * (K + 1) + words_size(K, m) + vectors),
            unused_bytes=8 * vectors,
        )
