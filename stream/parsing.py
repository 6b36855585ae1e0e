"""Strict parsing of numbers and durations, and formatting of values for messages.

`int` and `float` also accept underscores (1_0), digits from any script, and surrounding spaces. Such text is usually a
typo, so it is rejected here.
"""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from stream.errors import OnebitError

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_DIGITS_MAX = 1_000  # for much longer numbers, `int` raises an exception


def parse_whole(text: str) -> int | None:
    """Parse a whole number; return None for other text.

    >>> [parse_whole(text) for text in ("12", "-3", "+07", "1_0", " 1", "1.0", "١", "")]
    [12, -3, 7, None, None, None, None, None]
    """
    return int(text) if len(text) <= _DIGITS_MAX and _WHOLE.fullmatch(text) else None


def parse_number(text: str) -> float | None:
    """Parse a finite number in decimal notation; return None for other text.

    >>> [parse_number(text) for text in ("1.5", "-2", ".5", "1e3", "1_0", "nan", "inf", "1e999", "0x10", "")]
    [1.5, -2.0, 0.5, 1000.0, None, None, None, None, None, None]
    """
    number = float(text) if _DECIMAL.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def parse_exact(text: str) -> Decimal | None:
    """Parse a number that `parse_number` accepts, without rounding it to a float.

    >>> parse_exact("9007199254740993"), parse_exact("1.0") == parse_exact("1"), parse_exact("nan")
    (Decimal('9007199254740993'), True, None)
    """
    return None if parse_number(text) is None else Decimal(text)


UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

DURATION_MS_MAX = 10 * 365 * UNITS_MS["d"]
"""Ten years. A longer duration is probably a typo, and times must not overflow an int64."""


class DurationError(OnebitError, ValueError):
    """The text is not a duration."""


_DURATION = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: str) -> int:
    """Parse a duration and return it in milliseconds.

    >>> [parse_duration(text) for text in ("250ms", "10s", "1.5m", "2h", "7d")]
    [250, 10000, 90000, 7200000, 604800000]
    """
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise DurationError(
            f"expected a duration: a number and a unit (ms, s, m, h, d), such as 250ms, 10s, 5m, 2h, 7d; got {text!r}"
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
    """Parse a speed factor such as `1x`, `60x` or `0.5x`; `max` is infinity.

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
    """Format a duration in the largest unit that divides it evenly. `parse_duration` is the inverse.

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


def close_matches(word: str, known: Iterable[str]) -> str:
    """Return a hint such as "; did you mean optdigits?", or an empty string if no known word is similar.

    >>> close_matches("banditrn", ["banditron", "perceptron"]), close_matches("zzz", ["banditron"])
    ('; did you mean banditron?', '')
    """
    matches = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


def shown(value: object) -> str:
    """Format a value for a message, shortened to about 80 characters.

    >>> shown(None), shown("a"), shown([1] * 100)[-12:]
    ('nothing', "'a'", ', 1, 1, 1...')
    """
    if value is None:
        return "nothing"
    if isinstance(value, Sequence) and len(value) > 40:
        return f"{repr_of(value[:40], 80)}..."
    return repr_of(value, 80)


def repr_of(value: object, length: int) -> str:
    """Return the first characters of a value's `repr`, even for deeply nested JSON.

    Python's `repr` fails for deeply nested values, such as a kilobyte of brackets.

    >>> repr_of({"a": [1, 2, 3]}, 12)
    "{'a': [1, 2,"
    """
    return repr(_to_depth(value, length))[:length]


def _to_depth(value: Any, depth: int) -> Any:
    """Return a value without the parts that are nested more than `depth` levels deep."""
    if type(value) is list:
        return [_to_depth(item, depth - 1) for item in value] if depth > 0 else []
    if type(value) is dict:
        return {name: _to_depth(item, depth - 1) for name, item in value.items()} if depth > 0 else {}
    return value
