"""late-ucb: a ridge regression of the bit per class, whose bounds move with a decision and not with its bit."""

import zlib
from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import (
    DRIFT,
    Cost,
    Extent,
    FromLogs,
    Kernels,
    Parameter,
    ParameterError,
    State,
    WatchingLearner,
    sparse,
)
from stream.learners.kernels import (
    ALARM_OF_ALL,
    ALARM_OF_CLASS,
    DRIFTS,
    argmax,
    check_decision,
    check_event,
    compiled,
    linear_scores,
    sample_epsilon_greedy,
    unit,
    watch,
)
from stream.learners.late_ucb_kernels import (
    ALARMS,
    CLASSES,
    COUNTS,
    DETECTORS,
    DRIFT_KIND,
    ETA,
    FEATURES,
    FLOOR,
    KIND,
    LAM,
    PENDING,
    PLAIN,
    PROJECTED,
    QUADRATIC,
    SETTINGS,
    SHORTLIST,
    WEIGHT,
    block_of,
    counts_of,
    epoch,
    inverse_of_class,
    inverses_of,
    move,
    projection_of,
    score_of,
    squared_length,
    sum_of_rows,
    take_in,
    times,
    variance,
    weights_of,
    weights_of_class,
    with_bias,
)
from stream.learners.registry import register
from stream.wire.events import Decision, Features, FloatArray, IndexArray

SIZE_MAX = 512
"""d' of an expansion: beyond it the pairs cost more than they bring, and memory in the square of them."""

PROJECTION_SEED = 20_260_101
"""The projection is the same in every run: it is no part of what is learned."""


@compiled
def highest_bound(places: IndexArray, x: FloatArray, scores: FloatArray, counts: FloatArray, model: FloatArray) -> int:
    """The class of a shortlist with the highest s_k + √(η xᵀP_k x); ties go to the lowest class."""
    P = inverses_of(model)
    K, size = P.shape[0], P.shape[2]
    z = np.empty(size)
    length_sq = squared_length(x, model)
    rough = np.empty(K)
    for k in range(K):  # numpy's division has no branch for a divisor of 0: the loop becomes vector instructions
        rough[k] = scores[k] + sqrt(np.divide(model[ETA] * length_sq, model[LAM] + np.divide(counts[WEIGHT, k], size)))
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
        sum_of_rows(G, indices, unit(values), logged[logged.size - G.shape[1] :])
    places, x = with_bias(indices, values, logged, model)
    linear_scores(places, x, W, scores)
    best = highest_bound(places, x, scores[:K], counts, model)
    action, propensity = sample_epsilon_greedy(best, K, model[FLOOR], u)
    if model[DRIFT_KIND] != 0.0:
        logged[0] = epoch(counts, action)
    return action, argmax(scores[:K]), propensity


@compiled
def log_of(indices: IndexArray, values: FloatArray, action: int, scores: FloatArray, model: FloatArray) -> None:
    """What an update will need to know of an action: how often its class was reset."""
    if model[DRIFT_KIND] != 0.0:
        scores[int(model[CLASSES])] = epoch(counts_of(model), action)


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
    check_decision(indices, values, action, scores[:K], K, int(model[FEATURES]))
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
    check_decision(indices, values, action, scores[:K], K, int(model[FEATURES]))
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
    check_decision(indices, values, action, scores[:K], K, int(model[FEATURES]))
    if change == 0:
        return False
    places, x = with_bias(indices, values, scores[K:], model)
    pending = int(counts_of(model)[PENDING, action])
    z = times(inverse_of_class(model, action), pending, places, x)
    move(weights_of_class(model, action), float(change), z)
    return True


@register
class LateUcb(WatchingLearner):
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
    best_for: ClassVar[str] = (
        "dense data of up to 500 features, or of more with project=256; bits that come late, or are corrected"
    )
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
    from_logs: ClassVar[FromLogs] = FromLogs.NOTHING
    one_right_class: ClassVar[bool] = False
    retractable: ClassVar[bool] = True
    observed: ClassVar[Mapping[str, Extent]] = dict.fromkeys(
        ("P", "V", "pending", "N", "W"), Extent.ACTION
    )  # W when the model has moved since the decision
    log_kernel = staticmethod(log_of)
    instead: ClassVar[str] = "stack-igw for sparse data, or project=256 for dense data"

    def __new__(cls, *sizes: int, **parameters: Any) -> Self:
        """Make the class that fits the options: `retractable` belongs to the class."""
        fitting: Any = LateUcb if parameters["drift"] == "off" else DriftingLateUcb
        learner: Self = super().__new__(fitting, *sizes, **parameters)
        return learner

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
