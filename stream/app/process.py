"""How a use case runs in its process: notices for the user, progress, this host's clocks, and the garbage collector.

Notices go by Python's logging: `onebit` is the logger, and the command line writes its records to stderr. Like every
library, this one sets no level: an application that wants all notices asks for `logging.INFO`. A record may have two
attributes: `limited`, False if it must not be dropped when similar records are frequent, and `fields`, a dict for a log
in JSON.

"""

import gc
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

logger = logging.getLogger("onebit")
logger.addHandler(logging.NullHandler())

WARNING = "warning:"
"""The beginning of a warning on stderr, by which `onebit run --kafka` finds those of its programs."""

SLOW_S = 2.0


def quantity(number: int, noun: str) -> str:
    """A number with its noun.

    >>> quantity(1, "partition"), quantity(12, "partition")
    ('1 partition', '12 partitions')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def announce(message: str, *, limited: bool = True, **fields: Any) -> None:
    """Report what happens.

    Args:
        message: the text.
        limited: False if the notice must not be dropped; others are, when they differ in numbers only and are frequent.
        fields: values for a log in JSON.
    """
    logger.info("%s", message, extra={"limited": limited, "fields": fields})


def warn(message: str) -> None:
    """Report what is probably a mistake of the user."""
    logger.warning("%s", message, extra={"limited": True, "fields": {}})


@contextmanager
def announced_when_slow(message: str) -> Iterator[None]:
    """Announce an operation that takes more than two seconds."""
    timer = threading.Timer(SLOW_S, announce, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Status:
    """Announces lines if they have changed, so that an idle program is silent."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def show(self, lines: list[str]) -> None:
        """Announce the lines, unless they are those of the last time."""
        if lines != self._said:
            for line in lines:
                announce(line, limited=False)
        self._said = lines


def monotonic_ms() -> int:
    """This host's monotonic time, for intervals only."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """This host's time since boot, for intervals; unlike the monotonic time it includes suspends."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # of Linux; elsewhere the monotonic clock may include them
    return monotonic_ms() if clock is None else time.clock_gettime_ns(clock) // 1_000_000


def every(interval_ms: int, action: Callable[[], None]) -> Callable[[], None]:
    """A function that calls the action if the interval has passed since its last call."""
    last_ms = monotonic_ms()

    def act() -> None:
        nonlocal last_ms
        if monotonic_ms() - last_ms >= interval_ms:
            last_ms = monotonic_ms()
            action()

    return act


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


NEW_OBJECTS = 50_000
"""As many are made before the new ones are looked through, some milliseconds' work; Python's own number is 700."""


def collect_seldom() -> None:
    """Leave out all that is there now, most of it code, and look at the rest seldom.

    To be called when all is loaded, before records come; and again when a program is made anew, so that the one before
    is freed. With Python's own numbers the collector took a quarter of a learner's time, and an eighth of an audit's.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def leave_out_what_stays() -> None:
    """Leave out what is there between two steps: all that a program remembers, which it forgets by itself in time.

    To look through it again and again took 2 % of a learner's time, and up to a quarter of a second at once. A cycle
    that becomes garbage after it was left out stays until a program is made anew; steps, their failures, status lines
    and metrics make none.
    """
    gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    """Leave the collector out: a run makes no cycles, and all its records would be walked again.

    So would they when the topics are read for the report, which takes half as long again with the collector, and when
    it is at work again: so what a run leaves is left out then, until the next one begins.
    """
    if not gc.isenabled():
        yield
        return
    gc.unfreeze()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
