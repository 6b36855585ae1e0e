"""late-ucb: one ridge regression per class, with confidence bounds that shrink before a decision's bit arrives."""

import zlib
from collections.abc import Mapping
from math import pi, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import DRIFT, Cost, Extent, FromLogs, KernelLearner, Parameter, ParameterError, State
from stream.learners.kernels import (
    ALARM_OF_ALL,
    ALARM_OF_CLASS,
    DRIFTS,
    Decided,
    Event,
    Kernels,
    argmax,
    check_decision,
    check_event,
    kernel,
    limit,
    subroutine,
    sum_of_rows,
    unit,
    watch,
)
from stream.learners.late_bits.late_ucb_kernels import (
    BELIEVED,
    PLAIN,
    PROJECTED,
    QUADRATIC,
    SETTLED,
    Model,
    epoch,
    highest_bound,
    move,
    own_score_place,
    reset,
    score_at_decision,
    score_of,
    scores_of,
    with_bias,
)
from stream.learners.late_bits.random_features_kernels import SAMPLE, Waves, add_to_sample
from stream.learners.late_bits.symmetric_kernels import add_observation, aligned, block_of, padded, times
from stream.learners.registry import register
from stream.wire.records import FloatArray

SIZE_MAX = 512
"""Limit on d' after an expansion. For larger d', the accuracy gained is not worth the time. Memory is quadratic in
d'."""

PROJECTION_SEED, WAVES_SEED = 20_260_101, 20_260_102
"""Fixed seeds. The random matrices are identical in every run, and are not part of the learned state."""


@kernel
def predict(event: Event, model: Model) -> tuple[int, int, float]:
    """Play the shortlisted class with the highest bound."""
    d, p = model.G.shape
    check_event(event.x, d)
    K, own, waving = model.N.size, own_score_place(model), model.waves.phases.size > 0
    logged, scores = event.scores, event.scores[:K]
    if waving:
        logged[own + 1] = 1.0 if model.waves.bandwidth[1] > 0.0 else 0.0
    if model.kind == PROJECTED:
        sum_of_rows(model.G, event.x.indices, unit(event.x.values), logged[logged.size - p :])
    x, length_sq = with_bias(event.x, logged, model)
    scores_of(x, model.weights, scores)
    limit(scores, event.eligible)
    action = highest_bound(x, length_sq, scores, model)
    if model.drift != 0:
        logged[K] = epoch(action, model)
    if waving:
        logged[own] = score_of(x, model.weights, action)
    return action, argmax(scores), 1.0


@kernel
def log_of(event: Decided, model: Model) -> None:
    """Log the values that an update requires: the number of resets of the action's class, and the class's own score."""
    if model.drift != 0:
        event.scores[model.N.size] = epoch(event.action, model)
    if model.waves.phases.size > 0:
        check_event(event.x, model.G.shape[0])
        x, _ = with_bias(event.x, event.scores, model)
        event.scores[own_score_place(model)] = score_of(x, model.weights, event.action)


@subroutine
def check(event: Decided, model: Model) -> None:
    """Raise ValueError if an event or its decision does not match the model."""
    d, p = model.G.shape
    waving, drifting = model.waves.phases.size > 0, model.drift != 0
    check_decision(event, model.N.size, d, p + (2 if waving else 0) + (1 if drifting else 0))


@kernel
def observe(event: Decided, model: Model) -> None:
    """Add x to the action's covariance and use the decision's own score as the target until the bit arrives."""
    check(event, model)
    k = event.action
    x, length_sq = with_bias(event.x, event.scores, model)
    model.N[k] += length_sq
    lead = score_at_decision(event, model) - score_of(x, model.weights, k)
    z = add_observation(model.inverses[BELIEVED, k], model.pending[BELIEVED, k : k + 1], x)
    if lead != 0.0:
        move(model.weights, k, lead, z)
    if model.waves.phases.size > 0 and model.waves.bandwidth[0] < SAMPLE:
        add_to_sample(event.x, model.waves)


@kernel
def update(event: Decided, model: Model) -> bool:
    """Replace the assumed target with the bit, and update the regression on settled bits."""
    check(event, model)
    K, k, reward = model.N.size, event.action, event.reward
    P, pending = model.inverses[BELIEVED, k], model.pending[BELIEVED, k : k + 1]
    x, length_sq = with_bias(event.x, event.scores, model)
    if model.drift != 0 and event.scores[K] != epoch(k, model):
        model.N[k] += length_sq  # the class was reset after the decision, so P and w no longer contain it
        lead = reward - score_of(x, model.weights, k)
        move(model.weights, k, lead, add_observation(P, pending, x))
    else:
        move(model.weights, k, reward - score_at_decision(event, model), times(P, int(pending[0]), x))
    if model.waves.phases.size > 0:
        lead = reward - score_of(x, model.weights, K + k)
        z = add_observation(model.inverses[SETTLED, k], model.pending[SETTLED, k : k + 1], x)
        move(model.weights, K + k, lead, z)
    alarm = watch(model.detectors, model.alarms, k, reward, model.drift)
    if alarm == ALARM_OF_ALL:
        for other in range(K):
            reset(other, model)
    elif alarm == ALARM_OF_CLASS:
        reset(k, model)
    return True


@kernel
def retract(event: Decided, assumed_reward: float, model: Model) -> bool:
    """Apply w_a += change · P_a x and y_a += change · Q_a x; change is the real reward minus the assumed reward."""
    check(event, model)
    K, k = model.N.size, event.action
    x, _ = with_bias(event.x, event.scores, model)
    for which in range(model.inverses.shape[0]):
        z = times(model.inverses[which, k], int(model.pending[which, k]), x)
        move(model.weights, which * K + k, float(event.reward - assumed_reward), z)
    return True


@register
class LateUcb(KernelLearner):
    """One ridge regression per class. The upper confidence bounds account for pending decisions.

    After Desautels, Krause, Burdick, "Parallelizing exploration-exploitation tradeoffs in Gaussian process bandit
    optimization", JMLR 15, 2014. Hallucinated observations are used as in that paper, with one linear model per class
    (Li, Chu, Langford, Schapire, WWW 2010). Late bits are handled as in Vernade et al., ICML 2020.

        x ← x/‖x‖, followed by a constant entry b: d' = d + 1 features
        decide    s_k = w_kᵀx;  rough_k = s_k + √(η‖x‖²/(λ + N_k/d'));  shortlist: the M classes with largest rough_k
                  ŷ = argmax over the shortlist of s_k + √(η xᵀP_k x)
        observe   N_ŷ += ‖x‖²;  P_ŷ −= zzᵀ/(1 + xᵀz), z = P_ŷ x;  w_ŷ += (s_ŷ − w_ŷᵀx) P_ŷ x, P_ŷ the new one
        bit r     w_ŷ += (r − s_ŷ) P_ŷ x, P_ŷ the current one

    `expand`=rff (the default): x⁺ = (x/(√2‖x‖), z/√2, b) replaces x, with `m` random Fourier features z of the unscaled
    x (Rahimi, Recht, NIPS 2007; see `random_features_kernels`). z is 0 for decisions made before the bandwidth is
    known. A second regression uses only the settled bits, and the scores are the mean of both regressions:

        decide    s_k = (w_kᵀx⁺ + y_kᵀx⁺)/2;  logs s_ŷ = w_ŷᵀx⁺ alone, and whether z was available
        bit r     in addition  z' = Q_ŷ x⁺,  c = 1 + x⁺ᵀz';  y_ŷ += z'(r − y_ŷᵀx⁺)/c,  Q_ŷ −= z'z'ᵀ/c

    Symbols: w_k and y_k weights, W and Y [K, d'], the constant's weight last; P_k and Q_k inverse covariances
    [K, d', d'], initially I/λ. Above 191 features, P is stored as P − VᵀV, where V [K, 32, d'] contains the changes not
    yet subtracted, `pending` of them per class (`U` and `pending_settled` for Q). N_k `N`[K]; s_ŷ the decision's own
    score; η `eta`; λ `lam`, where 0 means 0.03 (0.1 above 200 features and for projections); M `shortlist`; b `bias`.
    `sample` [64, d] contains the first contexts; `bandwidth` contains their number and σ².

    `expand`=quadratic, for up to 30 features, appends all products x_i x_j, i ≤ j, to x before scaling. `project`=p,
    for dense data with many features, projects x to p dimensions after scaling it to unit norm. The projection uses a
    fixed Gaussian matrix of variance 1/p.

    A decision is added to the covariance immediately. Until the bit arrives, the target is the score at the time of the
    decision. The bounds therefore narrow with every decision, and the learner does not play the same class throughout a
    long delay. The two regressions differ only while bits are pending.

    When all bits have arrived, both regressions are equal: w_k = y_k = A_k⁻¹ Σ r x with A_k = λI + Σ xxᵀ over the
    decisions that played k, regardless of the order of the bits.

    Drift: a sustained drop in reward (`drift`) resets every class or one class: P_k = Q_k = I/λ, w_k = y_k = 0, N_k =
    0. A decision logs the number of resets of its class. If the class is reset before the bit arrives, the bit is added
    as a new observation, using the current w_ŷᵀx. `alarms` counts the resets, with one entry per class and a last entry
    for resets of all classes.

    Retraction (drift=off): w_ŷ += (r_new − r_old) P_ŷ x, and the same for y_ŷ with Q_ŷ. Up to rounding and in any
    order, the result is the same as if the original update had used the real bit. With drift detection, the learner is
    not retractable, because an alarm cannot be reversed.

    Departures from the papers: the width √η of the bounds is constant; rough bounds, which require no matrix, determine
    a shortlist; all classes have the same noise and ridge; x has a constant entry.

    >>> from stream.learners import create
    >>> learner = create("late-ucb", n_classes=3, n_features=2, expand="none")
    >>> x = np.array([3.0, 4.0])
    >>> first = learner.predict(x, u=0.5)
    >>> learner.observe(x, first)
    >>> learner.predict(x, u=0.5).action  # no bit has arrived, but the bounds of the first class are narrower
    1
    >>> learner.update(x, first, reward=1)
    True
    >>> learner.weights().round(3).tolist()
    [[0.536, 0.714], [0.0, 0.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "late-ucb"
    summary: ClassVar[str] = "ridge regression whose bounds account for pending decisions; for dense data, d ≤ 500"
    best_for: ClassVar[str] = "dense data with up to 500 features, or more with project=256; late or corrected bits"
    paper: ClassVar[str] = "after Desautels, Krause, Burdick 2014"
    supports_eligible: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "lam",
            0.0,
            "ridge penalty; 0 selects 0.03 (0.1 if project is set or there are more than 200 features)",
            low=0.0,
            high=1e9,
        ),
        Parameter("eta", 0.1, "squared width of the bounds", low=0.0, high=1e9, can_change=True),
        Parameter("shortlist", 4, "number of classes whose bounds are computed", low=1, high=1e9, can_change=True),
        Parameter("bias", 0.3, "constant entry appended to x after x is scaled to unit norm", low=0.0, high=1e9),
        Parameter(
            "expand",
            "rff",
            "additional features: products or random",
            choices=("none", "quadratic", "rff"),
            sparse="none",
        ),
        Parameter("m", 64, "number of random features, for expand=rff", low=1, high=10_000),
        Parameter(
            "project", 0, "number of dimensions to which x is projected; 0 means no projection", low=0, high=100_000
        ),
        DRIFT,
    )
    from_logs: FromLogs = FromLogs.NOTHING
    one_right_class: bool = False
    learns_values: bool = True
    retractable: bool = True
    kernels = Kernels(predict, update, observe, log_of, retract)
    observed: Mapping[str, Extent] = dict.fromkeys(("P", "V", "pending", "N", "W"), Extent.ACTION) | {
        "sample": Extent.WHOLE,
        "bandwidth": Extent.WHOLE,
    }  # W changes only if the model has changed since the decision
    instead: ClassVar[str] = "stack-igw for sparse data, or project=256 for dense data"
    grows: bool = True
    greedy_parts = ("W", "Y", "bandwidth", "phases")

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
        m: int,
        project: int,
        drift: str,
    ) -> None:
        self.retractable = drift == "off"  # a reset cannot be reversed
        K, d = n_classes, n_features
        m = m if expand == "rff" else 0
        size = features_of(d, expand, m, project) + 1
        kind = PROJECTED if project else QUADRATIC if expand == "quadratic" else PLAIN
        self.logged_size = project + (2 if m else 0) + (0 if drift == "off" else 1)
        self.is_linear = kind == PLAIN and m == 0
        if lam == 0.0:
            lam = 0.1 if project or size - 1 > 200 else 0.03
        regressions, block = 2 if m else 1, block_of(size)
        model = Model(
            weights=np.zeros((size, regressions * K)),
            inverses=aligned(regressions, K, size + block, padded(size)),
            pending=np.zeros((regressions, K)),
            N=np.zeros(K),
            detectors=np.zeros((3, K + 1)),
            alarms=np.zeros(K + 1),
            G=projection(d, project, PROJECTION_SEED) if project else np.zeros((d, 0)),
            waves=Waves(*random_waves(d, m, WAVES_SEED), np.zeros((SAMPLE if m else 0, d)), np.zeros(2)),
            lam=lam,
            eta=eta,
            shortlist=shortlist,
            bias=bias,
            kind=kind,
            drift=DRIFTS.index(drift),
        )
        inverses = model.inverses
        inverses[:] = 0.0  # writes all pages at once; pages mapped at the first access are slower to read
        inverses[:, :, np.arange(size), np.arange(size)] = 1.0 / lam
        self.fingerprint = 0
        if project or m:
            random = model.G, model.waves.omega
            self.fingerprint = zlib.crc32(b"".join(part.tobytes() for part in random))
        arrays: dict[str, NDArray[Any]] = {
            "W": model.weights[:, :K].T,
            "P": inverses[BELIEVED, :, :size, :size],
            "V": inverses[BELIEVED, :, size:, :size],
            "pending": model.pending[BELIEVED],
            "N": model.N,
            "detectors": model.detectors,
            "alarms": model.alarms,
        }
        if m:
            arrays |= {
                "Y": model.weights[:, K:].T,
                "Q": inverses[SETTLED, :, :size, :size],
                "U": inverses[SETTLED, :, size:, :size],
                "pending_settled": model.pending[SETTLED],
                "sample": model.waves.sample,
                "bandwidth": model.waves.bandwidth,
                "phases": model.waves.phases,
            }
        else:
            self.observed = {name: extent for name, extent in self.observed.items() if extent is not Extent.WHOLE}
        super().__init__(n_classes, n_features, arrays, model)

    def state(self) -> State:
        """Return a copy of the state. A checksum replaces the random matrices, which depend only on the parameters.

        The state contains the random features' phases, because they also depend on the number of features at the start.
        """
        return {**super().state(), "fingerprint": self.fingerprint} if self.fingerprint else super().state()

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`.

        Raises:
            ValueError: the state was computed with different random matrices.
        """
        if int(state.get("fingerprint", 0)) != self.fingerprint:
            raise ValueError(
                f"cannot load {self.name}: expected random matrices with checksum {self.fingerprint}, got "
                f"{state.get('fingerprint')}; use the numpy version that was used to store the state"
            )
        super().load(state)

    def feature_places(self, n_features: int) -> tuple[NDArray[np.int64], int]:
        """See `KernelLearner.feature_places`. With `expand`=quadratic, the products follow the features."""
        if self.model.kind != QUADRATIC:
            return super().feature_places(n_features)
        d = self.n_features
        i, j = np.triu_indices(d)
        places = np.concatenate((np.arange(d), n_features + i * n_features - i * (i - 1) // 2 + j - i))
        return places, features_of(n_features, "quadratic", 0, 0) - places.size

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the cost of nnz²/2 entries per shortlisted class, 2·nnz rows and a pass over P; twice that with Q."""
        project, quadratic = int(parameters["project"]), parameters["expand"] == "quadratic"
        m = int(parameters["m"]) if parameters["expand"] == "rff" else 0
        size = features_of(n_features, str(parameters["expand"]), m, project) + 1
        own = project or (nnz + nnz * (nnz + 1) // 2 if quadratic else nnz)
        entries, regressions = own + m + 1, 2 if m else 1
        listed = min(int(parameters["shortlist"]), n_classes)
        fixed = 3 * (project + m) * nnz
        inverses = regressions * (2 * entries * size + size * size)
        touched = regressions * n_classes * entries + listed * entries * entries // 2 + inverses + fixed
        return Cost(
            flops_per_event=2 * touched,
            bytes_per_event=8 * touched,
            state_bytes=8
            * (
                regressions * n_classes * size * (size + block_of(size) + 1)
                + 7 * (n_classes + 1)
                + (project + m) * n_features
                + (m + SAMPLE * n_features if m else 0)
            ),
        )


def features_of(n_features: int, expand: str, m: int, project: int) -> int:
    """Return the number of features in the regression, excluding the constant.

    Raises:
        ParameterError: the expansion is too large or combined with a projection.
    """
    if expand != "quadratic":
        return (project or n_features) + m
    if project:
        raise ParameterError("late-ucb: expand=quadratic and project cannot be combined; remove one of them")
    size = n_features + n_features * (n_features + 1) // 2
    if size + 1 > SIZE_MAX:
        raise ParameterError(
            f"late-ucb: expand=quadratic expands {n_features} features to {size:,}; the limit is {SIZE_MAX - 1}; "
            "use expand=none, or project=256 for dense data, or stack-igw for sparse data"
        )
    return size


def projection(n_features: int, dimensions: int, seed: int) -> FloatArray:
    """Return Gᵀ with independent N(0, 1/p) entries, float64[d, p]."""
    generator = np.random.Generator(np.random.PCG64(seed))
    G: FloatArray = generator.standard_normal((n_features, dimensions)) / sqrt(dimensions)
    return G


def random_waves(n_features: int, m: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return independent N(0, 1) entries σω, float64[d, m], and β ~ U[0, 2π), float64[m]."""
    generator = np.random.Generator(np.random.PCG64(seed))
    omega: FloatArray = generator.standard_normal((n_features, m))
    phases: FloatArray = generator.uniform(0.0, 2.0 * pi, m)
    return omega, phases
