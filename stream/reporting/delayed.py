"""Progressive validation with true censoring: a decision counts from the time on at which its bit could be known.

The progressive error judges each decision as it was made, by the true class, which only a simulation knows then. Here
nothing is told earlier than it was: a matched decision counts from its feedback on, an expired one from its expiry on,
and of what is still outstanding when the last decision is made no bit is shown at all, although it came afterwards.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.reporting.errors import CURVE_POINTS_MAX, _rate
from stream.wire.events import Example, Outcome


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
