"""The first pass over a log. It summarises the log, and flags suspicious propensities and missing feedback."""

from collections.abc import Iterable, Iterator
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from stream.estimating.live_results import Flag
from stream.estimating.reward_model import RewardModel, reward_model
from stream.estimating.rows import Chunk
from stream.wire.actions import ActionBlocks
from stream.wire.records import FloatArray

FOLDS = 5

P_VALUE_MIN = 0.001
"""Significance level of the tests. It is low because each log is subject to several tests."""

EXPECTED_MIN = 5.0
"""Classes with a smaller expected count are merged for the chi-squared test (Cochran 1954)."""

UNIFORM_WITHIN = 0.01
"""Relative tolerance for a propensity of 1/K; for example, a log may round 1/3 to 0.333."""


ROUNDED_DIGITS = range(3, 7)
"""Numbers of decimal places, and of significant digits, to which a log may round its propensities."""

FLOAT32_ERROR = 1e-7
"""Relative error of a propensity that was rounded to float32."""


class Rounding(NamedTuple):
    """The largest possible rounding error of a propensity: absolute, and relative to the propensity."""

    absolute: float
    relative: float

    def errors(self, propensities: FloatArray) -> FloatArray:
        """Return the largest possible relative error of each propensity and, to first order, of its weight."""
        return self.absolute / propensities + self.relative


class Survey(NamedTuple):
    """A summary of a log's contents."""

    events: int
    judged: int  # number of events with an action and an outcome
    weighted: int  # number of these events with a propensity in (0, 1]
    propensity_min: float  # smallest of these propensities; NaN if there are none
    rounding: Rounding  # how these propensities are rounded
    has_delays: bool
    has_times: bool
    has_eligible: bool  # True if any decision lists its eligible classes
    classes_min: int  # smallest number of eligible classes for a decision
    classes_max: int  # largest number of eligible classes for a decision
    flags: tuple[Flag, ...]
    reward_model: RewardModel  # the reward model, fitted per fold


def survey(chunks: Iterable[Chunk], n_features: int, n_classes: int, blocks: ActionBlocks | None = None) -> Survey:
    """Read a log to its end and return a summary of its contents.

    Args:
        chunks: The log.
        n_features: The number of features d.
        n_classes: The number of classes K.
        blocks: The layout of x; None if the decisions are among classes.
    """
    model = reward_model(n_features, n_classes, blocks, FOLDS)
    counts = _Counts(n_classes, "classes" if blocks is None else "actions")
    for chunk in chunks:
        counts.add(chunk)
        rows = np.flatnonzero(chunk.judged)
        if rows.size:
            z = model.features(chunk)[rows]
            model.add(z, chunk.actions[rows], chunk.rewards[rows], chunk.folds(FOLDS)[rows])
    model.fit()
    return Survey(
        events=counts.events,
        judged=counts.judged,
        weighted=counts.weighted,
        propensity_min=counts.least if counts.weighted else float("nan"),
        rounding=counts.rounding,
        has_delays=counts.has_delays,
        has_times=counts.has_times,
        has_eligible=counts.has_eligible,
        classes_min=counts.classes_min,
        classes_max=counts.classes_max,
        flags=tuple(counts.flags()),
        reward_model=model,
    )


class _Counts:
    """Counters for a pass over a log."""

    def __init__(self, n_classes: int, choices: str) -> None:
        self.events = self.judged = self.weighted = 0
        self.without_action = self.missing = self.zero = self.above_one = 0
        self.least, self.largest = 1.0, 0.0
        self._decimals, self._digits = set(ROUNDED_DIGITS), set(ROUNDED_DIGITS)  # possible so far
        self.by_action = np.zeros((n_classes, 2), np.int64)  # columns: number of events without and with an outcome
        self.by_label = np.zeros((n_classes, 2), np.int64)
        self.has_delays = self.has_times = self.has_eligible = False
        self._n_classes = self.classes_min = n_classes
        self._choices = choices  # a word for messages
        self.classes_max = 0

    def add(self, chunk: Chunk) -> None:
        acted = chunk.actions >= 0
        propensities = chunk.propensities[acted]
        self.events += len(chunk.ids)
        self.judged += int(chunk.judged.sum())
        self.without_action += int((~acted).sum())
        self.missing += int(np.isnan(propensities).sum())
        self.zero += int((propensities <= 0.0).sum())
        self.above_one += int((propensities > 1.0).sum())
        used = chunk.propensities[chunk.weighted]
        self.weighted += used.size
        self.least = float(used.min(initial=self.least))
        self.largest = float(used.max(initial=self.largest))
        self._decimals = {k for k in self._decimals if _are_equal(np.round(used, k), used)}
        self._digits = {k for k in self._digits if _are_equal(_to_digits(used, k), used)}
        known = (~np.isnan(chunk.rewards)).astype(np.int64)
        np.add.at(self.by_action, (chunk.actions[acted], known[acted]), 1)
        labelled = acted & (chunk.labels >= 0)
        np.add.at(self.by_label, (chunk.labels[labelled], known[labelled]), 1)
        self.has_delays |= bool((chunk.delays_ms >= 0).any())
        self.has_times |= bool((chunk.decided_at_ms >= 0).any())
        if chunk.eligible is None:
            self.classes_max = self._n_classes
        else:
            sizes = chunk.eligible.counts(self._n_classes)
            self.has_eligible |= chunk.eligible.classes.size > 0
            self.classes_min = int(sizes.min(initial=self.classes_min))
            self.classes_max = int(sizes.max(initial=self.classes_max))

    @property
    def rounding(self) -> Rounding:
        """The coarsest rounding that all propensities are consistent with."""
        if self._decimals:
            return Rounding(0.5 * 10.0 ** -min(self._decimals), FLOAT32_ERROR)
        if self._digits:
            return Rounding(0.0, 0.5 * 10.0 ** (1 - min(self._digits)))
        return Rounding(0.0, FLOAT32_ERROR)

    def flags(self) -> Iterator[Flag]:
        of = f"of {self.events:,} events"
        no_outcome = self.events - self.judged - self.without_action
        if self.without_action:
            yield Flag("action-missing", f"{self.without_action:,} {of} have no action; they are excluded")
        if no_outcome:
            yield Flag("outcome-missing", f"{no_outcome:,} {of} have no outcome; the estimates are based on the others")
        for name, count, what in (
            ("propensity-missing", self.missing, "no propensity"),
            ("propensity-zero", self.zero, "a propensity of 0 or less"),
            ("propensity-above-one", self.above_one, "a propensity above 1"),
        ):
            if count:
                yield Flag(name, f"{count:,} {of} have {what}; no weight can be computed")
        if self.weighted > 1 and self.least == self.largest:
            low, high = self.classes_min, self.classes_max
            is_uniform = low == high and abs(self.least * high - 1.0) < UNIFORM_WITHIN
            verdict = "plausible only for uniform play" if is_uniform else "implausible"
            among = f"{high} {self._choices}" if low == high else f"{low} to {high} eligible {self._choices}"
            yield Flag("propensity-constant", f"every propensity is {self.least:g} with {among}: {verdict}")
        for name, table, what in (
            ("censoring-by-action", self.by_action, "on the action"),
            ("censoring-by-class", self.by_label, "on the class"),
        ):
            p_value = independence(table)
            if p_value < P_VALUE_MIN:
                yield Flag(
                    name, f"missing outcomes depend {what} (chi-squared, p = {p_value:.2g}); the estimates are biased"
                )


def independence(table: NDArray[np.int64]) -> float:
    """Return the p-value of Pearson's chi-squared test of independence for a table of counts with two columns, [K, 2].

    Rows with an expected count below 5 are merged. The result is 1 if no test is possible.
    """
    rows = table[table.sum(axis=1) > 0]
    total = rows.sum()
    if total == 0 or (rows.sum(axis=0) == 0).any():
        return 1.0
    expected_least = rows.sum(axis=1) * rows.sum(axis=0).min() / total
    large = expected_least >= EXPECTED_MIN
    pooled = np.vstack((rows[large], rows[~large].sum(axis=0)[None, :])) if not large.all() else rows
    pooled = pooled[pooled.sum(axis=1) > 0]
    if pooled.shape[0] < 2:
        return 1.0
    expected = np.outer(pooled.sum(axis=1), pooled.sum(axis=0)) / total
    return float(chdtrc(pooled.shape[0] - 1, ((pooled - expected) ** 2 / expected).sum()))


def _to_digits(numbers: FloatArray, digits: int) -> FloatArray:
    """Round positive numbers to significant digits."""
    units = 10.0 ** (np.floor(np.log10(np.maximum(numbers, np.finfo(np.float64).tiny))) - digits + 1)
    return np.round(numbers / units) * units


def _are_equal(rounded: FloatArray, numbers: FloatArray) -> bool:
    return bool((np.abs(rounded - numbers) <= FLOAT32_ERROR * numbers).all())


def mean_of_weights(n: int, mean: float, variance: float, rounding: float = FLOAT32_ERROR) -> float:
    """Return the p-value (normal approximation) of the hypothesis that the mean weight is 1, as it should be.

    Args:
        n: The number of weights.
        mean: Their mean.
        variance: Their variance.
        rounding: How much the mean may differ from 1 because propensities are rounded.
    """
    distance = max(abs(mean - 1.0) - rounding, 0.0)
    if n < 2 or variance <= 0.0:
        return 1.0 if n == 0 or distance == 0.0 else 0.0
    return float(erfc(distance / sqrt(2.0 * variance / n)))


def effective_sample_size(weight_sum: float, square_sum: float) -> float:
    """Return (Σw)²/Σw², or 0 if there are no weights."""
    return weight_sum * weight_sum / square_sum if square_sum > 0.0 else 0.0
