"""A process's notices, progress, clocks and garbage collection.

Notices are logged by Python's `onebit` logger. The command line writes the log records to stderr. To get all notices,
an application sets the logger's level to `logging.INFO`. A record may have two attributes: `limited` is False if the
record must not be dropped when similar records are frequent, and `fields` is a dict of additional values for JSON logs.
"""

import gc
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

logger = logging.getLogger("onebit")
logger.addHandler(logging.NullHandler())

WARNING = "warning:"
"""The prefix of a warning on stderr; `onebit run --kafka` uses this prefix to find its programs' warnings."""

SLOW_S = 2.0


def quantity(number: int, noun: str) -> str:
    """Format a number with a noun, such as "1 partition".

    >>> quantity(1, "partition"), quantity(12, "partition")
    ('1 partition', '12 partitions')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


PIPELINE: ContextVar[str] = ContextVar("pipeline", default="")
"""The topic prefix of the pipeline that this thread works for, if the process runs several pipelines; otherwise empty.
Notices begin with it."""


def _labelled(message: str) -> tuple[str, dict[str, Any]]:
    """Return a notice that names the thread's pipeline, and the additional values for JSON logs."""
    prefix = PIPELINE.get()
    return (f"{prefix}*: {message}", {"pipeline": prefix}) if prefix else (message, {})


def announce(message: str, *, limited: bool = True, **fields: Any) -> None:
    """Log a notice.

    Args:
        message: The text.
        limited: Whether the notice may be dropped if similar notices, which differ only in numbers, are frequent.
        fields: Additional values for JSON logs.
    """
    message, more = _labelled(message)
    logger.info("%s", message, extra={"limited": limited, "fields": more | fields})


def warn(message: str) -> None:
    """Log a warning about a probable user error."""
    message, more = _labelled(message)
    logger.warning("%s", message, extra={"limited": True, "fields": more})


@contextmanager
def announced_when_slow(message: str, slow_s: float = SLOW_S) -> Iterator[None]:
    """Log a notice if an operation takes longer than `slow_s`."""
    timer = threading.Timer(slow_s, announce, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Status:
    """Logs status lines whenever they change. An idle program logs nothing."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def show(self, lines: list[str]) -> None:
        """Log the lines if they have changed."""
        if lines != self._lines:
            for line in lines:
                announce(line, limited=False)
        self._lines = lines


def monotonic_ms() -> int:
    """Return this host's monotonic time, which is only for measuring intervals."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """Return this host's time since boot, for measuring intervals.

    Unlike monotonic time, the time since boot includes time during which the host is suspended.
    """
    clock = getattr(
        time, "CLOCK_BOOTTIME", None
    )  # Linux only; on other systems, the monotonic clock may include time during which the host is suspended
    return monotonic_ms() if clock is None else time.clock_gettime_ns(clock) // 1_000_000


def every(interval_ms: int, action: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls the action, but at most once per interval."""
    last_ms = monotonic_ms()

    def act() -> None:
        nonlocal last_ms
        if monotonic_ms() - last_ms >= interval_ms:
            last_ms = monotonic_ms()
            action()

    return act


ESTIMATE_FROM_S = 1.0
"""Minimum time before the remaining time is estimated."""

SPEED_S = 30.0
"""Period over which the speed is measured. It is long because the first seconds are not typical."""

INTERVAL_S = 0.1
"""Minimum interval between two progress reports, short enough for a progress bar."""


class Progress(NamedTuple):
    """A run's progress."""

    name: str  # name of the run
    events: int  # total number of events
    decided: int
    pending: int
    figure: str  # the error or the mean reward of the decisions so far; empty if unknown
    to_come: int  # number of expected feedback records that have not arrived
    per_s: float  # decisions per second
    left_s: float  # remaining time; nan while no estimate is possible

    @property
    def done(self) -> float:
        """The completed fraction, 0 to 1. A decided event is half complete, and a settled event is complete."""
        return (2 * self.decided - self.pending) / (2 * self.events) if self.events else 1.0


ShowProgress = Callable[[Progress], None]


def ignore(_progress: Progress) -> None:
    """Ignore the progress."""


class TimeToGo:
    """Estimates a run's remaining time from its recent speed.

    A decided event is half complete, and a settled event is complete. A run with all decisions but no feedback is half
    complete.
    """

    def __init__(self, events: int, now_s: float, decided: int = 0) -> None:
        self._events = events
        self._seen = deque(
            [(now_s, 2 * decided)]
        )  # pairs of a time and the number of decisions and settlements up to then

    def estimate_s(self, decided: int, pending: int, now_s: float) -> float:
        """Return the remaining seconds, or nan while no estimate is possible.

        >>> time_to_go = TimeToGo(events=100, now_s=0.0)
        >>> time_to_go.estimate_s(decided=100, pending=90, now_s=11.0)  # 110 of 200 are done, at 10 per second
        9.0
        """
        done = 2 * decided - pending
        self._seen.append((now_s, done))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= SPEED_S:
            self._seen.popleft()
        (then_s, then_done), left = self._seen[0], 2 * self._events - done
        if left <= 0:
            return 0.0
        if done == then_done or now_s - then_s < ESTIMATE_FROM_S:
            return math.nan
        return left * (now_s - then_s) / (done - then_done)


class Meter:
    """Measures a run's progress, and reports it to a callback."""

    def __init__(
        self, name: str, events: int, show: ShowProgress = ignore, now_s: Callable[[], float] = time.monotonic,
        *, decided: int = 0,
    ) -> None:  # fmt: skip
        """Start the measurement.

        Args:
            name: The run's name.
            events: The run's number of events.
            show: Called with each report.
            now_s: Returns the time in seconds.
            decided: Number of events that an earlier process has decided or sent.
        """
        self._name = name
        self._events = events
        self._earlier = decided
        self._show = show
        self._now_s = now_s
        self._started_s = now_s()
        self._shown_s = self._started_s
        self._time_to_go = TimeToGo(events, self._started_s, decided)

    def is_due(self) -> bool:
        """Return whether the next report is due. The call is cheap enough for an inner loop."""
        return self._now_s() - self._shown_s >= INTERVAL_S

    def show(self, decided: int, figure: str = "", pending: int = 0, to_come: int = 0) -> None:
        """Report the given figures."""
        self._show(self.progress(decided, figure, pending, to_come))

    def progress(self, decided: int, figure: str = "", pending: int = 0, to_come: int = 0) -> Progress:
        """Return the progress with the speed and the remaining time, and restart the interval until the next report."""
        now_s = self._shown_s = self._now_s()
        per_s = (decided - self._earlier) / max(now_s - self._started_s, 1e-9)
        left_s = self._time_to_go.estimate_s(decided, pending, now_s)
        return Progress(self._name, self._events, decided, pending, figure, to_come, per_s, left_s)


NEW_OBJECTS = 50_000
"""Garbage collection threshold for the youngest generation. With this threshold, a collection takes a few ms. Python's
default is 700."""


def tune_gc() -> None:
    """Collect garbage, freeze all existing objects, and make collections rare.

    Call this function once everything has been loaded, before the first record. If a later program replaces an earlier
    one, call the function again to free the earlier program. With Python's defaults, garbage collection took a quarter
    of a learner's time and an eighth of an audit's.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def freeze_gc() -> None:
    """Freeze the program's state, that is, all objects that exist between two steps.

    Reference counting still frees these objects. Collecting them took 2% of a learner's time, with pauses of
    up to a quarter of a second. If a frozen cycle becomes garbage, it is not freed until the program is recreated.
    Steps, failed steps, status lines and metrics do not create cycles.
    """
    gc.freeze()


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection during a run. A run creates many records, but no reference cycles.

    At the end, all objects are frozen until the next run. With garbage collection, reading the topics for the report
    takes 1.5 times as long.
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
