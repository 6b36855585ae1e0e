"""Chart data, and the script that draws the charts: uPlot (MIT licence, included in the page) and Onebit's code.

A line's number determines its colour and dashes in all charts on a page. The page's content security policy allows only
this script, so that text from data sets and settings cannot inject code.
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import orjson

Form = Literal["count", "share", "ms", "number"]
Scale = Literal["linear", "log", "log2", "symlog"]


class Axis(NamedTuple):
    """An axis with its label, number format and initial scale."""

    label: str
    form: Form
    scale: Scale = "linear"
    names: Sequence[str] = ()  # labels at positions 0, 1, 2, ..., which replace the numbers


class Line(NamedTuple):
    """A line with ascending x values, and with a band if low and high are given."""

    number: int | None  # None for a line that is the same for all learners
    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


class Level(NamedTuple):
    """A reference line: horizontal at y, or through the origin with slope y."""

    label: str
    y: float
    is_slope: bool = False


class Mark(NamedTuple):
    """A vertical line with a label."""

    label: str  # empty if another mark already shows the label
    x: float
    number: int | None = None  # number of the corresponding line; None if there are several


class Chart(NamedTuple):
    """A chart."""

    key: str  # id, unique on the page
    title: str
    caption: str
    alt: str  # text alternative for screen readers
    x: Axis
    y: Axis
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    is_half: bool = False  # True if two of these charts are shown side by side on a wide page
    is_pointwise: bool = False  # True for separate points, with intervals if given, not joined by lines
    hides_start: bool = False  # True to omit the noisy first points on a linear x-axis
    compares: bool = False  # True if the page offers to show the lines relative to one of them
    y_limits: tuple[float, float] | None = None  # initial range of a linear y-axis; None: from 0 to the maximum


def chart_json(charts: Sequence[Chart]) -> str:
    """Return the charts as JSON for the page's script, escaped for use in an HTML element."""
    return escaped_json([_plain(chart) for chart in charts])


def escaped_json(value: object) -> str:
    """Encode a value as JSON in which no string can close the surrounding HTML element."""
    return orjson.dumps(value).decode().replace("<", "\\u003c")


DIGITS = 5
"""Number of significant digits in coordinates; the rounding error is about a hundredth of a pixel."""


def _plain(chart: Chart) -> dict[str, Any]:
    fields = chart._asdict() | {"x": chart.x._asdict(), "y": chart.y._asdict()}
    fields["levels"] = [level._asdict() for level in chart.levels]
    fields["marks"] = [mark._asdict() for mark in chart.marks]
    xs: list[Sequence[float]] = []  # most lines have equal x values
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


class Script(NamedTuple):
    """A script, its hash for the content security policy, and its style sheet."""

    text: str
    digest: str
    style: str


@cache
def script() -> Script:
    """Return the script for pages with charts."""
    text = f"{uplot()}{_read('charts.js')}\n"
    digest = f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
    return Script(text, digest, uplot_style())


def uplot() -> str:
    """Return uPlot with its licence."""
    return f"{_read('language.js')}\n/* uPlot\n{_read('uplot/LICENSE')}\n*/\n{_read('uplot/uPlot.iife.min.js')}\n"


def uplot_style() -> str:
    """Return uPlot's style sheet."""
    return _read("uplot/uPlot.min.css")


def _read(name: str) -> str:
    return (files("stream.reporting") / "templates" / name).read_text(encoding="utf-8").strip()
