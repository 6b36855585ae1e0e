"""Numbers as people write them, and nothing else that Python would read as one.

`int` and `float` also take 1_0 for ten, digits of every script, and spaces around them: a slip, or a word that only
looks like a number, would be read without notice.
"""

import math
import re

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_DIGITS_MAX = 1_000  # Python refuses to convert much longer ones, by another exception


def parse_whole(text: str) -> int | None:
    """The whole number that a text is; None when it is none.

    >>> [parse_whole(text) for text in ("12", "-3", "+07", "1_0", " 1", "1.0", "١", "")]
    [12, -3, 7, None, None, None, None, None]
    """
    return int(text) if len(text) <= _DIGITS_MAX and _WHOLE.fullmatch(text) else None


def parse_number(text: str) -> float | None:
    """The finite number that a text is, in decimal notation; None when it is none.

    >>> [parse_number(text) for text in ("1.5", "-2", ".5", "1e3", "1_0", "nan", "inf", "1e999", "0x10", "")]
    [1.5, -2.0, 0.5, 1000.0, None, None, None, None, None, None]
    """
    number = float(text) if _DECIMAL.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None
