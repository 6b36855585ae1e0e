"""Limits on time in tests that allow for a slow or loaded machine."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

REFERENCE_S = 0.1
"""Time that the reference action takes on the machine for which the limits were chosen."""


def slowness() -> float:
    """Return how many times longer the reference action takes now: to start Python and import a few modules."""
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import asyncio, decimal, json"], check=True)
    return max(1.0, (time.monotonic() - started_s) / REFERENCE_S)


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Fail if the block takes longer than the limit, multiplied by how slow the machine is before and after it."""
    before, started_s = slowness(), time.monotonic()
    yield
    took_s = time.monotonic() - started_s
    if took_s >= limit_s:
        assert took_s < limit_s * max(before, slowness())
