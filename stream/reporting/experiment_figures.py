"""Experiment figures as SVG and PNG files: panels with lines, and with bands that show the variation over seeds.

Requires the optional dependency matplotlib, which is imported only for drawing, because the import takes half a second.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from stream.reporting.charts import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00", "#999999")
"""Colours that colour-blind people can distinguish: Okabe, Ito, "Color universal design", 2008."""

DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
"""Line styles, used to distinguish lines when there are more lines than colours."""

COLUMNS_MAX = 4
PANEL_INCHES = (3.6, 3.0)
TITLE_CHARACTERS_PER_INCH = 11
WIDTH_MIN_INCHES = 5.5
LEGEND_LINE_INCHES = 0.2
LABEL_CHAR_INCHES = 0.065


class Line(NamedTuple):
    """A line. With one y value and no x values, it is horizontal."""

    label: str
    x: Sequence[Any] | None
    y: Sequence[float]
    spread: Sequence[float]  # half-width of the band


class Panel(NamedTuple):
    """A panel in a figure."""

    title: str
    lines: Sequence[Line]


class Axis(NamedTuple):
    """The label and scale of an axis."""

    label: str
    scale: Scale = "linear"


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def save_figure(folder: Path, name: str, title: str, panels: Sequence[Panel], x: Axis, y: Axis) -> list[Path]:
    """Write the panels to NAME.svg and NAME.png in the folder; the SVG is reproducible."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    columns = min(COLUMNS_MAX, len(panels))
    rows = -(-len(panels) // columns)
    wide = max(columns * PANEL_INCHES[0], WIDTH_MIN_INCHES)
    legend_columns = max(1, min(len(labels), int(wide / (0.5 + LABEL_CHAR_INCHES * max(map(len, labels))))))
    legend_inches = LEGEND_LINE_INCHES * (1 + -(-len(labels) // legend_columns))
    width, height = wide, rows * PANEL_INCHES[1] + legend_inches + 0.4
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.hashsalt": "onebit", "font.size": 9})
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        for number, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, number + 1)
            _paint(axes, panel, labels, x, y)
            axes.set_title(panel.title, fontsize=10)
            if number % columns == 0:
                axes.set_ylabel(y.label)
            axes.set_xlabel(x.label)
        figure.suptitle(fill(title, int(width * TITLE_CHARACTERS_PER_INCH)))
        handles = [_handle(labels, label) for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns, frameon=False, fontsize=8)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.svg", folder / f"{name}.png"]
        figure.savefig(paths[0], metadata={"Date": None, "Title": title, "Description": alternative(panels, y)})
        figure.savefig(paths[1], dpi=110, metadata={"Title": title})
    return paths


def alternative(panels: Sequence[Panel], y: Axis) -> str:
    """Return a text alternative that lists the first and last value of each line.

    >>> alternative([Panel("digits", [Line("arow", [1, 2], [0.5, 0.25], [0, 0])])], Axis("error"))
    'error. digits: arow from 0.5 to 0.25.'
    """
    parts = [
        f"{panel.title}: " + "; ".join(f"{line.label} from {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in panel.lines)
        for panel in panels
    ]
    return f"{y.label}. {'. '.join(parts)}."


def _style(labels: Sequence[str], label: str) -> dict[str, Any]:
    number = labels.index(label)
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}


def _handle(labels: Sequence[str], label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linewidth=1.8, **_style(labels, label))


def _paint(axes: "Axes", panel: Panel, labels: Sequence[str], x: Axis, y: Axis) -> None:
    values = list(dict.fromkeys(value for line in panel.lines for value in line.x or ()))
    places = {value: number for number, value in enumerate(values)}
    is_numeric = all(isinstance(value, int | float) for value in values)
    for line in panel.lines:
        style = _style(labels, line.label)
        if line.x is None:
            axes.axhline(line.y[0], linewidth=1.5, **style)
            continue
        at = list(line.x) if is_numeric else [places[value] for value in line.x]
        low = [value - spread for value, spread in zip(line.y, line.spread, strict=True)]
        high = [value + spread for value, spread in zip(line.y, line.spread, strict=True)]
        axes.plot(at, line.y, linewidth=1.5, marker="." if len(at) < 20 else None, **style)
        axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
    if not is_numeric:
        axes.set_xticks(list(places.values()), [str(value) for value in values], rotation=30, ha="right", fontsize=7)
    elif x.scale == "symlog":
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(left=min(values) - 0.2)  # on a log axis, the default margin would span whole decades
    elif x.scale in ("log", "log2"):
        axes.set_xscale("log", base=2 if x.scale == "log2" else 10)
    if y.scale == "log" and all(value > 0 for line in panel.lines for value in line.y):
        axes.set_yscale("log")
    axes.grid(True, linewidth=0.4, alpha=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
