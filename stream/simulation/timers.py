"""What falls due by itself: virtual time, and what is to be done at which of its moments."""

import heapq
from collections.abc import Callable

from stream.kafka.clocks import VirtualClock


class Timers:
    """Actions that wait for their time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, ms: int, action: Callable[[], None] = lambda: None) -> None:
        """Do something after a while; nothing, when only the moment is to come."""
        self._count += 1
        heapq.heappush(self._waiting, (self._clock.now_ms + ms, self._count, action))

    @property
    def next_ms(self) -> int | None:
        """When the next action is due."""
        return self._waiting[0][0] if self._waiting else None

    def do_due(self) -> None:
        """Do what is due by now, in its order."""
        while self._waiting and self._waiting[0][0] <= self._clock.now_ms:
            heapq.heappop(self._waiting)[2]()
