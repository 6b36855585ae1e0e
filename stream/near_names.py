"""The known names that are nearest to a mistyped one."""

import difflib
from collections.abc import Iterable


def close_matches(word: str, known: Iterable[str]) -> str:
    """A hint such as "; did you mean optdigits?", or nothing.

    >>> close_matches("banditrn", ["banditron", "perceptron"]), close_matches("zzz", ["banditron"])
    ('; did you mean banditron?', '')
    """
    matches = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
