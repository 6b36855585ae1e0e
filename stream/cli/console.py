"""Printing: people read tables and progress, programs read JSON; errors and progress never go to stdout."""

import atexit
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stream.cli.exits import ExitCode
from stream.cli.log_lines import LEVELS, Level, LogLines, as_json
from stream.reporting import tables

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)


def monotonic_ms() -> int:
    """This host's monotonic time, for intervals only."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """This host's time since it was started, for intervals; unlike the monotonic one it runs on in suspend."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # of Linux; elsewhere the monotonic one may run on by itself
    return monotonic_ms() if clock is None else time.clock_gettime_ns(clock) // 1_000_000


_log = LogLines()
_is_json = False


def write_log(form: Literal["text", "json"], level: str) -> None:
    """Say what the log on stderr is made of from now on."""
    global _log, _is_json
    _log, _is_json = LogLines(LEVELS[level]), form == "json"


def _write(level: Level, message: str, mark: str, **more: Any) -> None:
    """A line of the log; the mark stands before it, in colours, where it is a text."""
    if _is_json:
        err.file.write(as_json(level, message, time.time_ns() // 1_000_000, **more) + "\n")
        err.file.flush()
    else:
        err.print(f"{mark}{escape(message)}", highlight=False, soft_wrap=True)


def has_moving_lines() -> bool:
    """Whether stderr is a terminal on which a line may change, and no log for programs."""
    return err.is_terminal and not _is_json


def announce(message: str, *, limited: bool = True, **more: Any) -> None:
    """Tell people something on stderr, with the time of day.

    Args:
        message: what; of lines that differ in numbers alone some are left out when they come too often.
        limited: False where none may be left out.
        more: what programs may want of it, in a log as JSON.
    """
    admitted = _log.admitted(Level.INFO, message, monotonic_ms(), limited=limited)
    if admitted is not None:
        _write(Level.INFO, admitted, f"[dim]{time.strftime('%H:%M:%S')}[/] ", **more)


def end_log() -> None:
    """Say which lines were left out since the last one of their kind."""
    for level, message in _log.left_out():
        _write(level, message, "")


SLOW_S = 2.0


@contextmanager
def announced_when_slow(message: str) -> Iterator[None]:
    """Announce something that has not ended after a while."""
    timer = threading.Timer(SLOW_S, announce, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


WARNING = "warning:"
"""What a warning begins with, where there are no colours."""


def warn(message: str) -> None:
    """Tell people on stderr of something that is probably not as they want it."""
    admitted = _log.admitted(Level.WARNING, message, monotonic_ms())
    if admitted is not None:
        _write(Level.WARNING, admitted, f"[bold yellow]{WARNING}[/] ")


def examples(*lines: str) -> str:
    """Command lines as they stand below a command's help."""
    return "[bold]Examples[/]\n\n" + "\n\n".join(f"[cyan]$ {escape(line)}[/]" for line in lines)


def print_table(table: tables.Table, title: str | None = None) -> None:
    """Show a table of text on stdout."""
    # Without a box, and closer on a narrow screen, the nine columns of a run fit into the usual 80 characters.
    padding = (0, 2 if out.width >= 100 else 1, 0, 0)
    shown = Table(title=title, title_justify="left", box=None, header_style="bold underline", padding=padding)
    for index, column in enumerate(table.columns):
        is_name = index == 0  # long ones take two lines before a number is cut
        shown.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)


def boxed_table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """A table with lines, to be filled; the columns of numbers stand to the right."""
    table = Table()
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the process was asked to stop: the first Ctrl-C or SIGTERM asks, a second Ctrl-C breaks off."""

    def __init__(self, first: str = "") -> None:
        """Listen to these signals from now on.

        Args:
            first: what is done before the process ends, for people; empty: nothing that takes time.
        """
        self.stopped = False
        self._told = f"stopping: {first} first" if first else "stopping"
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        atexit.register(_end_undisturbed)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        announce(self._told)
        self.stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_undisturbed() -> None:
    """Let the exit code stand: the interpreter takes its handlers away before it ends, but leaves what is ignored."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


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
                announce(line, limited=False)
        self._said = lines


def fail(message: str, code: ExitCode) -> SystemExit:
    """Say what went wrong, and the exception that ends the process."""
    _write(Level.ERROR, message, "[bold red]error:[/] ", exit_code=int(code))
    return SystemExit(code)


def interrupted() -> SystemExit:
    """Say that Ctrl-C broke a command off, and the exception that ends the process."""
    _write(Level.ERROR, "interrupted", "", exit_code=int(ExitCode.INTERRUPTED))
    return SystemExit(ExitCode.INTERRUPTED)
