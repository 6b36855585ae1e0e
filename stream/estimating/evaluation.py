"""Row-by-row evaluation of one policy: sums, moments, confidence sequences, and the estimates.

For n rows with weight w = π(a|x)/μ(a|x), reward r (a share of the range of rewards) and reward model q̂, where
q̂_π(x) = Σ_a π(a|x) q̂(x, a):

    replay       mean of r over accepted rows, each accepted with probability w/w_max
                 (Li, Chu, Langford, Wang, WSDM 2011; with rejection for logs that are not uniform)
    dm           Σ q̂_π/n
    ips          Σ w r/n                       (Horvitz, Thompson 1952)
    snips        Σ w r/Σ w                     (Swaminathan, Joachims, NeurIPS 2015)
    clipped-ips  Σ min(w, M) r/n               (Ionides 2008; Bottou et al., JMLR 2013)
    dr           Σ (q̂_π + w (r − q̂(x, a)))/n   (Dudík, Langford, Li, ICML 2011), q̂ out of fold

Assumptions, in addition to correct propensities and contexts that are independent of earlier actions:

- dm: a correct reward model. Its intervals do not account for the model's error.
- replay, and all empirical Bernstein intervals: weights of at most w_max, which is derived from the smallest propensity
  of any class under the logging policy. If that propensity is not given, it is estimated from the log.
- empirical Bernstein intervals: independent rows, and therefore a fixed policy. snips is a ratio and has no such
  interval.
- clipped-ips: its bootstrap interval covers the clipped mean, which is at most the policy's value. Its empirical
  Bernstein interval covers the policy's value, because clipping 1 − r raises the upper limit.
- the confidence sequence for ips: only non-negative weights.
- the confidence sequence for dr, which uses the running reward model: weights of at most w_max. q̂(x, a) is limited to
  k divided by the largest possible weight of a, so that w q̂ is at most k.
- the intervals for dr: a log with a positive probability of every action that the policy plays. They are omitted if the
  mean weight differs from 1 and no minimum propensity was given. The terms share the folds' reward models, so the
  empirical Bernstein interval is exact only if other rows would give the same models.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.estimating.bootstrap import ResampledSums, percentile_interval
from stream.estimating.intervals import Interval, Sequence01, bernstein_low, within_01
from stream.estimating.live_results import Flag
from stream.estimating.policies import Policy
from stream.estimating.rows import Chunk
from stream.estimating.survey import FLOAT32_ERROR, P_VALUE_MIN, Rounding, effective_sample_size, mean_of_weights
from stream.wire.records import FloatArray
from stream.wire.rewards import BITS, RewardRange

ESTIMATORS = ("replay", "dm", "ips", "snips", "clipped-ips", "dr")

DR_BELOW_MAX = 4.0
"""k in the confidence sequence for dr. With a larger value, q̂ is restricted less, but an equally narrow interval
requires more rows."""

ESS_MIN = 100.0
"""Effective sample sizes below this limit are flagged, because intervals from few rows are unreliable."""

WEIGHTS_OFF_ONE = "weights-off-one"

# Columns of the bootstrap sums.
ROWS, Q, WEIGHTED, WEIGHT, IPS, CLIPPED, DR, ACCEPTED, REPLAY = range(9)
COLUMNS = 9

WEIGHT_EDGES: FloatArray = np.concatenate(([0.0], 2.0 ** np.arange(-6.0, 21.0)))
"""Bin edges of the weight distribution; the first bin contains the zero weights."""


class Options(NamedTuple):
    """Settings for an evaluation."""

    seed: int = 0
    confidence: float = 0.95
    resamples: int = 500
    clip: float | None = None  # the clipping limit M; None means √n (Ionides, "Truncated importance sampling", 2008)
    propensity_min: float | None = (
        None  # minimum propensity of any class under the logging policy; None means the smallest in the log
    )
    path_points: int = 200
    rewards: RewardRange = BITS  # the range of the log's rewards


class Estimate(NamedTuple):
    """An estimate of a policy's value, with its intervals. Undefined values and intervals are None."""

    estimator: str
    n: int  # number of rows on which the estimate is based
    value: float | None
    bootstrap: Interval | None
    bernstein: Interval | None
    anytime: Interval | None


class PathPoint(NamedTuple):
    """The estimates after the first n rows with a weight."""

    n: int
    ips: float
    ips_interval: Interval
    dr: float  # estimate with the running reward model
    dr_interval: Interval


class PolicyEvaluation(NamedTuple):
    """The evaluation of a policy."""

    policy: str
    changes: bool  # True if the policy learned from the log; its value is then a mean over time
    ess: float
    weight_max: float
    flags: tuple[Flag, ...]
    estimates: tuple[Estimate, ...]
    path: tuple[PathPoint, ...]
    weight_counts: NDArray[np.int64]  # number of rows in each bin of WEIGHT_EDGES


class Limits(NamedTuple):
    """Limits on the weights in a log, and the number of rows between two points on the path of estimates."""

    propensity_min: float
    classes_min: int  # the smallest number of eligible classes
    clip: float
    path_stride: int  # number of weighted rows between two points on the path
    rounding: Rounding = Rounding(0.0, FLOAT32_ERROR)  # how the propensities are rounded


PROPENSITY_FLOOR = 1e-140
"""Smaller propensities are raised to this value, so that the squares of their weights do not overflow."""


class Moments:
    """The number, mean and variance of a series of terms."""

    def __init__(self) -> None:
        self.n, self.sum, self.square_sum, self.largest = 0, 0.0, 0.0, 0.0

    def add(self, terms: FloatArray) -> None:
        """Add terms, float64[m]."""
        self.n += terms.size
        self.sum += float(terms.sum())
        self.square_sum += float(terms @ terms)
        self.largest = float(terms.max(initial=self.largest))

    @property
    def mean(self) -> float:
        """Return the mean; requires at least one term."""
        return self.sum / self.n

    @property
    def variance(self) -> float:
        """Return the sample variance (divisor n − 1); requires at least two terms."""
        return max(self.square_sum - self.sum * self.sum / self.n, 0.0) / (self.n - 1)

    @property
    def ess(self) -> float:
        """Return the effective sample size, provided that the terms are weights."""
        return effective_sample_size(self.sum, self.square_sum)

    def low(self, span: float, delta: float) -> float:
        """Return Maurer and Pontil's lower confidence limit for terms whose range has this width."""
        return bernstein_low(self.n, self.mean, self.variance, span, delta)

    def mirrored_low(self, span: float, delta: float) -> float:
        """Return the lower confidence limit for the mean of the negated terms."""
        return bernstein_low(self.n, -self.mean, self.variance, span, delta)


class PolicyEvaluator:
    """Evaluates one policy row by row."""

    def __init__(self, policy: Policy, options: Options, limits: Limits) -> None:
        self.policy = policy
        self._options = options
        self._limits = limits
        self._weight_max = policy.weight_max(limits.propensity_min, limits.classes_min)
        self._below = min(self._weight_max, DR_BELOW_MAX)
        self._sums = ResampledSums(COLUMNS, options.resamples)
        self._moments = {name: Moments() for name in ("w", "wr", "wf", "cr", "cf", "q", "dr", "replay")}
        delta = 1.0 - options.confidence
        self._ips_sequence = Sequence01(0.0, delta)
        self._dr_sequence = Sequence01(self._below, delta)
        self._rounding_sum = 0.0  # the largest possible error of the sum of weights
        self._running_dr_sum = 0.0
        self._path: list[PathPoint] = []
        self._weight_counts = np.zeros(WEIGHT_EDGES.size, np.int64)

    def add(self, chunk: Chunk, q: FloatArray, running_q: FloatArray, counts: NDArray[np.float32]) -> None:
        """Add the next rows from the log.

        Args:
            chunk: The rows.
            q: The reward model's out-of-fold predictions for rows with an action and an outcome, float64[m, K].
            running_q: For the same rows, the predictions of a reward model fitted on the preceding rows.
            counts: For the same rows, the bootstrap counts, [m, resamples].
        """
        p = self.policy.probabilities(chunk)[chunk.judged]
        rows = chunk.weighted[chunk.judged]
        terms = np.zeros((rows.size, COLUMNS))
        terms[:, ROWS] = 1.0
        terms[:, Q] = (p * q).sum(axis=1)
        self._moments["q"].add(terms[:, Q])
        weighted = np.flatnonzero(chunk.weighted)
        if weighted.size:
            actions, rewards = chunk.actions[weighted], chunk.rewards[weighted]
            propensities = np.maximum(chunk.propensities[weighted], self._limits.propensity_min)
            weights = self.policy.weights(p[rows], actions, propensities)
            self._rounding_sum += float(weights @ self._limits.rounding.errors(propensities))
            accepted = chunk.accept_uniforms()[weighted] < weights / self._weight_max
            self._add_weighted(terms, rows, actions, rewards, weights, accepted, q[rows])
            self._add_to_sequences(p[rows], actions, rewards, weights, running_q[rows])
        self._sums.add(terms, counts)

    def _add_weighted(
        self,
        terms: FloatArray,
        rows: NDArray[np.bool_],
        actions: NDArray[np.int64],
        rewards: FloatArray,
        weights: FloatArray,
        accepted: NDArray[np.bool_],
        q: FloatArray,
    ) -> None:
        clipped = np.minimum(weights, self._limits.clip)
        dr = terms[rows, Q] + weights * (rewards - q[np.arange(actions.size), actions])
        columns = {
            WEIGHTED: np.ones(actions.size), WEIGHT: weights, IPS: weights * rewards, CLIPPED: clipped * rewards,
            DR: dr, ACCEPTED: accepted.astype(np.float64), REPLAY: accepted * rewards,
        }  # fmt: skip
        for column, values in columns.items():
            terms[rows, column] = values
        for name, values in {
            "w": weights, "wr": weights * rewards, "wf": weights * (1.0 - rewards), "cr": clipped * rewards,
            "cf": clipped * (1.0 - rewards), "dr": dr, "replay": rewards[accepted],
        }.items():  # fmt: skip
            self._moments[name].add(values)
        places = np.searchsorted(WEIGHT_EDGES, weights, side="left")
        self._weight_counts += np.bincount(np.minimum(places, WEIGHT_EDGES.size - 1), minlength=WEIGHT_EDGES.size)

    def _add_to_sequences(
        self, p: FloatArray, actions: NDArray[np.int64], rewards: FloatArray, weights: FloatArray, q: FloatArray
    ) -> None:
        seen = self._moments["w"].n - actions.size
        stride = self._limits.path_stride
        at = list(range(stride - 1 - seen % stride, actions.size, stride))
        ips_sums = self._moments["wr"].sum - (weights * rewards).sum() + np.cumsum(weights * rewards)
        row = np.arange(actions.size)
        running_dr = self._running_dr_sum + np.cumsum((p * q).sum(axis=1) + weights * (rewards - q[row, actions]))
        self._running_dr_sum = float(running_dr[-1])
        with np.errstate(divide="ignore"):  # q̂ is not limited for a class that the policy never plays
            cut = self._below / self.policy.weight_bounds(p, self._limits.propensity_min)
        of_reward, of_failure = (
            (p * side_q).sum(axis=1) + weights * (side_rewards - side_q[row, actions])
            for side_rewards, side_q in ((rewards, np.minimum(q, cut)), (1.0 - rewards, np.minimum(1.0 - q, cut)))
        )
        of_ips = self._ips_sequence.extend(weights * rewards, weights * (1.0 - rewards), at)
        of_dr = self._dr_sequence.extend(of_reward, of_failure, at)
        for place, ips_interval, dr_interval in zip(at, of_ips, of_dr, strict=True):
            n = seen + place + 1
            self._path.append(
                PathPoint(n, float(ips_sums[place] / n), ips_interval, float(running_dr[place] / n), dr_interval)
            )

    def result(self, flags: tuple[Flag, ...]) -> PolicyEvaluation:
        """Return the evaluation. The log's flags precede the policy's flags."""
        weights = self._moments["w"]
        own = weight_flags(weights, self._rounding_sum / max(weights.n, 1))
        ess = weights.ess
        # If none of the policy's actions occur in the log, dr consists of the reward model alone. A minimum propensity
        # set by the user rules this out; a minimum estimated from the log does not.
        without_overlap = self._options.propensity_min is None and any(flag.name == WEIGHTS_OFF_ONE for flag in own)
        return PolicyEvaluation(
            policy=self.policy.name,
            changes=self.policy.changes,
            ess=ess,
            weight_max=weights.largest,
            flags=(*flags, *own),
            estimates=tuple(
                one._replace(bootstrap=None, bernstein=None, anytime=None)
                if without_overlap and one.estimator == "dr"
                else one
                for one in map(self._in_units, self._estimates())
            ),
            path=tuple(map(self._point_in_units, self._path)),
            weight_counts=self._weight_counts,
        )

    def _in_units(self, one: Estimate) -> Estimate:
        """Convert an estimate of a share to the units of the rewards."""
        value_of, intervals = self._options.rewards.value, (one.bootstrap, one.bernstein, one.anytime)
        shown = (None if interval is None else Interval(*map(value_of, interval)) for interval in intervals)
        return Estimate(one.estimator, one.n, None if one.value is None else value_of(one.value), *shown)

    def _point_in_units(self, point: PathPoint) -> PathPoint:
        value_of = self._options.rewards.value
        of_ips, of_dr = (Interval(*map(value_of, interval)) for interval in (point.ips_interval, point.dr_interval))
        return PathPoint(point.n, value_of(point.ips), of_ips, value_of(point.dr), of_dr)

    def _estimates(self) -> tuple[Estimate, ...]:
        values, resampled = values_of(self._sums.sums), values_of(self._sums.resampled)
        n = {
            name: int(self._sums.sums[ROWS if name == "dm" else ACCEPTED if name == "replay" else WEIGHTED])
            for name in ESTIMATORS
        }
        anytime = {"ips": self._ips_sequence, "dr": self._dr_sequence} if n["ips"] else {}
        bernstein = {} if self.policy.changes else self._bernstein()
        return tuple(
            Estimate(
                estimator=name,
                n=n[name],
                value=float(values[name]) if n[name] and np.isfinite(values[name]) else None,
                bootstrap=percentile_interval(resampled[name], self._options.confidence) if n[name] else None,
                bernstein=bernstein.get(name) if n[name] > 1 else None,
                anytime=anytime[name].now() if name in anytime else None,
            )
            for name in ESTIMATORS
        )

    def _bernstein(self) -> dict[str, Interval]:
        """Return the empirical Bernstein intervals for a fixed policy. Each limit has half the error probability."""
        moments, half = self._moments, (1.0 - self._options.confidence) / 2.0
        clipped_max = min(self._weight_max, self._limits.clip)
        intervals = {}
        for name, of_reward, of_failure, span in (
            ("ips", "wr", "wf", self._weight_max),
            ("clipped-ips", "cr", "cf", clipped_max),
        ):
            if moments[of_reward].n > 1:
                high = 1.0 - moments[of_failure].low(span, half)
                intervals[name] = within_01(moments[of_reward].low(span, half), high)
        for name, terms, span in (
            ("dm", "q", 1.0),
            ("dr", "dr", 2.0 * self._weight_max + 1.0),
            ("replay", "replay", 1.0),
        ):
            if moments[terms].n > 1:
                intervals[name] = within_01(moments[terms].low(span, half), -moments[terms].mirrored_low(span, half))
        return intervals


def weight_flags(weights: Moments, rounding: float = FLOAT32_ERROR) -> list[Flag]:
    """Return flags for weights that make a policy's estimates unreliable.

    Args:
        weights: The weights.
        rounding: How much their mean may differ from 1 because propensities are rounded.
    """
    flags = list[Flag]()
    if weights.n and weights.ess < ESS_MIN:
        few = weights.n < ESS_MIN
        reason = "too few rows" if few else f"the weights are too uneven (the largest is {weights.largest:.3g})"
        text = f"effective sample size {weights.ess:,.1f} ({weights.n:,} rows), below {ESS_MIN:g}: {reason}"
        flags.append(Flag("ess-low", text))
    if weights.n > 1:
        p_value = mean_of_weights(weights.n, weights.mean, weights.variance, rounding)
        if p_value < P_VALUE_MIN:
            flags.append(
                Flag(
                    WEIGHTS_OFF_ONE,
                    f"the mean weight is {weights.mean:.3f}, expected 1 (p = {p_value:.2g}): the propensities are "
                    "wrong, or the policy plays actions that never occur in the log",
                )
            )
    return flags


def values_of(sums: FloatArray) -> dict[str, FloatArray]:
    """Return the estimates from sums [..., COLUMNS] over all rows or resamples. Undefined estimates are not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "replay": sums[..., REPLAY] / sums[..., ACCEPTED],
            "dm": sums[..., Q] / sums[..., ROWS],
            "ips": sums[..., IPS] / sums[..., WEIGHTED],
            "snips": sums[..., IPS] / sums[..., WEIGHT],
            "clipped-ips": sums[..., CLIPPED] / sums[..., WEIGHTED],
            "dr": sums[..., DR] / sums[..., WEIGHTED],
        }
