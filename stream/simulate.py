"""The whole pipeline in one process, in virtual time: time jumps from one thing that is due to the next.

The programs are the same ones that run against Kafka; the embedded broker stands in for it. Nothing waits, and the
order of all that happens follows from the seed.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from stream.broker import VirtualClock


class Program(Protocol):
    """A part of the pipeline: it does what it can, and knows when it will have something to do by itself."""

    def step(self, timeout_ms: int) -> int:
        """Do what can be done now; how much was done, 0 when there was nothing."""

    def next_due_ms(self) -> int | None:
        """The next time at which there is something to do although nothing comes; None when there is none."""


class StalledError(Exception):
    """A program has something due but does nothing: the simulation would never end."""


STEPS_AT_ONE_TIME_MAX = 100_000
"""More rounds than any moment needs: each does at least one thing, and time must move in the end."""


def run_until_settled(
    clock: VirtualClock, programs: Sequence[Program], progress: Callable[[], None] = lambda: None
) -> None:
    """Run the programs in turn until none has anything left to do.

    At each moment every program steps, in the order given, until all have stepped once without doing anything: so an
    answer that takes no time is given at the moment of the question.

    Raises:
        StalledError: a program is due and does nothing.
    """
    steps = [program.step for program in programs]
    dues = [program.next_due_ms for program in programs]
    last = len(steps) - 1
    rounds = 0
    while True:
        idle, turn = 0, 0
        while idle <= last:
            idle = 0 if steps[turn](0) else idle + 1
            turn = turn + 1 if turn < last else 0
            rounds += 1
        due_ms = min((due for next_due_ms in dues if (due := next_due_ms()) is not None), default=None)
        if due_ms is None:
            return
        if due_ms <= clock.now_ms:
            if rounds > STEPS_AT_ONE_TIME_MAX:
                raise StalledError(f"at {clock.now_ms} ms a program is due since {due_ms} ms and does nothing")
        else:
            rounds = 0
        clock.advance_to(due_ms)
        progress()
