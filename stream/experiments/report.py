"""The files that are made of the rows of an experiment: figures, tables, and a page that shows them."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stream.experiments.definition import Comparison, Experiment, Figure
from stream.experiments.measure import Row
from stream.experiments.results import EXAMPLES, Compared, compare, panels_of, sentence, table_of
from stream.experiments.sets import Sets
from stream.reporting.experiment_figures import Axis, save_figure
from stream.reporting.tables import Table

PAGE = "README.md"

_LABELS = {
    EXAMPLES: "examples",
    "error": "error rate",
    "us_per_event": "µs per event",
    "last_tenth": "error rate in the last tenth",
    "delay": "delay, decisions",
}


def write_report(experiment: Experiment, sets: Sets, rows: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """Draw the figures and write the tables and the page; the paths of all that was written."""
    page = [f"# {experiment.title}", "", experiment.about.strip(), ""]
    page += [f"The paper: {experiment.paper}.", ""] if experiment.paper else []
    written: list[Path] = []
    for figure in experiment.figures:
        found = [row for sweep in figure.sweeps for row in rows[sweep]]
        if found:
            written += _draw(figure, found, sets.title, folder)
            page += [f"## {figure.title}", "", f"![{figure.title}]({figure.name}.svg)", ""]
            page += [_bands(found), ""]
    for table in experiment.tables:
        found = [row for sweep in table.sweeps for row in rows[sweep]]
        if found:
            lines = compare(table, found)
            shown = table_of(table, lines, sets.note)
            written += _write_table(table, lines, shown, sets.note, folder)
            page += [f"## {table.title}", "", markdown(shown), ""]
            page += [f"{_MARKS.format(learner=table.marks)}", ""] if table.marks else []
    page += ["## What it ran on", "", *_data_lines(experiment, sets, rows), ""]
    path = folder / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page), encoding="utf-8")
    return [path, *written]


_MARKS = "† and *: {learner} differs with p < 0.01 and p < 0.001, by a paired t-test over the folds."


def _bands(rows: Sequence[Row]) -> str:
    seeds = len({row.seed for row in rows})
    return f"Mean of {seeds} seeds; the bands are a standard deviation wide on each side." if seeds > 1 else "One seed."


def _draw(figure: Figure, rows: Sequence[Row], titles: Callable[[str], str], folder: Path) -> list[Path]:
    panels = panels_of(figure, rows, titles)
    x, y = figure.x.replace("|", " or "), figure.y
    axes = Axis(_LABELS.get(x, x), figure.x_scale), Axis(_LABELS.get(y, y), figure.y_scale)
    return save_figure(folder, figure.name, figure.title, panels, *axes)


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
    """A table in Markdown.

    >>> print(markdown(Table(("learner", "error"), (("arow", "5 %"),))))
    | learner | error |
    |---|---|
    | arow | 5 % |
    """
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return "\n".join(
        "|" + "|".join(cells) + "|" if cells[0] == "---" else "| " + " | ".join(cells) + " |" for cells in lines
    )


def _data_lines(experiment: Experiment, sets: Sets, rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """What each sweep ran on, and what was missing."""
    missing = sets.missing(experiment)
    lines = []
    for sweep in experiment.sweeps:
        for name in sweep.data:
            of_set = [row for row in rows[sweep.name] if row.data == name]
            note = f"; {sets.note(name)}" if sets.note(name) else ""
            if of_set:
                events = max(row.events for row in of_set)
                lines.append(
                    f"- *{sweep.name}*, {sets.title(name)}: {len(of_set):,} runs of up to {events:,} events{note}."
                )
            elif name not in missing:
                lines.append(f"- *{sweep.name}*, {sets.title(name)}: not run yet.")
    # Not where it was looked for: a page may be shown to others.
    gone = [name for name in missing if all(row.data != name for of_sweep in rows.values() for row in of_sweep)]
    lines += [f"- Left out, since its file was not there: {sets.title(name)}." for name in gone]
    made = sorted({(row.onebit, row.python, row.numpy, row.numba) for of_sweep in rows.values() for row in of_sweep})
    return [*lines, *(f"- Onebit {o}, Python {p}, numpy {n}, numba {j}." for o, p, n, j in made)]
