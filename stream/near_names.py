"""Suggestions for mistyped names."""

import difflib
from collections.abc import Iterable


def close_matches(word: str, known: Iterable[str]) -> str:
    """Return a hint such as "; did you mean optdigits?", or an empty string.

    >>> close_matches("banditrn", ["banditron", "perceptron"]), close_matches("zzz", ["banditron"])
    ('; did you mean banditron?', '')
    """
    matches = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
