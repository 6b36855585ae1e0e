"""Standard scaling of features, using statistics from the contexts that have arrived so far."""

from collections.abc import Mapping
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.learners.base import Cost, Extent, KernelLearner
from stream.learners.kernels import VALUE_MAX, Decided, Event, check_event, compiled, subroutine
from stream.learners.wrappers.wrapper import Wrapper
from stream.wire.records import Decision, Features, FloatArray, IndexArray

FIRST = 16
"""The number of observed contexts after which the first scale is fixed."""

VERSIONS_MAX = 32
"""Maximum number of scales. The last scale is fixed after 2³⁵ contexts."""

LIMIT = 10.0
"""Limit on scaled values. A scale computed from few contexts can be far too small for later values, and a single very
large value would dominate the model."""

CONSTANT = 1e-9
"""A column is considered constant if its standard deviation is at most this fraction of its root mean square. A smaller
deviation can be a rounding error."""

OBSERVED, VERSIONS, CENTRED = 0, 1, 2
"""Indices in `counts`: the number of contexts, the number of scales, and the first of the entries that contain the
numbers of centred columns, one entry per scale."""

COUNT, MEAN, SQUARES = 0, 1, 2
"""Columns of `moments`: the number, the mean and the sum of squared deviations of a feature's non-zero values."""

CENTRE, UNIT = 0, 1
"""Columns of a scale. A scaled value is (x - centre) / unit. The unit is 0 if the feature's values do not vary."""

Counts = NDArray[np.int64]


class Scales(NamedTuple):
    """The statistics of the contexts, and the scales; see `RunningScale`."""

    counts: Counts  # [CENTRED + 33]
    moments: FloatArray  # [d, 3]
    rows: FloatArray  # [33, d, 2]
    centred: IndexArray  # [33, d]


class Model(NamedTuple):
    """The scales and the inner learner's model."""

    scales: Scales
    inner: Any


class RunningScale(Wrapper):
    """A learner whose features are scaled using their mean and standard deviation over the observed contexts.

        observe      n += 1; update the count, mean and squared deviations of each x_i ≠ 0 (Welford 1962)
        n = 2ᵏ ≥ 16  fix a scale computed from all n contexts, with the next version v = 1, 2, ...
        predict      compute z_i = (x_i − c_i) / s_i with the newest scale, limited to ±10; the decision records v
        update       compute z with the decision's own scale v, which is kept in the state

    The formulas are the same as for a file with `--scale standard`. If most values in a column are 0, the column is not
    centred, and s_i is the root mean square of the other values. Otherwise, c_i is the mean and s_i is the standard
    deviation. A value in a column without a scale is replaced by its sign, ±1. A column has no scale if it is new, if
    it is constant, or if no scale has been fixed yet.

    Because each decision records its version, an update and its reversal use the same z as the decision, regardless of
    delay and order. With a shared model, the scales are a function of the log alone.

    Arrays: `moments` [d, 3]; `rows` [33, d, 2], with c_i and s_i for each version; `centred`, with the columns in which
    c_i ≠ 0, for each version. Version 0 is used until the first scale is fixed. In a centred column, an x_i of 0 gives
    a non-zero z_i. The state contains only the rows in use, 16 d bytes each.

    Assumptions: the units of the columns do not change. A new scale is fixed only when the number of contexts has
    doubled, so an outdated scale remains in use for a long time.

    >>> from stream.learners import create
    >>> learner = RunningScale(create("perceptron", n_classes=2, n_features=2))
    >>> for t in range(16):
    ...     x = np.array([20_000.0 + 1_000.0 * (-1) ** t, 0.0])
    ...     learner.observe(x, learner.predict(x, 0.5))
    >>> decision = learner.predict(np.array([22_000.0, 7.0]), 0.5)
    >>> learner.inside(np.array([22_000.0, 7.0]), decision)[0].values.tolist()
    [2.0, 1.0]
    """

    def __init__(self, inner: KernelLearner) -> None:
        """Scale a learner's features."""
        d = inner.n_features
        self._scales = scales = Scales(
            counts=np.zeros(CENTRED + VERSIONS_MAX + 1, np.int64),
            moments=np.zeros((d, 3)),
            rows=np.zeros((VERSIONS_MAX + 1, d, 2)),  # memory is allocated when a row is written
            centred=np.zeros((VERSIONS_MAX + 1, d), np.int32),
        )
        own: dict[str, NDArray[Any]] = {
            "scale.counts": scales.counts[:CENTRED],
            "scale.moments": scales.moments,
            "scale.rows": scales.rows[1:],
        }
        super().__init__(
            inner,
            own,
            Model(scales, inner.model),
            {"scale.counts": Extent.WHOLE, "scale.moments": Extent.FEATURES, "scale.rows": Extent.OTHER},
            (_predict, _update, _observe, _log),
            logged_size=1,
        )

    def inside(self, x: Features | FloatArray, decision: Decision) -> tuple[Features, Decision]:
        """See `Wrapper.inside`. The returned x is scaled with the version recorded in the decision."""
        features, own = super().inside(x, decision)
        return Features(*scaled(features, decision.logged[-1], self._scales)), own

    def in_use(self, state: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """See `Wrapper.in_use`. `scale.rows` is limited to the scales that have been fixed."""
        counts = np.asarray(state.get("scale.counts", self._scales.counts))
        versions = int(counts[VERSIONS]) if counts.size > VERSIONS else 0
        return {**self.own, "scale.rows": self._scales.rows[1 : versions + 1]}

    def load_own(self, state: Mapping[str, Any]) -> None:
        """See `Wrapper.load_own`."""
        super().load_own(state)
        versions = int(self._scales.counts[VERSIONS])
        for version in range(1, versions + 1):
            centred = np.flatnonzero(self._scales.rows[version, :, CENTRE])
            self._scales.counts[CENTRED + version] = centred.size
            self._scales.centred[version, : centred.size] = centred

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        """Return the additional cost. The size includes all rows, although most rows are never written."""
        return Cost(
            flops_per_event=20 * nnz,
            bytes_per_event=8 * 9 * nnz,
            state_bytes=8 * (CENTRED + n_features * (3 + 2 * VERSIONS_MAX)),
        )


@compiled
def scaled(x: Features, version: float, scales: Scales) -> Features:
    """Return the non-zero entries of the scaled x. Values outside ±VALUE_MAX are left unscaled; see `usable`."""
    (indices, values), counts, rows, centred = x, scales.counts, scales.rows, scales.centred
    check_event(x, rows.shape[1])
    if not 0.0 <= version <= counts[VERSIONS]:
        raise ValueError("decision: expected a scale that the model has fixed")
    row, listed, n_listed = rows[int(version)], centred[int(version)], counts[CENTRED + int(version)]
    n = indices.size
    places, z = np.empty(n + n_listed, np.int32), np.empty(n + n_listed)
    j = of_listed = size = 0
    while j < n or of_listed < n_listed:
        feature, value = row.shape[0], 0.0
        if of_listed < n_listed:
            feature = listed[of_listed]
        if j < n and indices[j] <= feature:
            feature, value = indices[j], values[j]
            j += 1
        if of_listed < n_listed and listed[of_listed] == feature:
            of_listed += 1
        value = _scaled_value(value, row[feature, CENTRE], row[feature, UNIT])
        if value != 0.0:
            places[size], z[size] = feature, value
            size += 1
    return Features(places[:size], z[:size])


@subroutine
def _scaled_value(value: float, centre: float, unit: float) -> float:
    """Return (value - centre) / unit, limited to ±LIMIT, or the sign of the value if the unit is 0."""
    if not abs(value) <= VALUE_MAX:
        return value
    if unit == 0.0:
        return 1.0 if value > 0.0 else -1.0 if value < 0.0 else 0.0
    return min(max((value - centre) / unit, -LIMIT), LIMIT)


@subroutine
def _count(x: Features, scales: Scales) -> None:
    """Add an observed context to the moments, and fix a scale after 2ᵏ contexts."""
    (indices, values), counts, moments = x, scales.counts, scales.moments
    for j in range(indices.size):
        value = values[j]
        if value != 0.0 and abs(value) <= VALUE_MAX:
            of = moments[indices[j]]
            of[COUNT] += 1.0
            gap = value - of[MEAN]
            of[MEAN] += gap / of[COUNT]
            of[SQUARES] += gap * (value - of[MEAN])
    counts[OBSERVED] += 1
    n = counts[OBSERVED]
    if n >= FIRST and n & (n - 1) == 0 and counts[VERSIONS] < VERSIONS_MAX:
        _fix(scales)


@subroutine
def _fix(scales: Scales) -> None:
    """Append a scale computed from all observed contexts."""
    counts, moments, rows, centred = scales
    counts[VERSIONS] += 1
    version, n = counts[VERSIONS], float(counts[OBSERVED])
    row, n_centred = rows[version], 0
    for i in range(row.shape[0]):
        count, mean, squares = moments[i, COUNT], moments[i, MEAN], moments[i, SQUARES]
        total = squares + count * mean * mean
        zeros = n - count
        squares += count * mean * mean * zeros / n  # statistics of all n values, including zeros
        row[i, CENTRE] = row[i, UNIT] = 0.0
        if not squares > CONSTANT * CONSTANT * total:
            continue
        if 2.0 * zeros > n:
            row[i, UNIT] = sqrt(total / count)
            continue
        row[i, CENTRE], row[i, UNIT] = mean * count / n, sqrt(squares / n)
        if row[i, CENTRE] != 0.0:
            centred[version, n_centred] = i
            n_centred += 1
    counts[CENTRED + version] = n_centred


@subroutine
def _inside(event: Decided, scales: Scales) -> Decided:
    """Return the event as the inner learner receives it."""
    own = event.scores.size - 1
    z = scaled(event.x, event.scores[own], scales)
    scores = event.scores[:own]
    return Decided(z, event.action, event.greedy, event.propensity, scores, event.reward, event.v, event.label)


# The inner learner's kernels are the globals `predict`, `update`, `observe` and `log`; see `compile_with`.


def _predict(event: Event, model: Model) -> tuple[int, int, float]:
    own = event.scores.size - 1
    event.scores[own] = model.scales.counts[VERSIONS]
    z = scaled(event.x, event.scores[own], model.scales)
    return predict(Event(z, event.u, event.scores[:own], event.eligible), model.inner)  # type: ignore[name-defined,no-any-return] # noqa: F821


def _observe(event: Decided, model: Model) -> None:
    observe(_inside(event, model.scales), model.inner)  # type: ignore[name-defined] # noqa: F821
    _count(event.x, model.scales)


def _update(event: Decided, model: Model) -> bool:
    return update(_inside(event, model.scales), model.inner)  # type: ignore[name-defined,no-any-return] # noqa: F821


def _log(event: Decided, model: Model) -> None:
    log(_inside(event, model.scales), model.inner)  # type: ignore[name-defined] # noqa: F821
