"""The lines of a program's log: which are written, how often, and as what."""

import re
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, NamedTuple

import orjson


class Level(IntEnum):
    """How much a line matters."""

    INFO = 0
    WARNING = 1
    ERROR = 2


LEVELS = {level.name.lower(): level for level in Level}

INTERVAL_MS = 10_000
LINES_MAX = 10
"""Of one kind so many lines are written within an interval; the next one, or the end, says how many were not."""

KINDS_MAX = 1_000
"""So many kinds are told apart; the one that came first makes room."""

_NUMBER = re.compile(r"\d[\d.,]*")
_KIND_CHARACTERS = 100


class _Kind:
    """Lines that differ in their numbers alone, within one interval."""

    __slots__ = ("began_ms", "left_out", "written")

    def __init__(self, began_ms: int, left_out: int) -> None:
        self.began_ms = began_ms
        self.written = 0
        self.left_out = left_out


class LogLines:
    """Lets lines through: those that matter enough, and not too many of one kind."""

    def __init__(self, level: Level = Level.INFO) -> None:
        self.level = level
        self._kinds: dict[tuple[Level, str], _Kind] = {}

    def admitted(self, level: Level, message: str, now_ms: int, *, limited: bool = True) -> str | None:
        """The line as it is to be written; None: it is not. One that is not limited is written however often it comes.

        >>> lines = LogLines()
        >>> [lines.admitted(Level.INFO, f"late by {n} s", 0) for n in range(11)][-1]
        >>> lines.admitted(Level.INFO, "late by 99 s", 10_000)
        'late by 99 s (and 1 such line was left out)'
        """
        if level < self.level:
            return None
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
        return f"{message} (and {left_out:,} such {'line was' if left_out == 1 else 'lines were'} left out)"

    def left_out(self) -> list[tuple[Level, str]]:
        """What to say at the end of the lines that were left out, and of which nobody heard."""
        kinds = [(level, text, kind.left_out) for (level, text), kind in self._kinds.items() if kind.left_out]
        return [
            (level, f"{count:,} more {'line was' if count == 1 else 'lines were'} left out such as: {text}")
            for level, text, count in kinds
        ]


class Line(NamedTuple):
    """A line of a log in JSON."""

    time: str  # UTC, by this host's clock
    level: str
    message: str


def as_json(level: Level, message: str, now_ms: int, **more: Any) -> str:
    """A line as one JSON object.

    >>> as_json(Level.WARNING, "slow", 1_700_000_000_250)
    '{"time":"2023-11-14T22:13:20.250Z","level":"warning","message":"slow"}'
    """
    time = datetime.fromtimestamp(now_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = Line(time, level.name.lower(), message)
    return orjson.dumps(line._asdict() | more, default=str).decode()
