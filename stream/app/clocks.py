"""This host's clocks, for intervals, and actions that are due now and then."""

import time
from collections.abc import Callable


def monotonic_ms() -> int:
    """This host's monotonic time, for intervals only."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """This host's time since boot, for intervals; unlike the monotonic time it includes suspends."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # of Linux; elsewhere the monotonic clock may include them
    return monotonic_ms() if clock is None else time.clock_gettime_ns(clock) // 1_000_000


def every(interval_ms: int, action: Callable[[], None]) -> Callable[[], None]:
    """A function that calls the action if the interval has passed since its last call."""
    last_ms = monotonic_ms()

    def act() -> None:
        nonlocal last_ms
        if monotonic_ms() - last_ms >= interval_ms:
            last_ms = monotonic_ms()
            action()

    return act
