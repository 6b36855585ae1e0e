"""An experiment's HTML page: a single file with interactive figures and tables."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from onebit.experiments.definition import Experiment
from stream.reporting.charts import Axis, Chart, Form, Level, Line, chart_json, script
from stream.reporting.experiment_figures import Axis as DrawnAxis
from stream.reporting.experiment_figures import Panel, alternative
from stream.reporting.page import environment
from stream.reporting.tables import Table


class Section(NamedTuple):
    """A section of the page: a figure with its panels, or a table."""

    title: str
    note: str
    charts: Sequence[Chart] = ()
    table: Table | None = None


class RanOn(NamedTuple):
    """A description of the data or the software versions used by a sweep's runs."""

    sweep: str  # name of the sweep; empty for all sweeps
    words: str


def experiment_page(experiment: Experiment, sections: Sequence[Section], ran_on: Sequence[RanOn]) -> str:
    """Return the HTML page."""
    charts = [chart for section in sections for chart in section.charts]
    return (
        environment()
        .get_template("experiment.html")
        .render(
            title=experiment.title,
            about=experiment.about.strip().replace("`", ""),
            paper=experiment.paper,
            sections=sections,
            ran_on=ran_on,
            command=["onebit", "experiment", "run", experiment.name],
            script=script(),
            charts=chart_json(charts),
            runs_packed="",
        )
    )


_FORMS: dict[str, Form] = {"error": "share", "last_tenth": "share", "mistakes": "count", "queried": "count"}
"""Display formats for measures. Other measures are displayed as plain numbers."""


def charts_of(key: str, measure: str, panels: Sequence[Panel], x: DrawnAxis, y: DrawnAxis) -> list[Chart]:
    """Return a figure's panels as charts. Lines with the same label have the same colour in all charts.

    Args:
        key: A key for the figure, unique on the page.
        measure: The measure on the y axis, as named in the definition.
        panels: The panels.
        x: The x axis.
        y: The y axis.
    """
    form = _FORMS.get(measure, "number")
    most = 1.0 if form == "share" else math.inf
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    charts = []
    for number, panel in enumerate(panels):
        values = list(dict.fromkeys(value for line in panel.lines for value in line.x or ()))
        names = [] if all(isinstance(value, int | float) for value in values) else [str(value) for value in values]
        lines, levels = [], []
        for line in panel.lines:
            if line.x is None:
                levels.append(Level(line.label, line.y[0]))
                continue
            at = [values.index(value) for value in line.x] if names else line.x
            points = sorted(zip(at, line.y, line.spread, strict=True))
            band = any(line.spread)
            lines.append(
                Line(
                    labels.index(line.label),
                    line.label,
                    [at for at, _, _ in points],
                    [value for _, value, _ in points],
                    [max(value - spread, 0.0) for _, value, spread in points] if band else (),
                    [min(value + spread, most) for _, value, spread in points] if band else (),
                )
            )
        if lines:
            is_logarithmic = y.scale == "log" and all(value > 0 for line in lines for value in line.y)
            charts.append(
                Chart(
                    f"{key}-{number}",
                    panel.title,
                    "",
                    alternative([panel], y),
                    Axis(x.label, "number", "linear" if names else x.scale, names),
                    Axis(y.label, form, "log" if is_logarithmic else "linear"),
                    lines,
                    levels,
                    is_half=True,
                    is_pointwise=bool(names),  # separate categories
                )
            )
    return charts
