"""Clocks that tell the broker's time: the embedded one's, and what a client knows of a real one's."""

from collections.abc import Callable


class VirtualClock:
    """The embedded broker's time, in milliseconds; it moves when its owner moves it, and never back."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def advance_to(self, now_ms: int) -> None:
        """Move to a later time; an earlier one changes nothing."""
        self.now_ms = max(self.now_ms, now_ms)


class EstimatedClock:
    """A broker's time as a client can tell it: its latest known append time, and the time that went by since.

    It is never ahead of the broker's, as long as this host's clock does not run faster.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._ahead_ms: int | None = None  # the broker's time less this host's monotonic one

    def heard(self, append_ms: int) -> None:
        """Take in an append time that the broker has just given, or gave some time ago."""
        ahead_ms = append_ms - self._monotonic_ms()
        if self._ahead_ms is None or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """The broker's time, at least; 0 as long as none is known."""
        return 0 if self._ahead_ms is None else self._monotonic_ms() + self._ahead_ms
