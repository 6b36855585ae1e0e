"""Clocks for the broker's time: the embedded broker's clock, and an estimate for a real broker."""

from collections.abc import Callable


class VirtualClock:
    """The embedded broker's time in milliseconds. Only its owner advances it, and it never decreases."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def advance_to(self, now_ms: int) -> None:
        """Move to a later time; an earlier one changes nothing."""
        self.now_ms = max(self.now_ms, now_ms)


class EstimatedClock:
    """A client's estimate of the broker's time: the latest known append time plus the elapsed time.

    It is never ahead of the broker's time if this host's clock does not run faster.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._ahead_ms: int | None = None  # the broker's time minus this host's monotonic time

    def heard(self, append_ms: int) -> None:
        """Update the estimate with an append time from the broker."""
        ahead_ms = append_ms - self._monotonic_ms()
        if self._ahead_ms is None or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """A lower bound of the broker's time; 0 if unknown."""
        return 0 if self._ahead_ms is None else self._monotonic_ms() + self._ahead_ms
