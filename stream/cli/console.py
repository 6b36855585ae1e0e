"""Printing: people read tables and progress, programs read JSON; errors and progress never go to stdout."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from stream.reporting import tables

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

EXIT_DIFFERS = 1  # verify found a difference
EXIT_USAGE = 2  # a setting, a file or a command line that cannot be used
EXIT_FENCED = 3  # another process has taken over, or may have, or the group threw this one out
EXIT_UNAVAILABLE = 4  # no broker answers
EXIT_INTERRUPTED = 130


def monotonic_ms() -> int:
    """This host's monotonic time, for intervals only."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """This host's time since it was started, for intervals; unlike the monotonic one it runs on in suspend."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # of Linux; elsewhere the monotonic one may run on by itself
    return monotonic_ms() if clock is None else time.clock_gettime_ns(clock) // 1_000_000


def announce(message: str) -> None:
    """Tell people something on stderr, with the time of day."""
    err.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {escape(message)}", highlight=False, soft_wrap=True)


def examples(*lines: str) -> str:
    """Command lines as they stand below a command's help."""
    return "[bold]Examples[/]\n\n" + "\n\n".join(f"[cyan]$ {escape(line)}[/]" for line in lines)


def print_table(table: tables.Table, title: str | None = None) -> None:
    """Show a table of text on stdout."""
    # Without a box, and closer on a narrow screen, the nine columns of a run fit into the usual 80 characters.
    padding = (0, 2 if out.width >= 100 else 1, 0, 0)
    shown = Table(title=title, title_justify="left", box=None, header_style="bold underline", padding=padding)
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)


class StopRequest:
    """Whether the process was asked to stop: the first Ctrl-C or SIGTERM asks, a second Ctrl-C breaks off."""

    def __init__(self) -> None:
        self.stopped = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        announce("stopping: the open transaction is finished first")
        self.stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


class RunProgress:
    """The progress line of a run: events, events per second, error so far, pending, time to go.

    On a terminal it moves; elsewhere a line is written now and then.
    """

    LINE_INTERVAL_S = 5.0
    REFRESH_INTERVAL_S = 0.1

    def __init__(self, label: str, events: int) -> None:
        self._label = label
        self._events = events
        self._started_s = time.monotonic()
        self._shown_s = self._started_s
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if err.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=err,
                auto_refresh=False,
            )
            self._task = self._bar.add_task(label, total=events, figures="")
            self._bar.start()

    def due(self) -> bool:
        """Whether it is time to show something; cheap enough for an inner loop."""
        interval_s = self.LINE_INTERVAL_S if self._bar is None else self.REFRESH_INTERVAL_S
        return time.monotonic() - self._shown_s >= interval_s

    def show(self, done: int, error_rate: float, pending: int) -> None:
        """Show where the run stands."""
        now_s = time.monotonic()
        self._shown_s = now_s
        per_s = done / max(now_s - self._started_s, 1e-9)
        figures = f"{per_s:,.0f} events/s  error {tables.percent(error_rate)}  pending {pending:,}"
        if self._bar is None:
            remaining = (self._events - done) / per_s if per_s else 0.0
            announce(f"{self._label}: {done:,} of {self._events:,} events  {figures}  ETA {remaining:.0f} s")
        else:
            self._bar.update(self._task, completed=done, figures=figures)
            self._bar.refresh()

    def close(self) -> None:
        """Leave the line as it is."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def run_progress(label: str, events: int) -> Iterator[RunProgress]:
    """A progress line for the time of a run."""
    progress = RunProgress(label, events)
    try:
        yield progress
    finally:
        progress.close()


def every(interval_ms: int, action: Callable[[], None]) -> Callable[[], None]:
    """A function that does the action when it is called and the interval has passed."""
    last_ms = monotonic_ms()

    def act() -> None:
        nonlocal last_ms
        if monotonic_ms() - last_ms >= interval_ms:
            last_ms = monotonic_ms()
            action()

    return act


class Status:
    """Announces lines when they have changed: a program with nothing to do says nothing."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def show(self, lines: list[str]) -> None:
        """Announce the lines, unless they are those of the last time."""
        if lines != self._said:
            for line in lines:
                announce(line)
        self._said = lines


def fail(message: str, code: int) -> SystemExit:
    """Say what went wrong, and the exception that ends the process."""
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    return SystemExit(code)
