"""The figures of a page: charts as inline SVG, drawn by matplotlib.

Figures are drawn in stand-in colours, which become CSS variables (`_as_inline`), so that they follow the reader's light
or dark mode. Each is drawn twice, wide and narrow, and the style sheet shows the one that fits, because text in a
scaled-down figure cannot be read on a phone. The same charts give the same bytes. What a page shows without its script,
and on paper, is these.

This is the only module that imports the plotting library, and only when it draws: the import takes half a second.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from stream.reporting.charts import START_SHARE, Axis, Chart, Form, Line
from stream.reporting.drawings import Drawing
from stream.reporting.tables import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis


class Size(NamedTuple):
    """How large a figure is drawn: in CSS pixels, at which its text is as large as the page's small print."""

    key: str
    width_px: int
    height_px: int
    label_chars_max: int  # longer line labels would leave no room for the lines
    labels_with_ends: bool
    ticks: tuple[int, int]  # about so many along each axis


SIZES = (
    Size("wide", 860, 400, label_chars_max=40, labels_with_ends=True, ticks=(6, 6)),
    Size("narrow", 350, 330, label_chars_max=20, labels_with_ends=False, ticks=(3, 5)),
)

# Stand-ins for what the style sheet decides: no real colour of the figures may be among them.
MUTED, GRID = "#010101", "#010102"
SERIES = tuple(f"#0102{number:02x}" for number in range(6))
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("solid", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
_VARIABLES = {MUTED: "muted", GRID: "line"} | {c: f"series-{i}" for i, c in enumerate(SERIES)}

_CSS_PX_PER_INCH = 72  # at which a point of the drawing is a pixel of the page
_FONT_PX = 12.5
CHAR_PX = 0.68 * _FONT_PX  # about as wide as a character


class Figure(NamedTuple):
    """A figure of the page."""

    title: str
    caption: str
    drawings: tuple[Drawing, ...]
    alt: str
    key: str = ""  # of the chart that the page's script shows in its place; empty: it shows none
    is_half: bool = False


def chart_figures(charts: Sequence[Chart]) -> list[Figure]:
    """The charts as they are drawn into a page; those that stand side by side in the narrow size alone."""
    figures = []
    for chart in charts:
        sizes = SIZES[1:] if chart.is_half else SIZES
        drawings = tuple(Drawing("any" if chart.is_half else size.key, _drawn(chart, size)) for size in sizes)
        figures.append(Figure(chart.title, chart.caption, drawings, chart.alt, chart.key, chart.is_half))
    return figures


def _drawn(chart: Chart, size: Size) -> str:
    shown_names = [cut(line.label, size.label_chars_max) for line in chart.lines]
    # Room on the right for the line labels, which are part of the figure and not a legend far from the lines.
    has_ends = size.labels_with_ends and not chart.is_stepped
    label_chars = max(map(len, shown_names)) + (len(" 99.99 %") if has_ends else 0)
    margins = Margins(left_px=58, right_px=14 + CHAR_PX * label_chars, top_px=24 if chart.marks else 10)
    key = f"{chart.key}-{size.key}"
    return draw(size, margins, key, chart.alt, lambda axes: _paint(axes, chart, size, shown_names))


class Margins(NamedTuple):
    """Room around the axes of a figure."""

    left_px: float
    right_px: float
    bottom_px: float = 46
    top_px: float = 10


def draw(size: Size, margins: Margins, key: str, alt: str, paint: "Callable[[Axes], None]") -> str:
    """A figure as an <svg> element of a page, which no other of the page has the key of; `paint` fills its axes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's matplotlibrc says, the page looks the same
        mpl.rcParams.update(
            {
                "svg.fonttype": "none",  # text stays text
                "svg.hashsalt": "onebit",  # identifiers are the same each time
                "font.size": _FONT_PX,
                "text.parse_math": False,  # a dollar sign in a name is a dollar sign
                "axes.edgecolor": GRID,
                "axes.labelcolor": MUTED,
                "xtick.labelcolor": MUTED,
                "ytick.labelcolor": MUTED,
                "grid.color": GRID,
            }
        )
        inches = (size.width_px / _CSS_PX_PER_INCH, size.height_px / _CSS_PX_PER_INCH)
        figure = Canvas(figsize=inches, dpi=_CSS_PX_PER_INCH)
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        axes = figure.add_axes(
            (
                margins.left_px / size.width_px,
                margins.bottom_px / size.height_px,
                1 - (margins.left_px + margins.right_px) / size.width_px,
                1 - (margins.bottom_px + margins.top_px) / size.height_px,
            )
        )
        axes.patch.set_visible(False)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        paint(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _as_inline(out.getvalue(), key, alt)


def _paint(axes: "Axes", chart: Chart, size: Size, names: Sequence[str]) -> None:
    lines = [_shown(chart, size, line) for line in chart.lines]
    end = max(line.x[-1] for line in lines)
    top = max(max(line.high or line.y) for line in lines)
    floor = 0.0
    if chart.y.scale == "log":
        floor = 10 ** math.floor(math.log10(min((y for line in lines for y in line.y if y > 0), default=0.1)))
        axes.set_yscale("log")
        axes.set_ylim(floor, min(1.0, top * 1.3) if chart.y.form == "share" else top * 1.3)
    elif chart.y_limits is not None:
        axes.set_ylim(*chart.y_limits)
    else:
        axes.set_ylim(0, (min(1.0, top * 1.05) if chart.y.form == "share" else top * 1.05) or 1.0)
    if chart.x.names:
        axes.set_xlim(-0.2, len(chart.x.names) - 0.8)
    elif chart.x.scale == "symlog":
        axes.set_xscale("symlog", linthresh=SYMLOG_LINEAR_TO)
        axes.set_xlim(min(0.0, *(line.x[0] for line in lines)), end)  # else the ends of the lines are not known yet
    elif chart.x.scale == "linear":
        axes.set_xlim(min(0.0, *(line.x[0] for line in lines)), end)
    else:
        axes.set_xscale("log", base=2 if chart.x.scale == "log2" else 10)
        axes.set_xlim(min(x for line in lines for x in line.x if x > 0), end)
    for drawn, axis, ticks in zip((axes.xaxis, axes.yaxis), (chart.x, chart.y), size.ticks, strict=True):
        _write_ticks(drawn, axis, ticks)
    both = chart.y.scale == "log" and chart.x.scale == "log"
    axes.set_xlabel(chart.x.label + (", logarithmic scales" if both else ""))
    axes.grid(True, axis="y", linewidth=0.8)
    axes.tick_params(length=0, pad=6)
    axes.tick_params(which="minor", length=0)
    for line in lines:
        color = SERIES[line.number % len(SERIES)]
        if line.low:
            lows = [max(value, floor) for value in line.low]
            axes.fill_between(line.x, lows, line.high, color=color, alpha=0.15, linewidth=0)
        axes.plot(
            line.x,
            [max(value, floor) for value in line.y],
            color=color,
            linestyle=DASHES[line.number // len(SERIES) % len(DASHES)],
            linewidth=2.0,
            solid_capstyle="round",
            clip_on=False,
            drawstyle="steps-post" if chart.is_stepped else "default",
            marker="." if len(line.x) < FEW_POINTS and not chart.is_stepped else None,
        )
    _paint_references(axes, chart, size, end)
    if chart.is_stepped:
        _name_in_turn(axes, size, lines, names)
    else:
        _label_ends(axes, chart, size, lines, names, floor)


SYMLOG_LINEAR_TO = 1.0
"""An axis that is logarithmic, and has a zero, is linear from there to here."""

FEW_POINTS = 20
"""A line of fewer points has a dot at each."""

_POINT_PX = 4.0
"""Points of a line that are closer than this are left out: they make the page large, and nobody sees them."""


def _shown(chart: Chart, size: Size, line: Line) -> Line:
    """A line in the points that are drawn: without its start where that is hidden, and no closer than can be seen."""
    if chart.is_stepped or len(line.x) < FEW_POINTS:
        return line
    at = [x if chart.x.scale == "linear" else math.log(x) for x in line.x]
    is_hidden = chart.hides_start and chart.x.scale == "linear"
    begin = next((i for i, x in enumerate(line.x) if x >= line.x[-1] * START_SHARE), 0) if is_hidden else 0
    step = (at[-1] - at[begin]) * _POINT_PX / size.width_px
    kept = [begin]
    for i in range(begin + 1, len(at)):
        if at[i] - at[kept[-1]] >= step or i == len(at) - 1:
            kept.append(i)
    x, y, low, high = ([values[i] for i in kept if values] for values in (line.x, line.y, line.low, line.high))
    return line._replace(x=x, y=y, low=low, high=high)


_NAME_CHARS_MAX = 12


def _write_ticks(drawn: "DrawnAxis", axis: Axis, ticks: int) -> None:
    from matplotlib.ticker import (
        FixedLocator,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
        PercentFormatter,
        SymmetricalLogLocator,
    )

    if axis.names:
        drawn.set_major_locator(FixedLocator(range(len(axis.names))))
        drawn.set_major_formatter(FuncFormatter(lambda place, _: cut(axis.names[round(place)], _NAME_CHARS_MAX)))
        return
    if axis.scale != "linear":
        if axis.scale == "symlog":
            locator = SymmetricalLogLocator(base=10, linthresh=SYMLOG_LINEAR_TO)
            locator.set_params(numticks=ticks)
            drawn.set_major_locator(locator)
        else:
            drawn.set_major_locator(LogLocator(base=2 if axis.scale == "log2" else 10, numticks=ticks))
        drawn.set_minor_formatter(NullFormatter())
        text = power_of_two if axis.scale == "log2" else partial(written, form=axis.form)
        drawn.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
        return
    drawn.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], integer=axis.form == "count"))
    if axis.form == "share":
        drawn.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    else:
        drawn.set_major_formatter(FuncFormatter(lambda value, _: written(value, axis.form)))


def _paint_references(axes: "Axes", chart: Chart, size: Size, end: float) -> None:
    """Draw levels and marks in the colour of small print, each with its name."""
    style = {"color": MUTED, "linewidth": 1.0, "linestyle": (0, (4, 3))}
    for level in chart.levels:
        top = axes.get_ylim()[1]
        at = level.y * end if level.is_slope else level.y
        axes.plot([0 if level.is_slope else axes.get_xlim()[0], end], [0 if level.is_slope else at, at], **style)  # type: ignore[arg-type]
        if at > top:  # it leaves at the top
            continue
        axes.text(end, at, f"{level.label} ", color=MUTED, ha="right", va="bottom", fontsize=_FONT_PX - 1.5)
    for mark in chart.marks:
        if not axes.get_xlim()[0] <= mark.x <= axes.get_xlim()[1]:
            continue
        color = MUTED if mark.number is None else SERIES[mark.number % len(SERIES)]
        axes.axvline(mark.x, **style | {"color": color})  # type: ignore[arg-type]
        place = axes.transData.transform((mark.x, 0))[0]
        side = "left" if axes.transAxes.inverted().transform((place, 0))[0] < 0.5 else "right"
        axes.text(
            mark.x, 1.02, cut(mark.label, size.label_chars_max), color=MUTED, ha=side, va="bottom",
            fontsize=_FONT_PX - 1.5, transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _name_in_turn(axes: "Axes", size: Size, lines: Sequence[Line], names: Sequence[str]) -> None:
    """Write the names of lines that all end on the floor one below the other."""
    height_px = axes.get_position().height * size.height_px
    for place, (line, name) in enumerate(zip(lines, names, strict=True)):
        axes.text(
            1.02, 0.97 - 1.3 * _FONT_PX * place / height_px, name, transform=axes.transAxes, va="center",
            color=SERIES[line.number % len(SERIES)], fontweight="bold",
        )  # fmt: skip


def _label_ends(
    axes: "Axes", chart: Chart, size: Size, lines: Sequence[Line], names: Sequence[str], floor: float
) -> None:
    """Write each line's name beside its end, moved apart where they would overlap."""
    width_px, height_px = axes.get_position().width * size.width_px, axes.get_position().height * size.height_px
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((line.x[-1], max(line.y[-1], floor))) for line in lines]
    # The lowest stays clear of the labels of the axis below.
    heights_px = _spread([y * height_px for _, y in ends], gap=1.3 * _FONT_PX, low=0.6 * _FONT_PX, high=height_px)
    for line, name, (x, y), label_px in zip(lines, names, ends, heights_px, strict=True):
        color = SERIES[line.number % len(SERIES)]
        label_y = label_px / height_px
        axes.plot(
            [x, 1 + 9 / width_px], [y, label_y], transform=axes.transAxes, color=color, linewidth=0.8, clip_on=False
        )
        axes.text(
            1 + 12 / width_px,
            label_y,
            f"{name} {_end(line.y[-1], chart.y.form)}" if size.labels_with_ends else name,
            transform=axes.transAxes,
            color=color,
            va="center_baseline",
            fontweight="bold",
        )


def _end(value: float, form: Form) -> str:
    return percent(value) if form == "share" else f"{value:,.0f}" if form == "count" else written(value, form)


def _spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart, and within [low, high] if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    # Blocks of touching labels, each centred on the mean of what its members want.
    blocks: list[list[int]] = []

    def bottom(block: list[int]) -> float:
        height = gap * (len(block) - 1)
        centred = sum(wanted[i] for i in block) / len(block) - height / 2
        return max(low, min(centred, high - height))

    for i in order:
        blocks.append([i])
        while len(blocks) > 1 and bottom(blocks[-2]) + gap * len(blocks[-2]) > bottom(blocks[-1]):
            last = blocks.pop()
            blocks[-1].extend(last)
    for block in blocks:
        for rank, i in enumerate(block):
            placed[i] = bottom(block) + gap * rank
    return placed


def _as_inline(svg: str, key: str, alt: str) -> str:
    """A drawing fit to stand inside a page with others: own identifiers, the page's colours, a description."""
    svg = svg[svg.index("<svg") :]
    opening = svg[: svg.index(">") + 1]
    view_box = re.search(r'viewBox="[^"]*"', opening)
    assert view_box is not None
    body = svg[len(opening) :]
    body = re.sub(r'\bid="([^"]*)"', rf'id="{key}-\1"', body)
    body = re.sub(r'xlink:href="#', f'href="#{key}-', body)
    body = re.sub(r"url\(#", f"url(#{key}-", body)
    body = re.sub(r'\bd="([^"]*)"', lambda path: f'd="{_LONG.sub(_tenths, path[1])}"', body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var(--{variable})")
    return f'<svg {view_box.group()} role="img" aria-label="{escape(alt)}">' + body.strip()


_LONG = re.compile(r"-?\d+\.\d\d+")


def _tenths(number: "re.Match[str]") -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{float(number[0]):.1f}"


def cut(name: str, chars_max: int) -> str:
    """A long name without its middle: what tells it from others is mostly at its end."""
    if len(name) <= chars_max:
        return name
    head = chars_max // 3
    return name[:head] + "…" + name[-(chars_max - head - 1) :]


def written(value: float, form: Form) -> str:
    """A number on an axis.

    >>> written(20_000, "count"), written(0.05, "share"), written(10, "ms"), written(100_000, "ms")
    ('20k', '5 %', '10 ms', '100 s')
    """
    if form == "share":
        return f"{100 * value:.6g} %"
    if form == "ms":
        return f"{value:g} ms" if value < 1_000 else f"{value / 1_000:,.6g} s"
    return compact(value)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_two(value: float) -> str:
    """A power of two as one.

    >>> power_of_two(0.25)
    '2⁻²'
    """
    return f"2{str(round(math.log2(value))).translate(_SUPERSCRIPTS)}"


def compact(value: float) -> str:
    """A count on an axis: 500, 20k, 1.5M."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"
