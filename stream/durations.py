"""Durations as text and in milliseconds."""

import re
from fractions import Fraction

from stream.errors import OnebitError
from stream.parsing import parse_number

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}

DURATION_MS_MAX = 10 * 365 * 24 * UNITS_MS["h"]
"""Ten years. Longer durations are typing errors, and times must not overflow an int64."""


class DurationError(OnebitError, ValueError):
    """The text is not a duration."""


_DURATION = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)(ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> int:
    """Parse a duration and return it in milliseconds.

    >>> parse_duration("250ms"), parse_duration("10s"), parse_duration("1.5m"), parse_duration("2h")
    (250, 10000, 90000, 7200000)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise DurationError(
            f"expected a duration: a number and a unit (ms, s, m, h), such as 250ms, 10s, 5m, 2h; got {text!r}"
        )
    duration_ms = Fraction(match[1]) * UNITS_MS[match[2]]
    if duration_ms.denominator != 1:
        raise DurationError(f"expected a whole number of milliseconds, such as 250ms or 0.5s; got {text!r}")
    if duration_ms > DURATION_MS_MAX:
        raise DurationError(
            f"expected a duration of at most ten years ({format_duration(DURATION_MS_MAX)}); got {text!r}"
        )
    return int(duration_ms)


def parse_speed(text: str) -> float:
    """Parse a speed factor: `1x`, `60x`, `0.5x`; `max` is infinity.

    >>> parse_speed("60x"), parse_speed("max")
    (60.0, inf)

    Raises:
        DurationError: the text is not a speed.
    """
    if text == "max":
        return float("inf")
    factor = parse_number(text.removesuffix("x")) if text.endswith("x") else None
    if factor is None or not factor > 0.0:
        raise DurationError(f"expected a speed such as 1x or 60x, or max; got {text!r}")
    return factor


def format_duration(duration_ms: int) -> str:
    """Format a duration in the largest unit that divides it; `parse_duration` parses it.

    >>> format_duration(90_000), format_duration(7_200_000), format_duration(0)
    ('90s', '2h', '0ms')
    """
    if duration_ms < 0:
        raise DurationError(f"expected a duration of at least 0 ms; got {duration_ms} ms")
    unit = "ms"
    for name, unit_ms in UNITS_MS.items():
        if duration_ms > 0 and duration_ms % unit_ms == 0:
            unit = name
    return f"{duration_ms // UNITS_MS[unit]}{unit}"
