"""The checks in a pass over a log: classes, rewards, values, and the order of times and ids across rows."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import DatasetError
from producers.datasets.log import MISSING
from producers.datasets.logs.columns import TEXT_OR_NUMBER
from producers.datasets.logs.encoding import overflowing_rows
from producers.datasets.logs.offered import check_offered, eligible_places, problems_of_decisions
from producers.datasets.logs.parsed import FeatureEntries, Lists, Offered, ParsedBatch, Problem, Texts, problem
from producers.datasets.logs.seen_ids import SeenIds
from producers.datasets.logs.streams import CutOffError
from stream.estimating.rows import Eligible
from stream.settings.values import OnBadRow
from stream.wire.actions import ACTIONS_MAX
from stream.wire.named_features import EXACT_BELOW, FeatureEncoder, Kind, text_of
from stream.wire.records import FloatArray
from stream.wire.rewards import RewardRange

CUT_OFF = "the rest of the file: damaged or truncated"

_ENDLESS = ("features: expected a finite sum of the numbers with the same index", "a value beyond float64")


class Options(NamedTuple):
    """Options of the checks."""

    name: str  # the log's name
    id_field: str
    on_bad_row: OnBadRow
    reward_above: float | None
    graded: RewardRange | None = None  # the range of graded rewards; None for bits


class Meaning(NamedTuple):
    """What a first pass has found out. Without it, the first pass accepts all classes."""

    class_of: Mapping[str, int] | None = None
    is_given: bool = False  # whether the user listed the classes, so that others are unknown in the first pass too
    encoder: FeatureEncoder | None = None
    kinds: Mapping[str, Kind] = {}
    action_encoder: FeatureEncoder | None = None
    action_kinds: Mapping[str, Kind] = {}
    places: int = ACTIONS_MAX  # maximum number of actions of a decision


class CheckedBatch(NamedTuple):
    """A batch with its classes, its rewards, and a mask of its usable rows."""

    batch: ParsedBatch
    kept: NDArray[np.bool_]
    ids: list[str]
    labels: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: FloatArray  # NaN if there is no outcome
    eligible: Eligible | None
    baselines: NDArray[np.int64] | None


class Checks:
    """The checks in one pass, and the number of rows that they left out."""

    def __init__(self, options: Options) -> None:
        self.skipped: dict[str, int] = {}  # number of rows, by reason
        self.first_skipped: dict[str, str] = {}  # position and value of the first row, by reason
        self._options = options
        self._seen = SeenIds()
        self._latest_ms = MISSING

    def apply(self, batches: Iterator[ParsedBatch], meaning: Meaning) -> Iterator[CheckedBatch]:
        """Check the batches.

        Raises:
            DatasetError: a row is invalid and invalid rows are not skipped, or the file cannot be read.
        """
        while True:
            try:
                batch = next(batches, None)
            except CutOffError:
                if self._options.on_bad_row == "stop":
                    raise
                self._count(CUT_OFF)
                return
            if batch is None:
                return
            yield self._checked(batch, meaning)

    def _checked(self, batch: ParsedBatch, meaning: Meaning) -> CheckedBatch:
        problems = list(batch.problems)
        unknown: list[Problem] = []
        class_of = _classes_in(batch) if meaning.class_of is None else meaning.class_of
        labels = _classes(batch.labels, batch.n, class_of, "label", unknown)
        actions = _classes(batch.actions, batch.n, class_of, "action", unknown)
        baselines = None
        if batch.baselines is not None:
            baselines = _classes(batch.baselines, batch.n, class_of, "baseline", unknown)
        eligible = _eligible(batch.eligible, actions, class_of, problems, unknown)
        if batch.offered is not None:
            actions, baselines, eligible = _offer(batch.offered, meaning, problems)
        if meaning.is_given:
            problems += unknown
        rewards = self._rewards(batch, problems)
        _check_kinds(batch.features, meaning.kinds, problems)
        problems += [Problem(row, *_ENDLESS) for row in overflowing_rows(meaning.encoder, batch.n, batch.features)]
        first_problems: dict[int, Problem] = {}
        for one in problems:
            first_problems.setdefault(one.row, one)
        self._check_times(batch, first_problems)
        ids = self._ids(batch, first_problems)
        for one in unknown:  # if the classes are not given, the first pass left out the row for another reason
            first_problems.setdefault(one.row, one)
        return CheckedBatch(
            batch, self._kept(batch, first_problems), ids, labels, actions, rewards, eligible, baselines
        )

    def _kept(self, batch: ParsedBatch, first_problems: Mapping[int, Problem]) -> NDArray[np.bool_]:
        """Return a mask of the usable rows. Count the problems in the other rows, or raise an error."""
        kept = np.ones(batch.n, np.bool_)
        for row in batch.left_out:
            kept[row.row] = False
            self._leave_out(batch, row)
        bad = [row for row in sorted(first_problems.values()) if kept[row.row]]
        if bad and self._options.on_bad_row == "stop":
            first = bad[0]
            hint = 'correct the row, or set on_bad_row = "skip" to skip invalid rows'
            where = f"{self._options.name}, {batch.where(first.row)}"
            raise DatasetError(f"{where}, {first.reason}; got {first.got}: {hint}")
        for row in bad:
            kept[row.row] = False
            self._leave_out(batch, row)
        return kept

    def _leave_out(self, batch: ParsedBatch, row: Problem) -> None:
        if row.reason not in self.skipped:
            self.first_skipped[row.reason] = batch.where(row.row) + (row.got and f"; got {row.got}")
        self._count(row.reason)

    def _count(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _rewards(self, batch: ParsedBatch, problems: list[Problem]) -> FloatArray:
        rewards, reward_above, graded = batch.rewards, self._options.reward_above, self._options.graded
        if rewards is None:
            return np.full(batch.n, np.nan)
        there = ~np.isnan(rewards)
        if reward_above is not None:
            return np.where(there, rewards > reward_above, np.nan)
        if graded is None:
            expected = "0 or 1 (or set reward_above, or rewards=graded)"
            is_odd = (rewards != 0.0) & (rewards != 1.0)
        else:
            expected = f"a number from {graded.low:g} to {graded.high:g} (or set reward_range)"
            is_odd = (rewards < graded.low) | (rewards > graded.high)
        odd = np.flatnonzero(there & is_odd)
        problems.extend(problem(row, "reward", expected, float(rewards[row])) for row in odd.tolist())
        return rewards + 0.0  # -0.0 becomes 0.0

    def _check_times(self, batch: ParsedBatch, first_problems: dict[int, Problem]) -> None:
        if batch.decided_at_ms is None:
            return
        good = _good(batch, first_problems)
        times = batch.decided_at_ms[good]
        latest = np.maximum.accumulate(np.concatenate([[self._latest_ms], times]))
        for place in np.flatnonzero((times != MISSING) & (times < latest[:-1])).tolist():
            row = int(good[place])
            back_ms = int(latest[place] - times[place])
            expected = "non-decreasing times; sort the rows by time"
            got = f"a time {back_ms} ms before the time of an earlier row"
            first_problems[row] = problem(row, "timestamp", expected, got)
        self._latest_ms = int(latest[-1])

    def _ids(self, batch: ParsedBatch, first_problems: dict[int, Problem]) -> list[str]:
        if batch.ids is None:
            first = batch.first_row
            return [f"{self._options.name}-{row:06}" for row in range(first, first + batch.n)]
        ids = [one or "" for one in batch.ids.to_list()]
        good = _good(batch, first_problems)
        given = [ids[row] for row in good.tolist()]
        if given:
            for place in np.flatnonzero(self._seen.repeated(given)).tolist():
                row = int(good[place])
                first_problems[row] = problem(row, self._options.id_field, "a unique id", given[place])
        return ids


def _offer(
    offered: Offered, meaning: Meaning, problems: list[Problem]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Eligible]:
    """Check the actions. Return the places of the played and the baseline actions, and of the eligible ones."""
    check_offered(offered, meaning.places, problems)
    of_actions: list[Problem] = []
    _check_kinds(offered.features, meaning.action_kinds, of_actions)
    endless = overflowing_rows(meaning.action_encoder, len(offered.ids), offered.features)
    of_actions += [Problem(action, *_ENDLESS) for action in endless]
    problems += problems_of_decisions(offered, of_actions)
    return offered.played, offered.baselines, eligible_places(offered)


def _good(batch: ParsedBatch, first_problems: Mapping[int, Problem]) -> NDArray[np.int64]:
    """Return the rows without a problem so far."""
    odd = first_problems.keys() | {one.row for one in batch.left_out}
    good = np.ones(batch.n, np.bool_)
    good[list(odd)] = False
    return np.flatnonzero(good)


def _classes_in(batch: ParsedBatch) -> dict[str, int]:
    """Return numbers for the classes in a batch, as long as the classes of the log are not known."""
    texts = [one.distinct for one in (batch.labels, batch.actions, batch.baselines) if one is not None]
    lists = [] if batch.eligible is None else batch.eligible.distinct
    return {name: k for k, name in enumerate(dict.fromkeys(chain(*texts, *lists)))}


def _classes(
    names: Texts | None, n: int, class_of: Mapping[str, int], role: str, unknown: list[Problem]
) -> NDArray[np.int64]:
    if names is None:
        return np.full(n, MISSING, np.int64)
    no_class = -2
    found = np.array([*(class_of.get(name, no_class) for name in names.distinct), MISSING])[names.codes]
    expected = f"one of the {len(class_of)} classes"
    odd = np.flatnonzero(found == no_class).tolist()
    unknown.extend(problem(row, role, expected, names[row]) for row in odd)
    return found


def _eligible(
    lists: Lists | None,
    actions: NDArray[np.int64],
    class_of: Mapping[str, int],
    problems: list[Problem],
    unknown: list[Problem],
) -> Eligible | None:
    if lists is None:
        return None
    sets = [sorted(class_of.get(name, MISSING) for name in names) for names in lists.distinct]
    invalid = {code for code, one in enumerate(sets) if not one or one[0] == MISSING or len(set(one)) < len(one)}
    unlisted = {MISSING, *invalid}
    listed = [[] if code in unlisted else sets[code] for code in lists.codes.tolist()]
    for row, (code, one, action) in enumerate(zip(lists.codes.tolist(), listed, actions.tolist(), strict=True)):
        if code in invalid:
            expected = f"one or more of the {len(class_of)} classes, without duplicates"
        elif one and action >= 0 and action not in one:
            expected = "classes that include the played class"
        else:
            continue
        has_unknown = any(name not in class_of for name in lists.distinct[code])
        found = unknown if has_unknown else problems
        found.append(problem(row, "eligible", expected, list(lists.distinct[code])))
    return Eligible.of_lists(listed)


def _check_kinds(features: tuple[FeatureEntries, ...], kinds: Mapping[str, Kind], problems: list[Problem]) -> None:
    """Report strings in numeric features, and numbers that cannot be categories."""
    for feature in features:
        kind = kinds.get(feature.name)
        if kind is Kind.NUMERIC and feature.texts is not None:
            expected = "a finite number, as in nearly all rows"
            got = feature.texts.to_list()
            problems.extend(problem(row, feature.name, expected, got[j]) for j, row in enumerate(feature.rows.tolist()))
        elif kind not in (None, Kind.NUMERIC) and feature.given is not None and feature.numbers is not None:
            large = np.flatnonzero(np.abs(feature.numbers) >= EXACT_BELOW).tolist()
            problems.extend(
                problem(int(feature.rows[j]), feature.name, TEXT_OR_NUMBER, feature.given[j])
                for j in large
                if text_of(feature.given[j]) is None
            )
