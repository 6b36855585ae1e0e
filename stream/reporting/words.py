"""Words and numbers as a page has them."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: a, b and c; nothing for none."""
    return "".join(names) if len(names) < 2 else ", ".join(names[:-1]) + " and " + names[-1]


def unbroken(text: str) -> str:
    """Keep a number and its unit on one line."""
    return re.sub(r"(\d) (?=(%|ms|s|min|h)\b|%)", "\\1\N{NO-BREAK SPACE}", text)


def shared(values: Iterable[str]) -> str:
    """What several runs have in common, or what each of them has."""
    return listed(list(dict.fromkeys(values)))


def by_run(names: Sequence[str], values: Sequence[str]) -> str:
    """One value where all runs have the same, else the value of each."""
    if len(set(values)) == 1:
        return values[0]
    return "; ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def value_text(value: object) -> str:
    """A setting or a parameter for people."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {value_text(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "none"
    return str(value)


def is_number(value: object) -> bool:
    """Whether a setting is a number that can be shown as one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number_text(value: object) -> str:
    """A number for people: no more digits than count, and a dash for what is not known."""
    if not isinstance(value, int | float) or math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def rate(value: float | None) -> str:
    """An estimated rate, which may be as small as a click rate; a dash where there is none.

    >>> rate(0.004), rate(None), rate(float("nan"))
    ('0.00400', '–', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.5f}"


def between(ends: tuple[float, float] | None) -> str:
    """The ends of an interval of rates; a dash where there is none."""
    return "–" if ends is None else f"{rate(ends[0])} to {rate(ends[1])}"
