"""How a program's loop is judged from outside: whether it lives, and whether it is ready."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from stream.telemetry import metrics
from stream.telemetry.metrics import Sample

HANGS_MS = 60_000
"""A loop that has not come round for so long hangs; Kafka's own time-outs are shorter."""

SLOW_MS = 10_000
"""After so long nobody should wait for this program's answers."""

RENEWAL_MS = 1_000
"""How old the numbers are that a scrape is given, at most: making them costs as much as some events."""


class Verdict(NamedTuple):
    """Yes or no, and why."""

    ok: bool
    why: str


class _State(NamedTuple):
    unready: str  # why the program is not ready; empty: it is
    loops: bool  # whether its loop has begun
    samples: tuple[Sample, ...] = ()


class Vital:
    """What is known of a program from outside.

    The program's own thread tells, others ask. What is told is one immutable value that is replaced as a whole: so
    whoever asks sees numbers of one moment, between two steps, and takes no lock.
    """

    def __init__(self, program: str, version: str, now_ms: Callable[[], int]) -> None:
        self._info = metrics.BUILD_INFO.at(1.0, version, program)
        self._now_ms = now_ms
        self._state = _State("it starts", loops=False)
        self._seen_ms = self._made_ms = now_ms()

    def beat(self) -> None:
        """The program is alive: it is about to go on, or waits and says so."""
        self._seen_ms = self._now_ms()

    def waits(self, why: str) -> None:
        """The program is outside of its loop, and not ready."""
        self.beat()
        self._state = _State(why, loops=False)

    def show(self, unready: str, samples: Callable[[], Iterable[Sample]]) -> None:
        """The loop has come round; cheap enough for every round.

        Args:
            unready: why the program is not ready; empty: it is.
            samples: makes its numbers; called no more often than they are renewed.
        """
        self.beat()
        if unready == self._state.unready and self._state.loops and self._seen_ms - self._made_ms < RENEWAL_MS:
            return
        self._state = _State(unready, loops=True, samples=tuple(samples()))
        self._made_ms = self._seen_ms

    def alive(self) -> Verdict:
        """Whether the program goes on. One that waits for Kafka, or recovers, does."""
        silent_ms = self._now_ms() - self._seen_ms
        if self._state.loops and silent_ms > HANGS_MS:
            return Verdict(ok=False, why=f"its loop has not come round for {silent_ms // 1_000} s")
        return Verdict(ok=True, why=self._state.unready or "it runs")

    def ready(self) -> Verdict:
        """Whether the program does its work now."""
        state, silent_ms = self._state, self._now_ms() - self._seen_ms
        if state.unready:
            return Verdict(ok=False, why=state.unready)
        if silent_ms > SLOW_MS:
            return Verdict(ok=False, why=f"its loop has not come round for {silent_ms // 1_000} s")
        return Verdict(ok=True, why="it runs")

    def samples(self) -> Iterator[Sample]:
        """Its numbers, of a second ago at most."""
        yield self._info
        yield metrics.READY.at(float(self.ready().ok))
        yield metrics.LOOP_AGE.at((self._now_ms() - self._seen_ms) / 1_000)
        yield from self._state.samples
