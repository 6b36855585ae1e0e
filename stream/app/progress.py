"""The progress of a run: a use case calls back with figures, and the caller shows them."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

SPEED_S = 30.0
"""The time to go follows from the speed of these last seconds: the first ones are not typical of the others."""

INTERVAL_S = 0.1
"""The shortest time between two calls; a terminal's moving line needs no more."""


class Progress(NamedTuple):
    """How far a run is."""

    name: str  # of the run
    events: int  # that it will decide
    decided: int
    pending: int
    error_rate: float  # of the decisions so far; nan if it is not known
    to_come: int  # expected feedback that has not come yet
    per_s: float  # decisions
    left_s: float  # until all is settled; nan if nothing is done yet

    @property
    def done(self) -> float:
        """The share that is done, from 0 to 1: a decision counts when it is made, and again when it is settled."""
        return (2 * self.decided - self.pending) / (2 * self.events) if self.events else 1.0


ShowProgress = Callable[[Progress], None]


def ignore(_progress: Progress) -> None:
    """Show nothing."""


class TimeToGo:
    """The time that a run still takes, from its recent speed.

    An event is done when it is decided and settled, which count alike: a run whose decisions are all made, and whose
    feedback is still to be learned from, is half done at most.
    """

    def __init__(self, events: int, now_s: float) -> None:
        self._events = events
        self._seen = deque([(now_s, 0)])  # when, and how many decisions and settlements there were

    def estimate_s(self, decided: int, pending: int, now_s: float) -> float:
        """Seconds to go; nan while nothing has been done.

        >>> time_to_go = TimeToGo(events=100, now_s=0.0)
        >>> time_to_go.estimate_s(decided=100, pending=90, now_s=11.0)  # 110 of 200 things, 10 in a second
        9.0
        """
        done = 2 * decided - pending
        self._seen.append((now_s, done))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= SPEED_S:
            self._seen.popleft()
        (then_s, then_done), left = self._seen[0], 2 * self._events - done
        if left <= 0:
            return 0.0
        return left * (now_s - then_s) / (done - then_done) if done > then_done else math.nan


class Meter:
    """Measures a run, and calls back with its progress."""

    def __init__(
        self, name: str, events: int, show: ShowProgress = ignore, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._events = events
        self._show = show
        self._now_s = now_s
        self._started_s = now_s()
        self._shown_s = self._started_s
        self._time_to_go = TimeToGo(events, self._started_s)

    def is_due(self) -> bool:
        """Whether the interval has passed; cheap enough for an inner loop."""
        return self._now_s() - self._shown_s >= INTERVAL_S

    def show(self, decided: int, error_rate: float = math.nan, pending: int = 0, to_come: int = 0) -> None:
        """Call back with these figures."""
        now_s = self._now_s()
        self._shown_s = now_s
        per_s = decided / max(now_s - self._started_s, 1e-9)
        left_s = self._time_to_go.estimate_s(decided, pending, now_s)
        self._show(Progress(self._name, self._events, decided, pending, error_rate, to_come, per_s, left_s))
