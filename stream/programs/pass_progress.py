"""Progress of commands that read a log in one or two passes."""

from collections.abc import Callable

from stream.programs.process import announce, every, monotonic_ms

PROGRESS_INTERVAL_MS = 5_000


def announced_passes(first: str, last: str, unit: str) -> Callable[[int, int], None]:
    """Return a function that logs the progress of a command at intervals.

    Its arguments are the number of rows that the current pass has read, and the number of all rows; 0 while that number
    is unknown, as in the first of two passes.

    Args:
        first: The name of a pass whose number of rows is unknown.
        last: The name of a pass whose number of rows is known.
        unit: What is counted, in the plural.
    """
    started_ms = monotonic_ms()
    latest = (0, 0)

    def report() -> None:
        read, total = latest
        rate = 1_000 * read / max(monotonic_ms() - started_ms, 1)
        what = f"{last}: {read:,} of {total:,}" if total else f"{first}: {read:,}"
        announce(f"{what} {unit}, {rate:,.0f} {unit}/s")

    show = every(PROGRESS_INTERVAL_MS, report)

    def update(read: int, total: int) -> None:
        nonlocal latest, started_ms
        if total and not latest[1]:
            started_ms = monotonic_ms()  # the passes run at different speeds, so their rates are measured separately
        latest = (read, total)
        show()

    return update
