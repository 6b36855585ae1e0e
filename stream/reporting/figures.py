"""The figures of a page: error curves as inline SVG, drawn by matplotlib.

Figures are drawn in stand-in colours, which become CSS variables (`_as_inline`), so that they follow the reader's light
or dark mode. Each is drawn twice, wide and narrow, and the style sheet shows the one that fits, because text in a
scaled-down figure cannot be read on a phone. The same reports give the same bytes.

This is the only module that imports the plotting library, and only when it draws: the import takes half a second.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from stream.reporting.run_report import RunReport
from stream.reporting.tables import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Line = list[tuple[int, float]]  # (decisions, error rate), in ascending order of decisions


class _Plot(NamedTuple):
    """What the axes of a figure show."""

    key: str
    title: str
    caption: Callable[[RunReport], str]
    rate: Callable[[RunReport], _Line]
    alt: str
    from_start: bool  # the first decisions are shown, which on logarithmic axes means a logarithmic abscissa too


def _progressive(report: RunReport) -> _Line:
    few = min(10, report.errors.events)  # the first decisions are all or nothing
    return [(point.events, point.error_rate) for point in report.errors.points if point.events >= few]


def _windowed(report: RunReport) -> _Line:
    points = report.errors.points
    return [(point.events, point.window_error_rate) for point in points if not math.isnan(point.window_error_rate)]


def _known(report: RunReport) -> _Line:
    few = min(10, report.ledger.matched)
    return [(point.decided, point.error_rate) for point in report.delayed if point.matched >= max(1, few)]


def _expired(report: RunReport) -> _Line:
    if not any(point.expired for point in report.delayed):
        return []
    return [(point.decided, point.expired_rate) for point in report.delayed if point.matched + point.expired]


def _outstanding(report: RunReport) -> str:
    return f"{report.delayed[-1].outstanding:,}" if report.delayed else "none"


_PLOTS = (
    _Plot(
        "progressive",
        "Progressive error",
        lambda report: (
            "Share of wrong decisions among all decisions so far. Each is judged as it was made, "
            "before its feedback could teach anything."
        ),
        _progressive,
        "the progressive error after each number of decisions",
        from_start=True,
    ),
    _Plot(
        "windowed",
        "Recent error",
        lambda report: (
            f"Share of wrong decisions among the last {report.errors.window_events:,}: how good the learner is by "
            "then, whatever it did at first."
        ),
        _windowed,
        "the error over a sliding window of decisions",
        from_start=False,
    ),
    _Plot(
        "known",
        "Error as it could be known",
        lambda report: (
            "Share of wrong decisions among those whose feedback had come when so many decisions had been made. "
            f"At the last decision {_outstanding(report)} were outstanding, of which nothing is shown."
        ),
        _known,
        "the error among the decisions with feedback, as it could be known after each number of decisions",
        from_start=False,
    ),
    _Plot(
        "expired",
        "Expired",
        lambda report: (
            "Share of decisions that had expired, among those that had expired or been matched when so "
            "many decisions had been made."
        ),
        _expired,
        "the share of expired decisions among the settled, after each number of decisions",
        from_start=False,
    ),
)


class Size(NamedTuple):
    """How large a figure is drawn: in CSS pixels, at which its text is as large as the page's small print."""

    key: str
    width_px: int
    height_px: int
    label_chars_max: int  # longer line labels would leave no room for the lines
    labels_with_rates: bool
    ticks: tuple[int, int]  # about so many along each axis


SIZES = (
    Size("wide", 860, 400, label_chars_max=40, labels_with_rates=True, ticks=(6, 6)),
    Size("narrow", 350, 330, label_chars_max=20, labels_with_rates=False, ticks=(3, 5)),
)

# Stand-ins for what the style sheet decides: no real colour of the figures may be among them.
MUTED, GRID = "#010101", "#010102"
SERIES = tuple(f"#0102{number:02x}" for number in range(6))
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("solid", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
_VARIABLES = {MUTED: "muted", GRID: "line"} | {c: f"series-{i}" for i, c in enumerate(SERIES)}

_CSS_PX_PER_INCH = 72  # at which a point of the drawing is a pixel of the page
_FONT_PX = 12.5
CHAR_PX = 0.68 * _FONT_PX  # about as wide as a character
_LOG_BELOW = 0.02  # a linear axis from 0 shows errors below this as a line on the floor


class Drawing(NamedTuple):
    """A figure drawn in one size."""

    size: str  # the class in the style sheet: wide or narrow
    svg: str  # an <svg> element; text from outside is escaped in it


class Figure(NamedTuple):
    """A figure of the page."""

    title: str
    caption: str
    drawings: tuple[Drawing, ...]


def error_figures(names: Sequence[str], reports: Sequence[RunReport]) -> list[Figure]:
    """The error curves of runs side by side; none for runs without a decision."""
    figures = []
    for plot in _PLOTS:
        lines = [plot.rate(report) for report in reports]
        ends = [f"{name} {percent(line[-1][1])}" for name, line in zip(names, lines, strict=True) if line]
        if ends:
            alt = f"Line chart of {plot.alt}. At the end: {'; '.join(ends)}."
            drawings = tuple(Drawing(size.key, _draw(plot, size, names, lines, alt)) for size in SIZES)
            figures.append(Figure(plot.title, plot.caption(reports[0]), drawings))
    return figures


def _draw(plot: _Plot, size: Size, names: Sequence[str], lines: Sequence[_Line], alt: str) -> str:
    shown_names = [cut(name, size.label_chars_max) for name in names]
    # Room on the right for the line labels, which are part of the figure and not a legend far from the lines.
    label_chars = max(map(len, shown_names)) + (len(" 99.99 %") if size.labels_with_rates else 0)
    margins = Margins(left_px=58, right_px=14 + CHAR_PX * label_chars)
    key = f"{plot.key}-{size.key}"
    return draw(size, margins, key, alt, lambda axes: _plot_lines(axes, plot, size, shown_names, lines))


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


def _plot_lines(axes: "Axes", plot: _Plot, size: Size, names: Sequence[str], lines: Sequence[_Line]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

    drawn = [(number, name, line) for number, (name, line) in enumerate(zip(names, lines, strict=True)) if line]
    top = max(rate for _, _, line in drawn for _, rate in line)
    logarithmic = min(line[-1][1] for _, _, line in drawn) < _LOG_BELOW < top
    events = max(line[-1][0] for _, _, line in drawn)
    floor = 0.0
    if logarithmic:
        floor = 10 ** math.floor(math.log10(min(rate for _, _, line in drawn for _, rate in line if rate > 0)))
        axes.set_yscale("log")
        axes.set_ylim(floor, min(1.0, top * 1.3))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:g} %"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, min(1.0, top * 1.05) or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(size.ticks[1], steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    if logarithmic and plot.from_start:
        axes.set_xscale("log")
        axes.set_xlim(min(line[0][0] for _, _, line in drawn), events)
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, events)
        axes.xaxis.set_major_locator(MaxNLocator(size.ticks[0], steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.set_xlabel("decisions" + (", logarithmic scales" if logarithmic and plot.from_start else ""))
    axes.grid(True, axis="y", linewidth=0.8)
    axes.tick_params(length=0, pad=6)
    axes.tick_params(which="minor", length=0)
    for number, _, line in drawn:
        # On a linear axis the noise of the first few decisions would be a spike as high as the figure.
        shown = (
            line if logarithmic or not plot.from_start else [point for point in line if point[0] >= line[-1][0] / 200]
        )
        axes.plot(
            [at for at, _ in shown],
            [max(rate, floor) for _, rate in shown],
            color=SERIES[number % len(SERIES)],
            linestyle=DASHES[number // len(SERIES) % len(DASHES)],
            linewidth=2.0,
            solid_capstyle="round",
            clip_on=False,
        )
    _label_ends(axes, size, drawn, floor)


def _label_ends(axes: "Axes", size: Size, drawn: Sequence[tuple[int, str, _Line]], floor: float) -> None:
    """Write each line's name beside its end, moved apart where they would overlap."""
    width_px, height_px = axes.get_position().width * size.width_px, axes.get_position().height * size.height_px
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((line[-1][0], max(line[-1][1], floor))) for _, _, line in drawn]
    # The lowest stays clear of the labels of the axis below.
    heights_px = _spread([y * height_px for _, y in ends], gap=1.3 * _FONT_PX, low=0.6 * _FONT_PX, high=height_px)
    for (number, name, line), (x, y), label_px in zip(drawn, ends, heights_px, strict=True):
        color = SERIES[number % len(SERIES)]
        label_y = label_px / height_px
        axes.plot(
            [x, 1 + 9 / width_px], [y, label_y], transform=axes.transAxes, color=color, linewidth=0.8, clip_on=False
        )
        axes.text(
            1 + 12 / width_px,
            label_y,
            f"{name} {percent(line[-1][1])}" if size.labels_with_rates else name,
            transform=axes.transAxes,
            color=color,
            va="center_baseline",
            fontweight="bold",
        )


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
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var(--{variable})")
    return f'<svg {view_box.group()} role="img" aria-label="{escape(alt)}">' + body.strip()


def cut(name: str, chars_max: int) -> str:
    """A long name without its middle: what tells it from others is mostly at its end."""
    if len(name) <= chars_max:
        return name
    head = chars_max // 3
    return name[:head] + "…" + name[-(chars_max - head - 1) :]


def compact(value: float) -> str:
    """A count on an axis: 500, 20k, 1.5M."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"
