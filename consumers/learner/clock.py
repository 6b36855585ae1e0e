"""Detects steps of the broker's clock in one partition of the feedback topic.

A learner's own ticks bound the broker's time: a tick is appended between its sending and its acknowledgement on this
host's clock. A later record cannot have an append time above the bound plus the time that has passed on this host,
unless the broker's clock was set forward or the partition has a new leader whose clock is ahead. A clock that was set
back shows in the log, because append times in one partition decrease.

A step of the clock is not the passing of time. The task therefore subtracts the step from all later append times: see
`JournalStep.clock_shift_ms`.
"""

from dataclasses import dataclass
from math import inf

STEP_MS = 10_000
"""Smallest step that is detected. It is larger than the pauses of a busy broker and the drift of clocks between two
ticks. A smaller step expires decisions, and forgets ids, by as much too early or too late."""

PERIOD_MS = 300_000
"""Period after which a bound is replaced, so that the slow drift between two clocks does not add up to a step."""


@dataclass(slots=True)
class BrokerClock:
    """An upper bound for the difference between the broker's clock and this host's, from ticks."""

    _bound_ms: float = inf  # lowest bound in this period
    _earlier_ms: float = inf  # lowest bound in the period before
    _since_ms: int = 0

    def ticked(self, append_ms: int, sent_ms: int) -> None:
        """Note a tick's append time, and this host's time before the tick was sent."""
        if sent_ms - self._since_ms >= PERIOD_MS:
            self._earlier_ms, self._bound_ms, self._since_ms = self._bound_ms, inf, sent_ms
        self._bound_ms = min(self._bound_ms, append_ms - sent_ms)

    def ahead_ms(self, append_ms: int, now_ms: int) -> int:
        """Return by how much an append time exceeds the broker's latest possible time, or 0 if this is no step."""
        bound_ms = min(self._bound_ms, self._earlier_ms)
        ahead_ms = append_ms - (now_ms + bound_ms)
        return int(ahead_ms) if ahead_ms >= STEP_MS else 0

    def stepped(self, step_ms: int) -> None:
        """Raise the bound after the clock was set forward."""
        self._bound_ms += step_ms
        self._earlier_ms += step_ms


def shift_of(shift_ms: int, stream_ms: int, append_ms: int, ahead_ms: int) -> int:
    """Return the time to subtract from a record's append time and all later ones, so that stream time does not step.

    Args:
        shift_ms: the time subtracted so far.
        stream_ms: the task's stream time; 0 before the first record.
        append_ms: the record's append time.
        ahead_ms: by how much it exceeds the broker's latest possible time; see `BrokerClock.ahead_ms`.

    >>> shift_of(0, 50_000, 3_650_000, 3_599_000)  # set forward by an hour, a second after the last record
    3599000
    >>> shift_of(3_599_000, 51_000, 52_000, 0)  # and back again
    1000
    >>> shift_of(0, 50_000, 49_000, 0), shift_of(0, 50_000, 650_000, 0)  # neither a step nor a quiet time shifts
    (0, 0)
    """
    if not stream_ms:
        return shift_ms
    if append_ms - shift_ms <= stream_ms - STEP_MS:
        return append_ms - stream_ms
    return min(shift_ms + ahead_ms, append_ms - stream_ms) if ahead_ms else shift_ms
