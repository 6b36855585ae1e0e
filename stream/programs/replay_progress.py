"""Notices about the progress of a journal's replay."""

from collections.abc import Callable

from stream.programs.process import announce, every, monotonic_ms
from stream.recovery.recover import ReplayProgress

PROGRESS_INTERVAL_MS = 5_000


def replay_progress(label: str) -> Callable[[ReplayProgress], None]:
    """Return a function that logs the progress of a replay at intervals."""
    started_ms = monotonic_ms()
    latest: list[ReplayProgress] = []

    def report() -> None:
        number, _, last, records = latest[-1]
        rate = 1_000 * records / max(monotonic_ms() - started_ms, 1)
        announce(f"{label}: step {number:,} of {last:,}, {rate:,.0f} records/s")

    show = every(PROGRESS_INTERVAL_MS, report)

    def update(progress: ReplayProgress) -> None:
        latest[:] = [progress]
        show()

    return update
