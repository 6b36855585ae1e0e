"""Progress of runs on stderr: bars on a terminal, otherwise lines at intervals."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from stream.app.process import Progress, ShowProgress, announce, monotonic_ms
from stream.cli.console import err, has_moving_lines
from stream.reporting import tables

INTERVAL_MS = 5_000
"""Interval between two lines about a run without a terminal."""


def figures(progress: Progress) -> str:
    """Format events, events per second, error so far, pending decisions and remaining time."""
    _, events, decided, pending, error_rate, to_come, per_s, left_s = progress
    shown = [f"{decided:,} of {events:,} events", f"{per_s:,.0f} events/s"]
    if not math.isnan(error_rate):
        shown.append(f"error {tables.percent(error_rate)}")
    if pending:
        shown.append(f"pending {pending:,}")
    if to_come and pending == 0 and decided >= events:
        shown.append(f"all settled, {to_come:,} late or repeated feedback outstanding")
    else:
        shown.append(f"ETA {f'{left_s:.0f} s' if left_s < 60 else tables.duration(left_s)}")
    return "  ".join(shown)


class AnnouncedLines:
    """Logs a line for each run at intervals."""

    def __init__(self, interval_ms: int = INTERVAL_MS) -> None:
        self._interval_ms = interval_ms
        self._began_ms = monotonic_ms()
        self._shown_ms: dict[str, int] = {}

    def show(self, progress: Progress) -> None:
        """Log the progress if the interval has passed, or at the end."""
        now_ms = monotonic_ms()
        is_due = now_ms - self._shown_ms.get(progress.name, self._began_ms) >= self._interval_ms
        if is_due or progress.done >= 1.0:
            self._shown_ms[progress.name] = now_ms
            announce(f"{progress.name}: {figures(progress)}", limited=False)  # each line supersedes the previous one


class MovingLines:
    """A bar for each run."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, progress: Progress) -> None:
        """Update the bar."""
        name = progress.name
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=1.0, figures="")
        self._bars.update(self._tasks[name], completed=progress.done, figures=figures(progress))
        self._bars.refresh()


@contextmanager
def shown_progress() -> Iterator[ShowProgress]:
    """Show the progress of runs: bars on a terminal, otherwise log lines."""
    if not has_moving_lines():
        yield AnnouncedLines().show
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Bars(*columns, console=err, auto_refresh=False) as bars:
        yield MovingLines(bars).show
