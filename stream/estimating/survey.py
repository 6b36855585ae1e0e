"""The first reading of a log: what it holds, what is wrong with its propensities, and whose feedback is missing."""

from collections.abc import Iterable, Iterator
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from stream.estimating.reward_model import RewardModel
from stream.estimating.rows import Chunk

FOLDS = 5

P_VALUE_MIN = 0.001
"""A test flags what chance does less often: several are made of every log."""

EXPECTED_MIN = 5.0
"""Classes of which the chi-squared test expects fewer are thrown together (Cochran 1954)."""

UNIFORM_WITHIN = 0.01
"""A propensity is 1/K within this share of it: logs write .333 for a third."""


class Flag(NamedTuple):
    """Something about a log, or about a policy on it, that whoever reads the estimates has to know."""

    name: str
    text: str


class Survey(NamedTuple):
    """What a log holds."""

    events: int
    judged: int  # of them say an action and its outcome
    weighted: int  # of these have a propensity above 0, and 1 at most
    propensity_min: float  # of these; NaN: there is none
    has_delays: bool
    has_times: bool
    flags: tuple[Flag, ...]
    reward_model: RewardModel  # fitted, by fold


def survey(chunks: Iterable[Chunk], n_features: int, n_classes: int) -> Survey:
    """Read a log through."""
    reward_model = RewardModel(n_features, n_classes, FOLDS)
    counts = _Counts(n_classes)
    for chunk in chunks:
        counts.add(chunk)
        rows = np.flatnonzero(chunk.judged)
        if rows.size:
            z = reward_model.features(chunk)[rows]
            reward_model.add(z, chunk.actions[rows], chunk.rewards[rows], chunk.folds(FOLDS)[rows])
    reward_model.fit()
    return Survey(
        events=counts.events,
        judged=counts.judged,
        weighted=counts.weighted,
        propensity_min=counts.least if counts.weighted else float("nan"),
        has_delays=counts.has_delays,
        has_times=counts.has_times,
        flags=tuple(counts.flags()),
        reward_model=reward_model,
    )


class _Counts:
    """What is counted while a log is read."""

    def __init__(self, n_classes: int) -> None:
        self.events = self.judged = self.weighted = 0
        self.without_action = self.missing = self.zero = self.above_one = 0
        self.least, self.largest = 1.0, 0.0
        self.by_action = np.zeros((n_classes, 2), np.int64)  # without an outcome, and with one
        self.by_label = np.zeros((n_classes, 2), np.int64)
        self.has_delays = self.has_times = False

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
        known = (chunk.rewards >= 0).astype(np.int64)
        np.add.at(self.by_action, (chunk.actions[acted], known[acted]), 1)
        labelled = acted & (chunk.labels >= 0)
        np.add.at(self.by_label, (chunk.labels[labelled], known[labelled]), 1)
        self.has_delays |= bool((chunk.delays_ms >= 0).any())
        self.has_times |= bool((chunk.decided_at_ms >= 0).any())

    def flags(self) -> Iterator[Flag]:
        of = f"of {self.events:,} events"
        no_outcome = self.events - self.judged - self.without_action
        if self.without_action:
            yield Flag("action-missing", f"{self.without_action:,} {of} say no action; they are left out")
        if no_outcome:
            yield Flag("outcome-missing", f"{no_outcome:,} {of} have no outcome; the estimates are over the others")
        for name, count, what in (
            ("propensity-missing", self.missing, "no propensity"),
            ("propensity-zero", self.zero, "a propensity of 0 or less"),
            ("propensity-above-one", self.above_one, "a propensity above 1"),
        ):
            if count:
                yield Flag(name, f"{count:,} {of} have {what}: no weight can be made of it")
        if self.weighted > 1 and self.least == self.largest:
            classes = self.by_action.shape[0]
            told = (
                "right if classes were played uniformly"
                if abs(self.least * classes - 1.0) < UNIFORM_WITHIN
                else "hardly right"
            )
            yield Flag("propensity-constant", f"every propensity is {self.least:g}, of {classes} classes: {told}")
        for name, table, what in (
            ("censoring-by-action", self.by_action, "on the action"),
            ("censoring-by-class", self.by_label, "on the class"),
        ):
            p_value = independence(table)
            if p_value < P_VALUE_MIN:
                yield Flag(
                    name, f"whether an outcome is known depends {what} (chi-squared, p = {p_value:.2g}): biased by it"
                )


def independence(table: NDArray[np.int64]) -> float:
    """The p-value of Pearson's chi-squared test that rows [K] and columns [2] of counts do not depend on each other.

    Rows of which fewer than 5 are expected in a column are thrown together; 1 where nothing can be tested.
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


def mean_of_weights(n: int, mean: float, variance: float) -> float:
    """The p-value of the test that the weights' mean is 1, as right propensities make it; by a normal law."""
    if n < 2 or variance <= 0.0:
        return 1.0 if n == 0 or abs(mean - 1.0) < 1e-9 else 0.0
    return float(erfc(abs(mean - 1.0) / sqrt(2.0 * variance / n)))


def effective_sample_size(weight_sum: float, square_sum: float) -> float:
    """(Σw)²/Σw²; 0 without weights."""
    return weight_sum * weight_sum / square_sum if square_sum > 0.0 else 0.0
