"""The whole pipeline in one process, in virtual time: the clock jumps to the next time at which something is due.

The programs are the same that run against Kafka, on the embedded broker. Nothing waits, and the order of all events
depends only on the seed.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from stream.kafka.clocks import VirtualClock


class Program(Protocol):
    """A part of the pipeline."""

    def step(self, timeout_ms: int) -> int:
        """Do what can be done now; returns a count of it, 0 for nothing."""

    def next_due_ms(self) -> int | None:
        """The next time at which there is something to do without new records; None if there is none."""


def run_until_settled(
    clock: VirtualClock,
    sources: Sequence[Program],
    learner: Program,
    poll_ms: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Run the programs until none has anything left to do.

    Whenever something is due, the sources step. The learner steps when records have waited for poll_ms, like one that
    polls a real broker at intervals. With 0 it steps at every due time: it answers at the time of the question, and
    learns from the answer before the next event. Append times and the order of records, and so what is learned, are the
    same for every poll_ms up to the shortest delay of an answer.
    """
    waits = False  # whether there are records that the learner has not read
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
