"""A run's error rates: the progressive error and the censored error.

For graded rewards, a decision's *loss* replaces its mistake: 1 minus the reward as a share of the range. A mistake is a
loss of 1, so all figures are computed in the same way. Reports show mean rewards instead of mean losses.

The progressive error compares each decision with the true class as soon as the decision is made. At that point, the
true class is known only in a simulation. The censored error counts a decision once its outcome is known, that is, once
its feedback has arrived or the decision has expired. Feedback after the last decision is excluded.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stream.measures.rates import Rate, rate
from stream.wire.records import Example, Outcome
from stream.wire.rewards import RewardRange

CURVE_POINTS_MAX = 400
"""Number of points to draw. A figure is about 700 px wide, and every point adds 15 bytes to the page."""

WINDOWS_PER_RUN = 20
"""Number of sliding windows that fit into a run. With this number, the curve is smooth but still shows changes."""


class CurvePoint(NamedTuple):
    """The error after a given number of decisions."""

    events: int  # decisions so far
    error_rate: float  # error over these decisions
    window_error_rate: float  # error over the last `Errors.window_events` decisions; nan if there are fewer


class MistakeCurve(Struct, frozen=True):
    """The numbers of mistakes at increasing numbers of decisions, as columns of equal length."""

    events: tuple[int, ...] = ()  # decisions so far
    mistakes: tuple[int | float, ...] = ()  # mistakes, or the sum of losses, among these decisions
    window_mistakes: tuple[int | float | None, ...] = ()  # the same in the window; None if there are fewer decisions


class HalfWidths(Struct, frozen=True):
    """Half-widths of the 95% intervals for a run's rates; nan if there are too few decisions."""

    error_rate: Rate
    error_rate_last_fifth: Rate
    greedy_error_rate: Rate


class Errors(Struct, frozen=True):
    """A run's progressive error: every decision is evaluated before the learner learns from it."""

    mistakes: int | float  # decisions whose action was wrong, or the sum of the losses
    error_rate: Rate  # error of the action; nan if there are no decisions, as for all other rates
    error_rate_last_fifth: Rate  # error of the action over the last fifth of the decisions, rounded up
    greedy_error_rate: Rate  # error of the class with the highest score, where known
    window_events: int
    curve: MistakeCurve
    half_widths: HalfWidths = HalfWidths(math.nan, math.nan, math.nan)

    @property
    def events(self) -> int:
        """The number of decisions."""
        return self.curve.events[-1] if self.curve.events else 0

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The error at increasing numbers of decisions."""
        columns = zip(self.curve.events, self.curve.mistakes, self.curve.window_mistakes, strict=True)
        return tuple(
            CurvePoint(events, mistakes / events, math.nan if recent is None else recent / self.window_events)
            for events, mistakes, recent in columns
        )


class ErrorCurve:
    """Collects a run's mistakes in the order of its decisions.

    A decision uses one byte and takes about 0.1 µs. Use this class for finite runs only, because its memory use grows
    without limit.

    >>> curve = ErrorCurve()
    >>> for mistake in (True, True, False, True, False):
    ...     curve.add(mistake, greedy_mistake=False)
    >>> curve.error_rate, curve.summary().error_rate_last_fifth
    (0.6, 0.0)
    """

    __slots__ = ("_append", "_codes", "mistakes")

    def __init__(self) -> None:
        self._codes = bytearray()  # bit 0: wrong action; bit 1: wrong greedy class; bit 2: greedy class unknown
        self._append = self._codes.append
        self.mistakes = 0

    def __len__(self) -> int:
        """Return the number of decisions so far."""
        return len(self._codes)

    def add(self, mistake: bool, greedy_mistake: bool | None) -> None:
        """Record whether a decision's action and greedy class were wrong; None means unknown."""
        self._append(mistake + (4 if greedy_mistake is None else 2 * greedy_mistake))
        self.mistakes += mistake

    @property
    def error_rate(self) -> float:
        """The error over all decisions so far, or nan if there are none."""
        return rate(self.mistakes, len(self._codes))

    def summary(self) -> Errors:
        """Return the errors so far. More decisions may be added afterwards."""
        # A copy: a view would prevent the bytearray from growing.
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8)
        return _errors((codes & 1).astype(np.int64), ((codes & 2)[codes & 4 == 0] != 0).astype(np.int64))


class LossCurve:
    """Collects a run's losses, in the order of its decisions; see `ErrorCurve`. A decision uses 16 bytes.

    >>> curve = LossCurve()
    >>> for loss in (1.0, 0.5, 0.0):
    ...     curve.add(loss, greedy_loss=None)
    >>> curve.error_rate
    0.5
    """

    __slots__ = ("_greedy", "_losses", "_sum")

    def __init__(self) -> None:
        self._losses, self._greedy, self._sum = array("d"), array("d"), 0.0

    def __len__(self) -> int:
        """Return the number of decisions so far."""
        return len(self._losses)

    def add(self, loss: float, greedy_loss: float | None) -> None:
        """Record the losses of a decision's action and of its greedy class; None means unknown."""
        self._losses.append(loss)
        self._sum += loss
        if greedy_loss is not None:
            self._greedy.append(greedy_loss)

    @property
    def error_rate(self) -> float:
        """The mean loss of all decisions so far, or nan if there are none."""
        return rate(self._sum, len(self._losses))

    def summary(self) -> Errors:
        """Return the losses so far. More decisions may be added afterwards."""
        return _errors(np.array(self._losses), np.array(self._greedy))


def _errors(mistakes: NDArray[Any], greedy: NDArray[Any]) -> Errors:
    """Return the errors of decisions, in order, with these mistakes or losses: int64 or float64.

    `greedy` contains the mistakes of the greedy classes, where known.
    """
    events = mistakes.size
    before = _before(mistakes)
    fifth_starts_at = events * 4 // 5
    window_events = max(1, events // WINDOWS_PER_RUN)
    return Errors(
        mistakes=before[-1].item(),
        error_rate=rate(before[-1].item(), events),
        error_rate_last_fifth=rate((before[-1] - before[fifth_starts_at]).item(), events - fifth_starts_at),
        greedy_error_rate=rate(greedy.sum().item(), greedy.size),
        window_events=window_events,
        curve=_mistake_curve(before, window_events),
        half_widths=HalfWidths(half_width(mistakes), half_width(mistakes[fifth_starts_at:]), half_width(greedy)),
    )


def _before(mistakes: NDArray[Any]) -> NDArray[Any]:
    """Return, for each n from 0, the sum over the first n decisions, in the type of the mistakes."""
    return np.concatenate((np.zeros(1, mistakes.dtype), np.cumsum(mistakes)))


def evaluate(actions: Sequence[int] | NDArray[Any], greedy: Sequence[int] | NDArray[Any], labels: Any) -> Errors:
    """Return the decisions' progressive error, given the true classes. All arguments must have the same length.

    >>> evaluate([0, 1, 1, 2], [0, 1, 1, 1], [0, 1, 2, 2]).error_rate
    0.25
    """
    curve = ErrorCurve()
    for action, best, label in zip(actions, greedy, labels, strict=True):
        curve.add(bool(action != label), bool(best != label))
    return curve.summary()


RESAMPLES = 400
DECISIONS_MIN = 100
"""Minimum number of decisions for which an interval is computed."""


def half_width(mistakes: NDArray[Any]) -> float:
    """Return the half-width of the 95% interval for the mean, from a local block bootstrap.

    Paparoditis, Politis, "Local block bootstrap", Comptes Rendus Mathématique 335, 2002. Blocks of n^(1/3) decisions
    preserve the dependence between neighbours. Each block is replaced by a block that starts at most n/40 decisions
    away. The error decreases during a run, and with more distant blocks, this trend would be treated as noise.

    Args:
        mistakes: 1 or 0, or the loss, for each decision, in order; int64[n] or float64[n].
    """
    n = mistakes.size
    if n < DECISIONS_MIN:
        return math.nan
    length = round(n ** (1 / 3))
    before = _before(mistakes)
    sums = before[length:] - before[:-length]  # sum of each block, indexed by its first decision
    places = np.arange(0, n - length + 1, length)
    draws = np.random.Generator(np.random.PCG64(0))
    reach = n // 40
    means = [
        sums[np.clip(places + draws.integers(-reach, reach + 1, places.size), 0, n - length)].mean() / length
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(high - low) / 2


def _mistake_curve(mistakes_before: NDArray[Any], window_events: int) -> MistakeCurve:
    """Return points, half of them evenly and half geometrically spaced, for linear and logarithmic axes."""
    events = mistakes_before.size - 1
    if events == 0:
        return MistakeCurve()
    half = CURVE_POINTS_MAX // 2
    spaced = np.concatenate((np.geomspace(1, events, half), np.linspace(1, events, half)))
    at = np.unique(np.rint(spaced).astype(np.int64))
    recent = mistakes_before[at] - mistakes_before[np.maximum(at - window_events, 0)]
    few = int(np.searchsorted(at, window_events))  # number of points without a full window
    return MistakeCurve(
        tuple(at.tolist()), tuple(mistakes_before[at].tolist()), (*[None] * few, *recent[few:].tolist())
    )


class MatchedError(NamedTuple):
    """The fraction of decisions with a reward of 0 among those whose feedback arrived in time.

    Used when the true classes are unknown. All other decisions are excluded.
    """

    matched: int
    mistakes: int | float  # matched decisions with a reward of 0, or the sum of the losses
    last_fifth: int  # number of examples in the last fifth, rounded up
    last_fifth_mistakes: int | float
    graded: RewardRange | None = None  # the range of graded rewards

    @property
    def error_rate(self) -> float:
        """The error, or the mean loss, over all matched decisions; nan if there are none."""
        return rate(self.mistakes, self.matched)

    @property
    def error_rate_last_fifth(self) -> float:
        """The error, or the mean loss, over the last fifth; nan if it is empty."""
        return rate(self.last_fifth_mistakes, self.last_fifth)

    @property
    def mean_rewards(self) -> tuple[float, float] | None:
        """The mean reward, over all matched decisions and over the last fifth; None for bits."""
        if self.graded is None:
            return None
        return self.graded.value(1.0 - self.error_rate), self.graded.value(1.0 - self.error_rate_last_fifth)


def matched_error(partitions: Iterable[Iterable[Example]], graded: RewardRange | None = None) -> MatchedError:
    """Return the error over the examples from all partitions. Each partition's examples are in settlement order.

    Memory use is one byte per example of a single partition, or eight bytes with graded rewards. The overall last fifth
    combines those of all partitions.

    >>> wrong, right = (Example("id", Outcome.MATCHED, 1, 0.5, reward, 10, 20, 0) for reward in (0, 1))
    >>> error = matched_error([[wrong, wrong, wrong, wrong, right], [right] * 4 + [wrong]])
    >>> error, error.error_rate, error.error_rate_last_fifth
    (MatchedError(matched=10, mistakes=5, last_fifth=2, last_fifth_mistakes=1, graded=None), 0.5, 0.5)
    """
    parts = []
    for examples in partitions:
        rewards = (example.reward or 0 for example in examples if example.outcome is Outcome.MATCHED)
        losses: Sequence[float]
        if graded is None:
            losses = bytes(reward == 0 for reward in rewards)
        else:
            losses = array("d", (1.0 - graded.share(reward) for reward in rewards))
        last = losses[len(losses) * 4 // 5 :]
        parts.append((len(losses), sum(losses), len(last), sum(last)))
    matched, mistakes, last_fifth, last_fifth_mistakes = map(sum, zip(*parts, strict=True))
    return MatchedError(matched, mistakes, last_fifth, last_fifth_mistakes, graded)


class ShareCurve(Struct, frozen=True):
    """A fraction over a sliding window at increasing numbers of decisions, as columns of equal length."""

    decided: tuple[int, ...] = ()  # decisions up to the end of the window
    share: tuple[float, ...] = ()


SHARE_POINTS_MAX = 200


def exploration(explored: bytes | bytearray) -> ShareCurve:
    """Return the rate of non-greedy actions over a sliding window of the same length as for the recent error.

    Args:
        explored: For each decision, in order, 1 if its action was not the greedy class, otherwise 0.

    >>> exploration(bytes([1, 1, 0, 0]))
    ShareCurve(decided=(1, 2, 3, 4), share=(1.0, 1.0, 0.0, 0.0))
    """
    if not explored:
        return ShareCurve()
    before = np.concatenate(([0], np.cumsum(np.frombuffer(bytes(explored), dtype=np.uint8), dtype=np.int64)))
    window = max(1, len(explored) // WINDOWS_PER_RUN)
    at = np.unique(np.rint(np.linspace(window, len(explored), SHARE_POINTS_MAX)).astype(np.int64))
    return ShareCurve(tuple(at.tolist()), tuple(((before[at] - before[at - window]) / window).tolist()))


def constant_error_rate(labels_per_class: Sequence[int] | NDArray[Any]) -> float:
    """Return the error of always choosing the most frequent class, or nan if there are no labels.

    >>> constant_error_rate([10, 60, 30])
    0.4
    """
    counts = [int(count) for count in labels_per_class]
    return rate(sum(counts) - max(counts, default=0), sum(counts))


class DelayedPoint(NamedTuple):
    """The numbers of known outcomes after a given number of decisions."""

    decided: int
    matched: int  # number of decisions whose feedback had arrived
    mistakes: int | float  # number of matched decisions with a reward of 0, or the sum of their losses
    expired: int
    unmatched: int  # number of unmatched or unshown decisions

    @property
    def error_rate(self) -> float:
        """The error over matched decisions, or nan if there are none."""
        return rate(self.mistakes, self.matched)

    @property
    def expired_rate(self) -> float:
        """The fraction of expired decisions among the matched and expired ones, or nan if there are none."""
        return rate(self.expired, self.matched + self.expired)

    @property
    def outstanding(self) -> int:
        """The number of decisions without a known outcome."""
        return self.decided - self.matched - self.expired - self.unmatched

    def as_json(self) -> dict[str, float]:
        """Return the numbers and the rates as JSON-serializable values."""
        return {**self._asdict(), "outstanding": self.outstanding, "error_rate": self.error_rate}


class DelayedCurve(Struct, frozen=True):
    """The numbers of known outcomes at increasing numbers of decisions: the columns of `DelayedPoint`s."""

    decided: tuple[int, ...] = ()
    matched: tuple[int, ...] = ()
    mistakes: tuple[int | float, ...] = ()
    expired: tuple[int, ...] = ()
    unmatched: tuple[int, ...] = ()

    @property
    def points(self) -> tuple[DelayedPoint, ...]:
        """The rows of the columns."""
        return tuple(map(DelayedPoint, self.decided, self.matched, self.mistakes, self.expired, self.unmatched))


class Settlements:
    """Collects the times and outcomes of settlements, using 9 bytes per settlement, or 17 with graded rewards."""

    def __init__(self, graded: RewardRange | None = None) -> None:
        self._graded = graded
        self._losses = array("d")  # with graded rewards only
        self._known_ms = array("q")
        self._codes = bytearray()

    def take(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Record examples, and yield each one unchanged.

        An example is settled at the append time of its feedback. If the feedback preceded the context, the example is
        settled at the latest append time of the feedback read so far.
        """
        for example in examples:
            self._known_ms.append(example.settled_at_ms)
            if self._graded is None:
                self._codes.append(_code(example))
            else:
                is_matched = example.outcome is Outcome.MATCHED
                self._codes.append(0 if is_matched else _code(example))
                self._losses.append(1.0 - self._graded.share(example.reward or 0.0) if is_matched else 0.0)
            yield example

    def curve(self, decided_ms: Sequence[int]) -> DelayedCurve:
        """Return the numbers of known outcomes after increasing numbers of decisions.

        Args:
            decided_ms: The time of each decision, in any order.
        """
        decided = np.sort(np.asarray(decided_ms, dtype=np.int64))
        if not decided.size:
            return DelayedCurve()
        known_ms = np.frombuffer(self._known_ms, dtype=np.int64)
        order = np.argsort(known_ms, kind="stable")
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8)[order]
        at = _places(decided.size)
        settled = np.searchsorted(known_ms[order], decided[at - 1], side="right")
        wrong, right, expired, unmatched = (_counts(codes == code)[settled] for code in range(4))
        matched = wrong + right
        if self._graded is not None:
            wrong = _before(np.array(self._losses)[order])[settled]
        columns = (at, matched, wrong, expired, unmatched)
        return DelayedCurve(*(tuple(column.tolist()) for column in columns))

    def first_feedback(self, decided_ms: Sequence[int]) -> int | None:
        """Return the number of decisions before the first matched feedback, or None if no feedback was matched.

        Args:
            decided_ms: The time of each decision, in any order.
        """
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8)
        matched_ms = np.frombuffer(self._known_ms, dtype=np.int64)[codes <= 1]
        if not matched_ms.size:
            return None
        return int(np.count_nonzero(np.asarray(decided_ms, dtype=np.int64) <= matched_ms.min()))


def _code(example: Example) -> int:
    if example.outcome is Outcome.MATCHED:
        return int(example.reward or 0)
    return 2 if example.outcome is Outcome.EXPIRED else 3


def _counts(which: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, for each n from 0, the number of true values among the first n."""
    return np.concatenate(([0], np.cumsum(which, dtype=np.int64)))


def _places(decisions: int) -> NDArray[np.int64]:
    """Return the numbers of decisions at which the curve has points, including the last."""
    return np.unique(np.rint(np.linspace(1, decisions, CURVE_POINTS_MAX)).astype(np.int64))
