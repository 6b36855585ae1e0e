"""A chart as numbers, which the script of a page draws.

A line has a number of its own, by which it has the same colour in all charts of a page.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import orjson

Form = Literal["count", "share", "ms", "number"]
Scale = Literal["linear", "log", "log2", "symlog"]


class Axis(NamedTuple):
    """A coordinate: what it says, how its numbers are written, and how they are spaced at first."""

    label: str
    form: Form
    scale: Scale = "linear"
    names: Sequence[str] = ()  # of the places 0, 1, 2 ... where it has names instead of numbers


class Line(NamedTuple):
    """A line with as many ordinates as abscissas, ascending; with a band around it where low and high are given."""

    number: int
    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


class Level(NamedTuple):
    """A line across the chart, or through its origin with this slope."""

    label: str
    y: float
    is_slope: bool = False


class Mark(NamedTuple):
    """A line from the bottom to the top."""

    label: str  # empty: another one says it
    x: float
    number: int | None = None  # that of the line that it belongs to; None: it belongs to several


class Chart(NamedTuple):
    """All that is shown of something."""

    key: str  # no other chart of the page has it
    title: str
    caption: str
    alt: str  # what it shows, for those who cannot see it
    x: Axis
    y: Axis
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    is_half: bool = False  # two of them stand side by side where there is room
    is_pointwise: bool = False  # values with their intervals, not joined by lines
    is_stepped: bool = False  # a value holds up to the next abscissa
    hides_start: bool = False  # on a linear abscissa, where the noise of the first points would be one high spike
    compares: bool = False  # lines may be shown less one of them
    y_limits: tuple[float, float] | None = None  # of a linear ordinate at first; None: from 0 to above all lines


def chart_json(charts: Sequence[Chart]) -> str:
    """The charts as JSON for the script of a page, fit to stand within an element of it."""
    return escaped_json([_plain(chart) for chart in charts])


def escaped_json(value: object) -> str:
    """JSON in which no text can end the element that it stands in."""
    return orjson.dumps(value).decode().replace("<", "\\u003c")


DIGITS = 5
"""That count, of each number: a hundredth of a pixel."""


def _plain(chart: Chart) -> dict[str, Any]:
    fields = chart._asdict() | {"x": chart.x._asdict(), "y": chart.y._asdict()}
    fields["levels"] = [level._asdict() for level in chart.levels]
    fields["marks"] = [mark._asdict() for mark in chart.marks]
    xs: list[Sequence[float]] = []  # most lines have the same abscissas
    fields["lines"] = []
    for line in chart.lines:
        x = tuple(line.x)
        if x not in xs:
            xs.append(x)
        numbers = {name: list(map(_rounded, getattr(line, name))) for name in ("y", "low", "high")}
        fields["lines"].append({"number": line.number, "label": line.label, "x": xs.index(x), **numbers})
    return fields | {"xs": [list(map(_rounded_x, x)) for x in xs]}


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _rounded_x(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.8g}")
