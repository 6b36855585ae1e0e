"""The broker's time: virtual time, for pipelines that run in one process, and an estimate for a real broker.

In virtual time, the clock jumps to the next time at which work is due. The programs are the same as with Kafka, but use
the embedded broker. No program sleeps, and the order of all events depends on the seed alone.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol


class VirtualClock:
    """The embedded broker's time in milliseconds. Only its owner advances it, and it never decreases."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def advance_to(self, now_ms: int) -> None:
        """Advance to a later time. An earlier time changes nothing."""
        self.now_ms = max(self.now_ms, now_ms)


class EstimatedClock:
    """A client's estimate of the broker's time: the latest known append time plus the time that has elapsed since.

    The estimate never exceeds the broker's time, unless this host's clock runs faster.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._ahead_ms: int | None = None  # the broker's time minus this host's monotonic time

    def observe(self, append_ms: int) -> None:
        """Update the estimate with an append time from the broker."""
        ahead_ms = append_ms - self._monotonic_ms()
        if self._ahead_ms is None or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """Return a lower bound on the broker's time, or 0 if unknown."""
        return 0 if self._ahead_ms is None else self._monotonic_ms() + self._ahead_ms


class Program(Protocol):
    """A program of the pipeline, such as the replay or the learner."""

    def step(self, timeout_ms: int) -> int:
        """Do the work that is possible now, and return the amount of work done."""

    def next_due_ms(self) -> int | None:
        """Return the next time at which work is due even without new records, or None."""


def run_until_settled(clock: VirtualClock, sources: Sequence[Program], learner: Program, poll_ms: int = 0) -> None:
    """Run the programs until no work is left.

    The sources run a step at every due time. The learner runs a step when records have waited for poll_ms, like a
    learner that polls a real broker at intervals. With poll_ms 0, the learner also runs a step at every due time. It
    then decides at the context's time, and learns from feedback before the next event. Append times, record order and
    the model are the same for every poll_ms up to the shortest feedback delay.
    """
    waits = False  # True if the learner has unread records
    next_poll_ms = clock.now_ms
    learner_due_ms = learner.next_due_ms()  # changes only when the learner runs a step
    while True:
        for source in sources:
            if source.step(0):
                waits = True
        now_ms = clock.now_ms
        if (waits and now_ms >= next_poll_ms) or (learner_due_ms is not None and now_ms >= learner_due_ms):
            while learner.step(0) or sum(source.step(0) for source in sources):
                pass
            waits = False
            next_poll_ms = now_ms + poll_ms
            learner_due_ms = learner.next_due_ms()
        dues = [due_ms for source in sources if (due_ms := source.next_due_ms()) is not None]
        if learner_due_ms is not None:
            dues.append(learner_due_ms)
        if waits:
            dues.append(next_poll_ms)
        if not dues:
            return
        clock.advance_to(min(dues))


class Timers:
    """A queue of scheduled actions."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, ms: int, action: Callable[[], None] = lambda: None) -> None:
        """Schedule an action after a delay. Without an action, the clock only stops at that time."""
        self._count += 1
        heapq.heappush(self._waiting, (self._clock.now_ms + ms, self._count, action))

    @property
    def next_ms(self) -> int | None:
        """The time of the next action."""
        return self._waiting[0][0] if self._waiting else None

    def do_due(self) -> None:
        """Run the actions that are due, in order."""
        while self._waiting and self._waiting[0][0] <= self._clock.now_ms:
            heapq.heappop(self._waiting)[2]()
