"""Strict parsing of numbers.

`int` and `float` also accept underscores (1_0), digits of every script and surrounding spaces. Such text is usually a
typing error, so it is rejected here.
"""

import math
import re

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_DIGITS_MAX = 1_000  # Python raises another exception for much longer numbers


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
