"""Command output: tables and progress for people, JSON for programs. Errors and the log go to stderr."""

import atexit
import logging
import os
import re
import signal
import sys
import time
import traceback
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stream.errors import ExitCode, OnebitError
from stream.programs.process import WARNING, announce, logger, monotonic_ms

if TYPE_CHECKING:
    from stream.reporting import tables


INTERVAL_MS = 10_000
LINES_MAX = 10
"""Maximum number of similar lines per interval. The number of dropped lines is reported with the next such line, or at
the end of the log."""

KINDS_MAX = 1_000
"""Maximum number of kinds of similar lines to count. The oldest kind is removed first."""

_NUMBER = re.compile(r"\d[\d.,]*")
_KIND_CHARACTERS = 100


class _Kind:
    """Counts of similar log lines in one interval. Similar lines differ only in their numbers."""

    __slots__ = ("began_ms", "left_out", "written")

    def __init__(self, began_ms: int, left_out: int) -> None:
        self.began_ms = began_ms
        self.written = 0
        self.left_out = left_out


class LogLines:
    """Limits the rate of similar log lines."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, str], _Kind] = {}  # by level and text

    def admitted(self, level: int, message: str, now_ms: int, *, limited: bool = True) -> str | None:
        """Return the line to write, or None to drop it. Lines with `limited=False` are exempt from the rate limit.

        >>> lines = LogLines()
        >>> [lines.admitted(logging.INFO, f"late by {n} s", 0) for n in range(11)][-1]
        >>> lines.admitted(logging.INFO, "late by 99 s", 10_000)
        'late by 99 s (and 1 similar line was dropped)'
        """
        if not limited:
            return message
        name = (level, _NUMBER.sub("#", message[:_KIND_CHARACTERS]))
        kind = self._kinds.get(name)
        if kind is None or now_ms - kind.began_ms >= INTERVAL_MS:
            if kind is None and len(self._kinds) >= KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            kind = self._kinds[name] = _Kind(now_ms, 0 if kind is None else kind.left_out)
        if kind.written >= LINES_MAX:
            kind.left_out += 1
            return None
        kind.written += 1
        left_out, kind.left_out = kind.left_out, 0
        if not left_out:
            return message
        return f"{message} (and {left_out:,} similar {'line was' if left_out == 1 else 'lines were'} dropped)"

    def left_out(self) -> list[tuple[int, str]]:
        """Return the final reports about dropped lines."""
        kinds = [(level, text, kind.left_out) for (level, text), kind in self._kinds.items() if kind.left_out]
        return [
            (level, f"{count:,} more {'line was' if count == 1 else 'lines were'} dropped, similar to: {text}")
            for level, text, count in kinds
        ]


def as_json(level: int, message: str, now_ms: int, **more: Any) -> str:
    """Format a log line as a JSON object. The time is UTC, by this host's clock.

    >>> as_json(logging.WARNING, "slow", 1_700_000_000_250)
    '{"time":"2023-11-14T22:13:20.250Z","level":"warning","message":"slow"}'
    """
    time = datetime.fromtimestamp(now_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": time, "level": logging.getLevelName(level).lower(), "message": message}
    return orjson.dumps(line | more, default=str).decode()


class _Output(Console):
    """A console that leaves a closed pipe to the command; see `LazyGroup.invoke` in app.py."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


out = _Output(emoji=False)
err = Console(stderr=True, emoji=False)


_log = LogLines()
_is_json = False
_debugs = False


def write_log(form: Literal["text", "json"], level: str, *, debug: bool = False) -> None:
    """Set the format and the lowest level for the log on stderr, and whether errors include tracebacks."""
    global _log, _is_json, _debugs
    _log, _is_json, _debugs = LogLines(), form == "json", debug
    logger.setLevel(level.upper())


def _write(level: int, message: str, mark: str, **more: Any) -> None:
    """Write a log line. Lines in text format start with the mark, which may be coloured."""
    if _is_json:
        err.file.write(as_json(level, message, time.time_ns() // 1_000_000, **more) + "\n")
        err.file.flush()
    else:
        err.print(f"{mark}{escape(message)}", highlight=False, soft_wrap=True)


def has_moving_lines() -> bool:
    """Return whether progress bars are possible: stderr is a terminal, and the log is text."""
    return err.is_terminal and not _is_json


class _Notices(logging.Handler):
    """Writes notices from the use cases to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record; see `logging.Handler`."""
        is_warning = record.levelno >= logging.WARNING
        level = logging.WARNING if is_warning else logging.INFO
        is_limited = getattr(record, "limited", True)
        message = _log.admitted(level, record.getMessage(), monotonic_ms(), limited=is_limited)
        if message is not None:
            mark = f"[bold yellow]{WARNING}[/]" if is_warning else f"[dim]{time.strftime('%H:%M:%S')}[/]"
            _write(level, message, f"{mark} ", **getattr(record, "fields", {}))


logger.addHandler(_Notices())
logger.setLevel(logging.INFO)


def end_log() -> None:
    """Log the number of dropped lines for each kind of line."""
    for level, message in _log.left_out():
        _write(level, message, "")


def examples(*lines: str) -> str:
    """Format example command lines for the end of a command's help."""
    return "[bold]Examples[/]\n\n" + "\n\n".join(f"[cyan]$ {escape(line)}[/]" for line in lines)


def print_json(value: object) -> None:
    """Print one JSON object, or list, on stdout."""
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")


def print_line(text: str, *, markup: bool = True) -> None:
    """Print text on stdout without coloured numbers, and without breaking long lines."""
    out.print(text, highlight=False, markup=markup, soft_wrap=True)


def print_table(table: "tables.Table", title: str | None = None) -> None:
    """Print a table on stdout."""
    # Without borders, and with narrow padding, a run's table fits into 80 characters.
    padding = (0, 2 if out.width >= 100 else 1, 0, 0)
    shown = Table(title=title, title_justify="left", box=None, header_style="bold underline", padding=padding)
    for index, column in enumerate(table.columns):
        is_name = index == 0  # long names wrap; numbers are never cut
        shown.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)
    for note in table.notes:
        print_line(note, markup=False)


def boxed_table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """Create an empty table with borders and right-aligned number columns."""
    table = Table()
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Handles stop signals. The first Ctrl-C or SIGTERM requests a stop, and a second Ctrl-C interrupts the program."""

    def __init__(self, first: str = "") -> None:
        """Install the signal handlers.

        Args:
            first: Describes the work that must be completed before the process stops; empty if there is none.
        """
        self.stopped = False
        self._message = f"stopping: {first}" if first else "stopping"
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        atexit.register(_end_undisturbed)

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self.stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        announce(self._message)
        self.stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_undisturbed() -> None:
    """Ignore signals during shutdown. Without a handler, a signal would change the exit code."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def fail(message: str, code: ExitCode, error: BaseException | None = None) -> SystemExit:
    """Report an error on stderr, with its traceback if --debug is set. Return the exception that ends the process."""
    _write(logging.ERROR, message, "[bold red]error:[/] ", exit_code=int(code))
    if error is not None and is_debugging():
        err.file.write("".join(traceback.format_exception(error)))
    return SystemExit(code)


def crashed(error: Exception) -> SystemExit:
    """Report an internal error (a bug in Onebit), and return the exception that ends the process."""
    what = f"internal error: {type(error).__name__}: {error}"
    hint = "" if is_debugging() else "; use --debug to see the traceback"
    return fail(f"{what}{hint}", ExitCode.CRASHED, error)


def is_debugging() -> bool:
    """Return whether --debug or ONEBIT_DEBUG is set. Works even if the settings cannot be read."""
    return _debugs or "--debug" in sys.argv or os.environ.get("ONEBIT_DEBUG", "").lower() in ("1", "true", "yes", "on")


def interrupted() -> SystemExit:
    """Report an interruption by Ctrl-C. Return the exception that ends the process."""
    _write(logging.ERROR, "interrupted", "", exit_code=int(ExitCode.INTERRUPTED))
    return SystemExit(ExitCode.INTERRUPTED)


POLICY_HINTS = {
    "NO_LABEL": "use --on-expiry drop",
    "NOTHING_ASSUMED": "--late correct needs --on-expiry negative",
    "NOT_RETRACTABLE": "use another --learner, or --late ignore",
    "NOT_FROM_LOGS": "use another --learner, or --play match",
    "NO_ELIGIBLE": "use another --learner",
    "NO_OWN_DECISIONS": "use another --learner, or a smaller --holdout",
    "NO_CHALLENGE": "use another --challenger or --learner",
    "ONE_RIGHT_CLASS": "use another --learner",
    "NOT_FOR_ACTIONS": "to decide among classes, omit --actions-max, or use data without actions",
    "FOR_ACTIONS": "to decide among actions, set --actions-max",
    "NO_SUM_OF_BITS": "use --feedback max, or --rewards graded",
    "NO_SUM_CORRECTED": "use --late ignore, or --feedback max",
    "NO_VALUES": "use another --learner, or --rewards bit",
}
"""Remedies for settings that the learner does not support, by reason."""


def hint_of(error: OnebitError) -> str:
    """Return the remedy for an error from a lower layer, in terms of flags; empty if no remedy is known."""
    from stream.devkafka.local_kafka import LocalKafkaPortError
    from stream.kafka.port import AccessError
    from stream.settings.sources import access_hint

    if isinstance(error, AccessError):
        return access_hint(error)
    if isinstance(error, LocalKafkaPortError):
        return "choose another port with --port"
    # Do not import the module here, because this would load the compiler. A module that is not loaded cannot have
    # raised the error.
    if "stream.task.settings" in sys.modules:
        from stream.task.settings import PolicyError

        if isinstance(error, PolicyError):
            return POLICY_HINTS[error.reason.name]
    return error.hint
