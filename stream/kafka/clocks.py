"""An estimate of the broker's time, for clients."""

import math
from collections.abc import Callable


class EstimatedClock:
    """A client's estimate of the broker's time: the latest known append time plus the time elapsed since then.

    The estimate never exceeds the broker's time, unless this host's clock runs faster than the broker's.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._ahead_ms = -math.inf  # the broker's time minus this host's monotonic time

    def observe(self, append_ms: int) -> None:
        """Update the estimate with an append time from the broker."""
        self._ahead_ms = max(self._ahead_ms, append_ms - self._monotonic_ms())

    def now_ms(self) -> int:
        """Return a lower bound on the broker's time, or 0 if unknown."""
        return int(max(0, self._monotonic_ms() + self._ahead_ms))
