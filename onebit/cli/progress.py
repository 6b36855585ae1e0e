"""Progress of runs and experiments: bars on a terminal, otherwise log lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onebit.cli.console import err, has_moving_lines
from stream.programs.process import Progress, ShowProgress, announce, monotonic_ms

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

PROGRESS_INTERVAL_MS = 5_000
"""Interval between progress lines if stderr is not a terminal."""

ShowLine = Callable[[str, float, str, bool], None]
"""A function that shows progress. Its arguments are a name, the completed fraction, the figures, and whether to log a
line even if the interval has not elapsed."""


def figures(progress: Progress) -> str:
    """Format the number of events, the rate, the error or mean reward, the pending decisions and the remaining time."""
    from stream.reporting import tables

    _, events, decided, pending, figure, to_come, per_s, left_s = progress
    shown = [f"{decided:,} of {events:,} events", f"{per_s:,.0f} events/s"]
    if figure:
        shown.append(figure)
    if pending:
        shown.append(f"pending {pending:,}")
    if to_come and pending == 0 and decided >= events:
        shown.append(f"all decisions settled; waiting for {to_come:,} late or duplicate feedback records")
    else:
        shown.append(f"ETA {f'{left_s:.0f} s' if left_s < 60 else tables.duration(left_s)}")
    return "  ".join(shown)


class AnnouncedLines:
    """Logs a progress line for each name at intervals."""

    def __init__(self, interval_ms: int = PROGRESS_INTERVAL_MS) -> None:
        self._interval_ms = interval_ms
        self._began_ms = monotonic_ms()
        self._shown_ms: dict[str, int] = {}

    def show(self, name: str, done: float, text: str, at_once: bool) -> None:
        """See `ShowLine`."""
        now_ms = monotonic_ms()
        if at_once or now_ms - self._shown_ms.get(name, self._began_ms) >= self._interval_ms:
            self._shown_ms[name] = now_ms
            announce(f"{name}: {text}", limited=False)  # all progress lines are similar


class MovingLines:
    """A progress bar for each name."""

    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, done: float, text: str, at_once: bool) -> None:
        """See `ShowLine`."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=1.0, figures="")
        self._bars.update(self._tasks[name], completed=done, figures=text)
        self._bars.refresh()


@contextmanager
def shown_lines() -> Iterator[ShowLine]:
    """Return a function that shows progress: bars on a terminal, otherwise log lines."""
    if not has_moving_lines():
        yield AnnouncedLines().show
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}", markup=False)
    with Progress(*columns, console=err, auto_refresh=False) as bars:
        yield MovingLines(bars).show


@contextmanager
def shown_progress() -> Iterator[ShowProgress]:
    """Return a function that shows the progress of runs. The last line of a run is always logged."""
    with shown_lines() as show:
        yield lambda progress: show(progress.name, progress.done, figures(progress), progress.done >= 1.0)
