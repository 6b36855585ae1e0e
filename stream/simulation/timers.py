"""Scheduled actions in a simulated run."""

import heapq
from collections.abc import Callable

from stream.kafka.embedded import VirtualClock


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
        """The time at which the next action is due."""
        return self._waiting[0][0] if self._waiting else None

    def do_due(self) -> None:
        """Run the actions that are due, in order."""
        while self._waiting and self._waiting[0][0] <= self._clock.now_ms:
            heapq.heappop(self._waiting)[2]()
