"""Converts a sweep's rows to lines in figures, and to tables that include a paper's numbers. Does not access files."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from scipy.special import stdtr

from onebit.experiments.definition import Comparison, Conditions, Figure, Parameters, Reported, Scalar
from onebit.experiments.measure import Row
from stream.parsing import parse_number
from stream.reporting.experiment_figures import Line, Panel
from stream.reporting.tables import Table

EXAMPLES = "examples"
"""Name of the x axis in learning curves."""

POLICY = "policy"
"""Name of the field that states how expired decisions are treated: drop, negative or correct."""

_CURVES: dict[str, Callable[[Row], list[float]]] = {
    "error": lambda row: [m / n for m, n in zip(row.curve_mistakes, row.curve_events, strict=True)],
    "mistakes": lambda row: list(map(float, row.curve_mistakes)),
    "queried": lambda row: list(map(float, row.curve_explored)),
}

_FIGURES: dict[str, Callable[[Row], float]] = {
    "error": lambda row: row.error,
    "mistakes": lambda row: row.error * row.events,
    "queried": lambda row: row.explored * row.events,
    "last_tenth": lambda row: row.error_last_tenth,
    "us_per_event": lambda row: 1e6 * row.seconds / row.events,
}


def field_of(row: Row, name: str) -> Scalar | None:
    """Return the row's parameter, condition or column with this name, or None if there is none.

    If the parameter is a multiple of a statistic of the data, the factor is returned.
    """
    parameters: Parameters = json.loads(row.parameters)
    if name in parameters:
        value = parameters[name]
        factor, space, _ = str(value).partition(" ")
        number = parse_number(factor) if space else None
        return value if number is None else number
    conditions = json.loads(row.conditions)
    if name == POLICY:
        return "correct" if conditions.get("late") == "correct" else str(conditions.get("on_expiry", "drop"))
    if name in Conditions.model_fields:
        found: Scalar = conditions.get(name, Conditions.model_fields[name].default)
        return found
    return getattr(row, name, None) if name in Row._fields else None


def first_field_of(row: Row, names: str) -> Scalar | None:
    """Return the row's value for the first of these fields that it has. The names are separated by |."""
    return next((value for name in names.split("|") if (value := field_of(row, name)) is not None), None)


def panels_of(figure: Figure, rows: Sequence[Row], titles: Callable[[str], str]) -> list[Panel]:
    """Return a figure's panels, with a line for each learner and each value of `lines`."""
    # Rows of a learner without the parameter are also shown.
    shown = [row for row in rows if all(field_of(row, name) in (None, value) for name, value in figure.where.items())]
    panels: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in shown:
        values = [(name, field_of(row, name)) for name in figure.lines]
        label = ", ".join([row.title, *(f"{name} {value}" for name, value in values if value is not None)])
        panels[str(field_of(row, figure.panels))][label].append(row)
    return [
        Panel(
            titles(name) if figure.panels == "data" else f"{figure.panels} {name}",
            [line for label, of_line in lines.items() for line in _line(figure, label, of_line)],
        )
        for name, lines in panels.items()
    ]


def _name(parameter: str) -> str:
    return parameter.replace("|", " or ")


def _line(figure: Figure, label: str, rows: Sequence[Row]) -> list[Line]:
    if figure.best is not None:
        rows, best = best_of(rows, figure.best)
        label += "" if best is None else f", {_name(figure.best)} {shown(best)}"
    if figure.x == EXAMPLES:
        curves = [_CURVES[figure.y](row) for row in rows]
        points = min(map(len, curves))
        by_point = [[curve[at] for curve in curves] for at in range(points)]
        return [Line(label, list(rows[0].curve_events[:points]), *_means(by_point))]
    by_x: dict[Scalar | None, list[float]] = defaultdict(list)
    for row in rows:
        by_x[first_field_of(row, figure.x)].append(_FIGURES[figure.y](row))
    return [Line(label, [x for x in by_x if x is not None] or None, *_means(list(by_x.values())))]


def _means(groups: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each group."""
    return [mean(group) for group in groups], [stdev(group) if len(group) > 1 else 0.0 for group in groups]


def best_of(rows: Sequence[Row], parameter: str) -> tuple[list[Row], Scalar | None]:
    """Find the parameter value with the smallest mean error. Return the rows that have it, and the value itself."""
    by_value: dict[Scalar | None, list[Row]] = defaultdict(list)
    for row in rows:
        by_value[first_field_of(row, parameter)].append(row)
    best = min(by_value, key=lambda value: mean(row.error for row in by_value[value]))
    return by_value[best], best


class Compared(NamedTuple):
    """A line in a table that compares our results with a paper's. Errors are percentages; mistakes are counts."""

    data: str
    learner: str
    by: dict[str, Scalar | None]
    best: Scalar | None
    events: int
    runs: int
    ours: float
    se: float  # standard error; NaN if there is a single run
    paper: Reported | None
    mark: str = ""  # significance of the difference from the learner `Comparison.marks`

    @property
    def difference(self) -> float:
        """Return our value minus the paper's value, or NaN if the paper reports no value."""
        return math.nan if self.paper is None else self.ours - self.paper.value


def compare(table: Comparison, rows: Sequence[Row]) -> list[Compared]:
    """Return a table's lines, in the order of the rows."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.data, row.title, *(str(field_of(row, name)) for name in table.by)].append(row)
    scale = 1.0 if table.measure in ("mistakes", "queried", "us_per_event") else 100.0
    lines = []
    for group in groups.values():
        chosen, best = (group, None) if table.best is None else best_of(group, table.best)
        values = [scale * _FIGURES[table.measure](row) for row in chosen]
        first = chosen[0]
        lines.append(
            Compared(
                first.data,
                first.title,
                {name: field_of(first, name) for name in table.by},
                best,
                first.events,
                len(values),
                mean(values),
                stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan,
                _reported(table, first),
                _mark(table, chosen, groups),
            )
        )
    return lines


def _reported(table: Comparison, row: Row) -> Reported | None:
    """Return the number that the paper reports for a row."""
    for reported in table.paper:
        wanted = {**reported.parameters, **reported.conditions}
        if (
            reported.data == row.data
            and reported.learner in (row.learner, row.title)
            and all(field_of(row, name) == value for name, value in wanted.items())
        ):
            return reported
    return None


P_VALUES = ((0.001, "*"), (0.01, "†"))
"""Upper limits on the p-value of a paired t-test over the folds, each with the mark that the paper uses for it."""


def _mark(table: Comparison, rows: Sequence[Row], groups: dict[tuple[str, ...], list[Row]]) -> str:
    """Return a mark if the difference from the reference learner, `table.marks`, is significant across the folds."""
    if table.marks is None or rows[0].learner == table.marks:
        return ""
    place = (rows[0].data, *(str(field_of(rows[0], name)) for name in table.by))
    others = next(
        (of for (data, _, *by), of in groups.items() if (data, *by) == place and of[0].learner == table.marks), []
    )
    theirs = {(row.seed, row.fold): row.error for row in others}
    differences = [row.error - theirs[row.seed, row.fold] for row in rows if (row.seed, row.fold) in theirs]
    if len(differences) < 2 or not any(differences):
        return ""
    p = _by_chance(differences)
    return next((mark for below, mark in P_VALUES if p < below), "")


def _by_chance(differences: Sequence[float]) -> float:
    """Return the p-value of a t-test for a mean of 0. Requires at least two differences, at least one of them not 0."""
    n, spread = len(differences), stdev(differences)
    return float(2.0 * stdtr(n - 1, -abs(mean(differences)) * math.sqrt(n) / spread)) if spread else 0.0


def differs(line: Compared, tolerance: float) -> bool:
    """Return whether our value differs from the paper's by more than both the tolerance and two standard errors."""
    if line.paper is None:
        return False
    chance = 0.0 if math.isnan(line.se) else 2.0 * line.se
    return abs(line.difference) > max(tolerance * abs(line.paper.value), chance)


def sentence(line: Compared, table: Comparison, note: str) -> str:
    """Return the known reasons for a difference from the paper, or an empty string."""
    if not differs(line, table.tolerance):
        return ""
    assert line.paper is not None
    reasons = [line.paper.because] if line.paper.because else []
    if table.paper_events is not None and line.events != table.paper_events and not note:
        reasons.append(f"the paper used {table.paper_events:,} events, this run {line.events:,}")
    if note:
        reasons.append(f"the data: {note}")
    return "; ".join(reasons) or "reason unknown"


def table_of(table: Comparison, lines: Sequence[Compared], note: Callable[[str], str]) -> Table:
    """Return the lines as a text table, with the paper's value, our value and the difference."""
    has_paper = any(line.paper for line in lines)
    columns = [
        "data",
        "learner",
        *table.by,
        *([f"best {_name(table.best)}"] if table.best else []),
        "events",
        "runs",
        "ours",
    ]
    columns += ["paper", "difference", "why it differs"] if has_paper else []
    rows = []
    for line in lines:
        ours = f"{line.ours:.2f}{'' if math.isnan(line.se) else f' ± {line.se:.2f}'}{line.mark}"
        cells = [line.data, line.learner, *(shown(value) for value in line.by.values())]
        cells += [shown(line.best)] if table.best else []
        cells += [f"{line.events:,}", str(line.runs), ours]
        if has_paper and line.paper is None:
            cells += ["–", "–", ""]
        elif has_paper and line.paper is not None:
            about = "about " if line.paper.roughly else ""
            cells += [f"{about}{line.paper.value:g}", f"{line.difference:+.2f}", sentence(line, table, note(line.data))]
        rows.append(tuple(cells))
    return Table(tuple(columns), tuple(rows))


def shown(value: Scalar | None) -> str:
    """Format a value. Powers of two are shown with an exponent.

    >>> shown(0.0078125), shown(0.3), shown(None), shown("drop")
    ('2^-7', '0.3', '–', 'drop')
    """
    if value is None:
        return "–"
    if isinstance(value, float) and value > 0 and math.frexp(value)[0] == 0.5 and value < 0.25:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:g}" if isinstance(value, float) else str(value)
