"""An experiment's output files: figures, tables and pages."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onebit.experiments.definition import Comparison, Experiment, Figure
from onebit.experiments.measure import Row
from onebit.experiments.page import RanOn, Section, charts_of, experiment_page
from onebit.experiments.results import EXAMPLES, Compared, compare, panels_of, sentence, table_of
from onebit.experiments.sets import Sets
from stream.reporting.experiment_figures import Axis, can_draw, save_figure
from stream.reporting.tables import Table

PAGE = "README.md"

HTML_PAGE = "index.html"
"""The file name of the page with interactive figures."""

_LABELS = {
    EXAMPLES: "examples",
    "error": "error rate",
    "us_per_event": "µs per event",
    "last_tenth": "error rate in the last tenth",
    "delay": "delay, decisions",
}


def write_report(experiment: Experiment, sets: Sets, rows: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """Draw the figures, write the tables and pages, and return the paths of all files.

    Without matplotlib, no figure files are written. The HTML page still contains the figures as charts.
    """
    draws = can_draw()
    page = [f"# {experiment.title}", "", experiment.about.strip(), ""]
    page += [f"The paper: {experiment.paper}.", ""] if experiment.paper else []
    written: list[Path] = []
    sections: list[Section] = []
    for figure in experiment.figures:
        found = [row for sweep in figure.sweeps for row in rows[sweep]]
        if found:
            panels, axes = panels_of(figure, found, sets.title), _axes(figure)
            written += save_figure(folder, figure.name, figure.title, panels, *axes) if draws else []
            charts = charts_of(f"figure-{len(sections)}", figure.y, panels, *axes)
            sections.append(Section(figure.title, _bands(found), charts))
            page += [f"## {figure.title}", "", *([f"![{figure.title}]({figure.name}.svg)", ""] if draws else [])]
            page += [_bands(found), ""]
    for table in experiment.tables:
        found = [row for sweep in table.sweeps for row in rows[sweep]]
        if found:
            lines = compare(table, found)
            shown = table_of(table, lines, sets.note)
            written += _write_table(table, lines, shown, sets.note, folder)
            marks = _MARKS.format(learner=table.marks) if table.marks else ""
            sections.append(Section(table.title, marks, table=shown))
            page += [f"## {table.title}", "", markdown(shown), ""]
            page += [marks, ""] if marks else []
    ran_on = _ran_on(experiment, sets, rows)
    page += [
        "## Data and versions",
        "",
        *(f"- *{one.sweep}*, {one.words}" if one.sweep else f"- {one.words}" for one in ran_on),
    ]
    path, html = folder / PAGE, folder / HTML_PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*page, ""]), encoding="utf-8")
    html.write_text(experiment_page(experiment, sections, ran_on), encoding="utf-8")
    return [path, html, *written]


_MARKS = "† (p < 0.01) and * (p < 0.001): significant difference from {learner} (paired t-test over the folds)."


def _bands(rows: Sequence[Row]) -> str:
    seeds = len({row.seed for row in rows})
    return f"Mean of {seeds} seeds; the bands are ± one standard deviation." if seeds > 1 else "One seed."


def _axes(figure: Figure) -> tuple[Axis, Axis]:
    x, y = figure.x.replace("|", " or "), figure.y
    return Axis(_LABELS.get(x, x), figure.x_scale), Axis(_LABELS.get(y, y), figure.y_scale)


def _write_table(
    table: Comparison, lines: Sequence[Compared], shown: Table, note: Callable[[str], str], folder: Path
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{table.name}.md", folder / f"{table.name}.csv"]
    paths[0].write_text(f"{markdown(shown)}\n", encoding="utf-8")
    with paths[1].open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("data", "learner", *table.by, table.best or "best", "events", "runs", "ours", "standard_error", "paper",
             "difference", "why_it_differs")
        )  # fmt: skip
        for line in lines:
            paper = "" if line.paper is None else line.paper.value
            difference = "" if line.paper is None else line.difference
            why = sentence(line, table, note(line.data))
            writer.writerow(
                (line.data, line.learner, *line.by.values(), line.best, line.events, line.runs, line.ours, line.se,
                 paper, difference, why)
            )  # fmt: skip
    return paths


def markdown(table: Table) -> str:
    """Return a table in Markdown.

    >>> print(markdown(Table(("learner", "error"), (("arow", "5%"),))))
    | learner | error |
    |---|---|
    | arow | 5% |
    """
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return "\n".join(
        "|" + "|".join(cells) + "|" if cells[0] == "---" else "| " + " | ".join(cells) + " |" for cells in lines
    )


def _ran_on(experiment: Experiment, sets: Sets, rows: Mapping[str, Sequence[Row]]) -> list[RanOn]:
    """Describe the data for each sweep, the missing data sets, and the software versions."""
    missing = sets.missing(experiment)
    notes = []
    for sweep in experiment.sweeps:
        for name in sweep.data:
            of_set = [row for row in rows[sweep.name] if row.data == name]
            note = f"; {sets.note(name)}" if sets.note(name) else ""
            if of_set:
                events = max(row.events for row in of_set)
                words = f"{sets.title(name)}: {len(of_set):,} runs of up to {events:,} events{note}."
                notes.append(RanOn(sweep.name, words))
            elif name not in missing:
                notes.append(RanOn(sweep.name, f"{sets.title(name)}: not run yet."))
    # Local paths are omitted, because pages may be published.
    gone = [name for name in missing if all(row.data != name for of_sweep in rows.values() for row in of_sweep)]
    notes += [RanOn("", f"Omitted because its file is missing: {sets.title(name)}.") for name in gone]
    made = sorted({(row.onebit, row.python, row.numpy, row.numba) for of_sweep in rows.values() for row in of_sweep})
    return notes + [RanOn("", f"Onebit {o}, Python {p}, numpy {n}, numba {j}.") for o, p, n, j in made]
