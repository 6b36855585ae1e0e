"""The error of a run, as numbers: progressive, and as far as it could be known at the time.

The progressive error judges each decision as it was made, by the true class, which only a simulation knows then. With
true censoring a decision counts from the time on at which its bit could be known: a matched decision from its feedback
on, an expired one from its expiry on. Of what is still outstanding when the last decision is made no bit is shown at
all, although it came afterwards.

"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.wire.events import Example, Outcome

CURVE_POINTS_MAX = 400
"""Points kept for drawing: a figure is some 700 px wide, and every point costs 15 bytes of the page."""

WINDOWS_PER_RUN = 20
"""The sliding window is this part of the run: long enough to be smooth, short enough to show a change."""


class CurvePoint(NamedTuple):
    """The error as it stood after some number of decisions."""

    events: int  # decisions so far
    error_rate: float  # over all decisions so far
    window_error_rate: float  # over the last `Errors.window_events` decisions; nan before there are so many


class HalfWidths(NamedTuple):
    """Halves of the 95 % intervals of the rates of one run; nan for too few decisions."""

    error_rate: float
    error_rate_last_fifth: float
    greedy_error_rate: float


class Errors(NamedTuple):
    """The progressive error of a run: every decision is judged as it was made, before anything was learned from it."""

    events: int
    mistakes: int  # decisions whose action was wrong
    error_rate: float  # nan without a decision, as all rates here
    error_rate_last_fifth: float  # of the action, over the last fifth of the decisions, rounded up
    greedy_error_rate: float  # of the class with the highest score, where it could be judged
    window_events: int
    points: tuple[CurvePoint, ...]
    half_widths: HalfWidths = HalfWidths(math.nan, math.nan, math.nan)


class ErrorCurve:
    """Collects the mistakes of one run, in the order of the decisions: one byte and some 0.1 µs for each.

    For runs that end; a program that runs for ever counts with something bounded.

    >>> curve = ErrorCurve()
    >>> for mistake in (True, True, False, True, False):
    ...     curve.add(mistake, greedy_mistake=False)
    >>> curve.error_rate, curve.summary().error_rate_last_fifth
    (0.6, 0.0)
    """

    __slots__ = ("_append", "_codes", "mistakes")

    def __init__(self) -> None:
        self._codes = bytearray()  # bit 0: the action was wrong; bit 1: the greedy class was; bit 2: nobody knows of it
        self._append = self._codes.append
        self.mistakes = 0

    def __len__(self) -> int:
        """Decisions so far."""
        return len(self._codes)

    def add(self, mistake: bool, greedy_mistake: bool | None) -> None:
        """Take in the next decision: was its action wrong, and would the greedy class have been; None: nobody knows."""
        self._append(mistake + (4 if greedy_mistake is None else 2 * greedy_mistake))
        self.mistakes += mistake

    @property
    def error_rate(self) -> float:
        """The error of all decisions so far; nan before the first."""
        return _rate(self.mistakes, len(self._codes))

    def summary(self) -> Errors:
        """The figures of the run so far; more may be added afterwards."""
        # A copy: a view would keep the bytearray from growing for as long as it lives.
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8)
        events = codes.size
        mistakes_before = np.concatenate(([0], np.cumsum(codes & 1, dtype=np.int64)))  # int64[events + 1]
        fifth_starts_at = events * 4 // 5
        fifth_mistakes = int(mistakes_before[-1] - mistakes_before[fifth_starts_at])
        window_events = max(1, events // WINDOWS_PER_RUN)
        return Errors(
            events=events,
            mistakes=int(mistakes_before[-1]),
            error_rate=_rate(int(mistakes_before[-1]), events),
            error_rate_last_fifth=_rate(fifth_mistakes, events - fifth_starts_at),
            greedy_error_rate=_rate(int(np.count_nonzero(codes & 2)), int(np.count_nonzero(codes & 4 == 0))),
            window_events=window_events,
            points=_points(mistakes_before, window_events),
            half_widths=HalfWidths(
                half_width(codes & 1),
                half_width(codes[fifth_starts_at:] & 1),
                half_width((codes & 2)[codes & 4 == 0] != 0),
            ),
        )


def evaluate(actions: Sequence[int] | NDArray[Any], greedy: Sequence[int] | NDArray[Any], labels: Any) -> Errors:
    """The progressive error of decisions in their order, judged by the true classes; all three of one length.

    >>> evaluate([0, 1, 1, 2], [0, 1, 1, 1], [0, 1, 2, 2]).error_rate
    0.25
    """
    curve = ErrorCurve()
    for action, best, label in zip(actions, greedy, labels, strict=True):
        curve.add(bool(action != label), bool(best != label))
    return curve.summary()


RESAMPLES = 400
DECISIONS_MIN = 100
"""An interval of fewer decisions would be a guess."""


def half_width(mistakes: NDArray[Any]) -> float:
    """Half of the 95 % interval of the mean of decisions in their order, by a local block bootstrap.

    Paparoditis, Politis, "Local block bootstrap", Comptes Rendus Mathématique 335, 2002. Blocks of n^(1/3) decisions
    keep the dependence between neighbours. Each is replaced by one that begins within n/40 decisions: the error falls
    along a run, and blocks from anywhere would count that as noise.

    Args:
        mistakes: of each decision, 1 or 0; [n].
    """
    n = mistakes.size
    if n < DECISIONS_MIN:
        return math.nan
    length = round(n ** (1 / 3))
    before = np.concatenate(([0], np.cumsum(mistakes, dtype=np.int64)))
    sums = before[length:] - before[:-length]  # by the block's first decision
    places = np.arange(0, n - length + 1, length)
    draws = np.random.Generator(np.random.PCG64(0))
    reach = n // 40
    means = [
        sums[np.clip(places + draws.integers(-reach, reach + 1, places.size), 0, n - length)].mean() / length
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(high - low) / 2


def _points(mistakes_before: NDArray[np.int64], window_events: int) -> tuple[CurvePoint, ...]:
    """Points spaced both evenly and geometrically, so that the curve is smooth on a linear and on a log axis."""
    events = mistakes_before.size - 1
    if events == 0:
        return ()
    half = CURVE_POINTS_MAX // 2
    spaced = np.concatenate((np.geomspace(1, events, half), np.linspace(1, events, half)))
    at = np.unique(np.rint(spaced).astype(np.int64))
    overall = mistakes_before[at] / at
    window_starts_at = np.maximum(at - window_events, 0)
    window = (mistakes_before[at] - mistakes_before[window_starts_at]) / window_events
    window[at < window_events] = np.nan
    return tuple(map(CurvePoint, at.tolist(), overall.tolist(), window.tolist()))


class MatchedError(NamedTuple):
    """The error as feedback tells it: the share of reward 0 among the decisions whose feedback came in time.

    Where the true classes are not known, no more can be said. Decisions without feedback in time are not in it.
    """

    matched: int
    mistakes: int  # those of them with reward 0
    last_fifth: int  # how many the last fifth of them are, rounded up
    last_fifth_mistakes: int

    @property
    def error_rate(self) -> float:
        """Of all of them; nan without any."""
        return _rate(self.mistakes, self.matched)

    @property
    def error_rate_last_fifth(self) -> float:
        """Of the last fifth of them; nan without any."""
        return _rate(self.last_fifth_mistakes, self.last_fifth)


def matched_error(partitions: Iterable[Iterable[Example]]) -> MatchedError:
    """The error over all examples, those of each partition in the order in which they were settled.

    One byte is kept for each example of a partition. The last fifth is that of every partition.

    >>> wrong, right = (Example("id", Outcome.MATCHED, 1, 0.5, reward, 10, 20) for reward in (0, 1))
    >>> error = matched_error([[wrong, wrong, wrong, wrong, right], [right] * 4 + [wrong]])
    >>> error, error.error_rate, error.error_rate_last_fifth
    (MatchedError(matched=10, mistakes=5, last_fifth=2, last_fifth_mistakes=1), 0.5, 0.5)
    """
    parts = []
    for examples in partitions:
        rewards = bytes(example.reward or 0 for example in examples if example.outcome is Outcome.MATCHED)
        last = rewards[len(rewards) * 4 // 5 :]
        parts.append(MatchedError(len(rewards), rewards.count(0), len(last), last.count(0)))
    return MatchedError(*map(sum, zip(*parts, strict=True)))


class SharePoint(NamedTuple):
    """A share among the last decisions, as it stood after some number of them."""

    decided: int
    share: float


SHARE_POINTS_MAX = 200


def exploration(explored: bytes | bytearray) -> tuple[SharePoint, ...]:
    """How often the action was not the greedy class, over the sliding window of the recent error.

    Args:
        explored: for each decision, in their order, 1 if its action was not the greedy class, and 0 if it was.

    >>> exploration(bytes([1, 1, 0, 0]))[-1]
    SharePoint(decided=4, share=0.0)
    """
    if not explored:
        return ()
    before = np.concatenate(([0], np.cumsum(np.frombuffer(bytes(explored), dtype=np.uint8), dtype=np.int64)))
    window = max(1, len(explored) // WINDOWS_PER_RUN)
    at = np.unique(np.rint(np.linspace(window, len(explored), SHARE_POINTS_MAX)).astype(np.int64))
    return tuple(map(SharePoint, at.tolist(), ((before[at] - before[at - window]) / window).tolist()))


def constant_error_rate(labels_per_class: Sequence[int] | NDArray[Any]) -> float:
    """The error of the best constant answer, the most frequent class; nan without labels.

    >>> constant_error_rate([10, 60, 30])
    0.4
    """
    counts = [int(count) for count in labels_per_class]
    return _rate(sum(counts) - max(counts, default=0), sum(counts))


def _rate(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


class DelayedPoint(NamedTuple):
    """What could be known when some number of decisions had been made."""

    decided: int
    matched: int  # of these, those with feedback until then
    mistakes: int  # of those, with reward 0
    expired: int
    unmatched: int

    @property
    def error_rate(self) -> float:
        """Of the matched ones; nan without any."""
        return _rate(self.mistakes, self.matched)

    @property
    def expired_rate(self) -> float:
        """The share of expired decisions among those that were settled and count; nan without any."""
        return _rate(self.expired, self.matched + self.expired)

    @property
    def outstanding(self) -> int:
        """Decisions of which nothing was known yet."""
        return self.decided - self.matched - self.expired - self.unmatched


class Settlements:
    """Collects when decisions were settled, and how: nine bytes for each."""

    def __init__(self) -> None:
        self._known_ms = array("q")
        self._codes = bytearray()

    def take(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Pass examples on, and take note of each.

        The watermark at which it was settled is the append time of its feedback, and where that came before its context
        the time of the latest feedback then.
        """
        for example in examples:
            self._known_ms.append(example.settled_at_ms)
            self._codes.append(_code(example))
            yield example

    def curve(self, decided_ms: Sequence[int]) -> tuple[DelayedPoint, ...]:
        """What was known as decisions were made, up to the last one.

        Args:
            decided_ms: when each decision was made, in any order.
        """
        decided = np.sort(np.asarray(decided_ms, dtype=np.int64))
        if not decided.size:
            return ()
        known_ms = np.frombuffer(self._known_ms, dtype=np.int64)
        order = np.argsort(known_ms, kind="stable")
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8)[order]
        at = _places(decided.size)
        settled = np.searchsorted(known_ms[order], decided[at - 1], side="right")
        wrong, right, expired, unmatched = (_counts(codes == code)[settled] for code in range(4))
        matched = wrong + right
        columns = (at, matched, wrong, expired, unmatched)
        return tuple(map(DelayedPoint, *(column.tolist() for column in columns)))

    def first_feedback(self, decided_ms: Sequence[int]) -> int | None:
        """How many decisions had been made when the first feedback was matched; None: none ever was.

        Args:
            decided_ms: when each decision was made, in any order.
        """
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8)
        matched_ms = np.frombuffer(self._known_ms, dtype=np.int64)[codes <= 1]
        if not matched_ms.size:
            return None
        return int(np.count_nonzero(np.asarray(decided_ms, dtype=np.int64) <= matched_ms.min()))


def _code(example: Example) -> int:
    if example.outcome is Outcome.MATCHED:
        return example.reward or 0
    return 2 if example.outcome is Outcome.EXPIRED else 3


def _counts(which: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of the first n, for each n from 0 on."""
    return np.concatenate(([0], np.cumsum(which, dtype=np.int64)))


def _places(decisions: int) -> NDArray[np.int64]:
    """After how many decisions there is a point: the last one is among them."""
    return np.unique(np.rint(np.linspace(1, decisions, CURVE_POINTS_MAX)).astype(np.int64))
