"""The whole pipeline in one process, in virtual time: time jumps from one thing that is due to the next.

The programs are the same ones that run against Kafka; the embedded broker stands in for it. Nothing waits, and the
order of all that happens follows from the seed.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from stream.kafka.clocks import VirtualClock


class Program(Protocol):
    """A part of the pipeline: it does what it can, and knows when it will have something to do by itself."""

    def step(self, timeout_ms: int) -> int:
        """Do what can be done now; how much was done, 0 when there was nothing."""

    def next_due_ms(self) -> int | None:
        """The next time at which there is something to do although nothing comes; None when there is none."""


class StalledError(Exception):
    """A program has something due but does nothing: the simulation would never end."""


ROUNDS_AT_ONE_TIME_MAX = 1_000_000
"""More rounds than any moment needs: each does at least one thing, and time must move in the end."""


def run_until_settled(
    clock: VirtualClock,
    sources: Sequence[Program],
    learner: Program,
    poll_ms: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Run the programs until none has anything left to do.

    At each moment at which something is due the sources step. The learner steps when what came has waited poll_ms, as
    one on a real broker polls now and then; with 0 it steps at every moment, and an answer that takes no time is given
    at the moment of the question, and learned from before the next event. The records' times and their order, and so
    what is learned, are the same for every poll_ms up to the shortest delay of an answer.

    Raises:
        StalledError: a program is due and does nothing.
    """
    waits = False  # whether the sources have written what the learner has not read
    next_poll_ms = clock.now_ms
    learner_due_ms = learner.next_due_ms()  # changes only when the learner steps
    rounds = 0
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
        due_ms = min(dues)
        if due_ms > now_ms:
            rounds = 0
            clock.advance_to(due_ms)
        else:
            rounds += 1
            if rounds > ROUNDS_AT_ONE_TIME_MAX:
                raise StalledError(f"at {now_ms} ms a program is due since {due_ms} ms and does nothing")
        progress()
