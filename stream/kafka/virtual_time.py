"""Runs the whole pipeline in one process in virtual time: the clock jumps to the next time at which work is due.

The programs are those that run against Kafka, with the embedded broker. Nothing sleeps, and the order of all events
depends on the seed alone.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from stream.kafka.clocks import VirtualClock


class Program(Protocol):
    """A part of the pipeline."""

    def step(self, timeout_ms: int) -> int:
        """Do the work that is possible now; return the amount of work done, 0 for none."""

    def next_due_ms(self) -> int | None:
        """The next time at which work is due without new records, or None."""


def run_until_settled(
    clock: VirtualClock,
    sources: Sequence[Program],
    learner: Program,
    poll_ms: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Run the programs until no work is left.

    The sources step at every due time. The learner steps when records have waited for poll_ms, like a learner that
    polls a real broker at intervals. With 0 it steps at every due time: it decides at the context's time, and learns
    from feedback before the next event. Append times and record order, and so the model, are the same for every
    poll_ms up to the shortest feedback delay.
    """
    waits = False  # whether the learner has unread records
    next_poll_ms = clock.now_ms
    learner_due_ms = learner.next_due_ms()  # changes only when the learner steps
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
        progress()
