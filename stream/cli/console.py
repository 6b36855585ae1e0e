"""Printing: people read tables and progress, programs read JSON; errors and progress never go to stdout."""

import atexit
import logging
import os
import signal
import sys
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stream.app.clocks import monotonic_ms
from stream.app.notices import WARNING, announce, logger
from stream.cli.log_lines import LEVELS, Level, LogLines, as_json
from stream.errors import ExitCode

if TYPE_CHECKING:
    from stream.reporting import tables

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)


_log = LogLines()
_is_json = False
_debugs = False


def write_log(form: Literal["text", "json"], level: str, *, debug: bool = False) -> None:
    """Set the form and the least level of the log on stderr, and whether errors have tracebacks."""
    global _log, _is_json, _debugs
    _log, _is_json, _debugs = LogLines(LEVELS[level]), form == "json", debug


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


class _Notices(logging.Handler):
    """Writes the notices of the use cases to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        is_warning = record.levelno >= logging.WARNING
        level = Level.WARNING if is_warning else Level.INFO
        is_limited = getattr(record, "limited", True)
        message = _log.admitted(level, record.getMessage(), monotonic_ms(), limited=is_limited)
        if message is not None:
            mark = f"[bold yellow]{WARNING}[/]" if is_warning else f"[dim]{time.strftime('%H:%M:%S')}[/]"
            _write(level, message, f"{mark} ", **getattr(record, "fields", {}))


logger.addHandler(_Notices())
logger.setLevel(logging.INFO)


def end_log() -> None:
    """Say which lines were left out since the last one of their kind."""
    for level, message in _log.left_out():
        _write(level, message, "")


def examples(*lines: str) -> str:
    """Command lines as they stand below a command's help."""
    return "[bold]Examples[/]\n\n" + "\n\n".join(f"[cyan]$ {escape(line)}[/]" for line in lines)


def print_json(value: object) -> None:
    """Print one JSON object, or list, on stdout."""
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")


def print_table(table: "tables.Table", title: str | None = None) -> None:
    """Show a table of text on stdout."""
    # Without a box, and closer on a narrow screen, the columns of a run fit into the usual 80 characters.
    padding = (0, 2 if out.width >= 100 else 1, 0, 0)
    shown = Table(title=title, title_justify="left", box=None, header_style="bold underline", padding=padding)
    for index, column in enumerate(table.columns):
        is_name = index == 0  # long ones take two lines before a number is cut
        shown.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)
    for note in table.notes:
        out.print(note, highlight=False, markup=False, soft_wrap=True)


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


def fail(message: str, code: ExitCode, error: BaseException | None = None) -> SystemExit:
    """Report an error on stderr, with its traceback under --debug; the exception that ends the process."""
    _write(Level.ERROR, message, "[bold red]error:[/] ", exit_code=int(code))
    if error is not None and is_debugging():
        err.file.write("".join(traceback.format_exception(error)))
    return SystemExit(code)


def crashed(error: Exception) -> SystemExit:
    """Report an internal error, which is a bug of Onebit; the exception that ends the process."""
    what = f"internal error: {type(error).__name__}: {error}"
    hint = "" if is_debugging() else "; run the command again with --debug for the traceback"
    return fail(f"{what}{hint}", ExitCode.CRASHED, error)


def is_debugging() -> bool:
    """Whether --debug or ONEBIT_DEBUG is given; settings that cannot be read do not hide a traceback."""
    return _debugs or "--debug" in sys.argv or os.environ.get("ONEBIT_DEBUG", "").lower() in ("1", "true", "yes", "on")


def interrupted() -> SystemExit:
    """Say that Ctrl-C broke a command off, and the exception that ends the process."""
    _write(Level.ERROR, "interrupted", "", exit_code=int(ExitCode.INTERRUPTED))
    return SystemExit(ExitCode.INTERRUPTED)
