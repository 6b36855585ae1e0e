"""Liveness and readiness of a program's main loop."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from stream.telemetry import metrics
from stream.telemetry.metrics import Sample

HANGS_MS = 60_000
"""Maximum time between iterations; after that, the loop is considered hung. Kafka's timeouts are shorter."""

SLOW_MS = 10_000
"""Maximum time between iterations; after that, the program is reported as not ready."""

RENEWAL_MS = 1_000
"""Maximum age of the samples in a scrape. Creating samples takes as long as processing several events."""


class Verdict(NamedTuple):
    """The result of a health check, with its reason."""

    ok: bool
    why: str


class _State(NamedTuple):
    unready: str  # why the program is not ready; empty if it is ready
    loops: bool  # whether the main loop has started
    samples: tuple[Sample, ...] = ()


class Heartbeat:
    """A program's state, as read by health checks and scrapes.

    The state is immutable, and the program's thread replaces it as a whole. Readers therefore get consistent values
    without a lock.
    """

    def __init__(self, program: str, version: str, now_ms: Callable[[], int]) -> None:
        self._info = metrics.BUILD_INFO.at(1.0, version, program)
        self._now_ms = now_ms
        self._state = _State("starting", loops=False)
        self._seen_ms = self._made_ms = now_ms()

    def beat(self) -> None:
        """Record that the program is alive."""
        self._seen_ms = self._now_ms()

    def set_unready(self, why: str) -> None:
        """Record that the program is outside its loop and not ready. `why` is the reason."""
        self.beat()
        self._state = _State(why, loops=False)

    def show(self, unready: str, samples: Callable[[], Iterable[Sample]]) -> None:
        """Record an iteration of the loop. The call is cheap enough to be made in every iteration.

        Args:
            unready: Why the program is not ready; empty if it is ready.
            samples: Returns the program's samples; called only when the stored samples are outdated.
        """
        self.beat()
        if unready == self._state.unready and self._state.loops and self._seen_ms - self._made_ms < RENEWAL_MS:
            return
        self._state = _State(unready, loops=True, samples=tuple(samples()))
        self._made_ms = self._seen_ms

    def alive(self) -> Verdict:
        """Return whether the program is alive. A program is alive even while it waits for Kafka or recovers."""
        silent_ms = self._now_ms() - self._seen_ms
        if self._state.loops and silent_ms > HANGS_MS:
            return Verdict(ok=False, why=f"no iteration of the main loop for {silent_ms // 1_000} s")
        return Verdict(ok=True, why=self._state.unready or "running")

    def ready(self) -> Verdict:
        """Return whether the program is ready."""
        state, silent_ms = self._state, self._now_ms() - self._seen_ms
        if state.unready:
            return Verdict(ok=False, why=state.unready)
        if silent_ms > SLOW_MS:
            return Verdict(ok=False, why=f"no iteration of the main loop for {silent_ms // 1_000} s")
        return Verdict(ok=True, why="running")

    def samples(self) -> Iterator[Sample]:
        """Yield the samples, which are at most a second old."""
        yield self._info
        yield metrics.READY.at(float(self.ready().ok))
        yield metrics.LOOP_AGE.at((self._now_ms() - self._seen_ms) / 1_000)
        yield from self._state.samples


class Heartbeats:
    """The states of several pipelines in one process.

    The process is alive or ready if all of them are. Each sample has the pipeline as an additional label.
    """

    def __init__(self, by_pipeline: Mapping[str, Heartbeat]) -> None:
        self._by_pipeline = by_pipeline

    def alive(self) -> Verdict:
        """Return whether all pipelines are alive."""
        return self._all(Heartbeat.alive)

    def ready(self) -> Verdict:
        """Return whether all pipelines are ready."""
        return self._all(Heartbeat.ready)

    def _all(self, ask: Callable[[Heartbeat], Verdict]) -> Verdict:
        verdicts = {name: ask(one) for name, one in self._by_pipeline.items()}
        wrong = {name: verdict for name, verdict in verdicts.items() if not verdict.ok}
        why = "; ".join(f"{name}*: {verdict.why}" for name, verdict in (wrong or verdicts).items())
        return Verdict(ok=not wrong, why=why)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all pipelines."""
        for name, one in self._by_pipeline.items():
            for metric, labels, value in one.samples():
                yield Sample(metric._replace(labels=(*metric.labels, "pipeline")), (*labels, name), value)
