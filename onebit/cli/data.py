"""`onebit data`: data sets and logs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from onebit.cli.console import boxed_table, examples, out, print_json, print_line
from onebit.cli.flags import Json, data_names, with_log_flags, with_settings
from onebit.log_summary import LogSummary, rows_of, summarise_log
from producers.data import load_scaled, uneven_warning
from producers.datasets.base import Dataset
from producers.datasets.logs.guess import to_toml
from producers.datasets.logs.reading import LogFile
from producers.datasets.logs.stored import remarks_of
from producers.datasets.named import entries, is_log, problems
from producers.datasets.scaling import uneven_of
from stream.programs.process import warn
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.wire.actions import ActionBlocks

_CLASSES_SHOWN = 20

app = typer.Typer(help="List and show data sets and logs.", no_args_is_help=True)


@app.command(name="list", epilog=examples("onebit data list", "onebit data list --json"))
@with_log_flags
def list_data(json: Json = False) -> None:
    """List the named data sets. Any svmlight file can also be used."""
    for problem in problems():
        warn(f"not listed: {problem}")
    if json:
        print_json([{k: v for k, v in entry._asdict().items() if k != "load"} for entry in entries()])
        return
    table = boxed_table("name", "rows", "features", "classes", "what", numbers=("rows", "features", "classes"))
    for entry in entries():
        table.add_row(entry.name, f"{entry.rows:,}", f"{entry.n_features:,}", str(entry.n_classes), entry.summary)
    out.print(table)
    for entry in entries():
        print_line(f"terms of {entry.name}: {escape(entry.terms)}")
    out.print("also accepted: svmlight files (plain, .gz or .zst), and logs of decisions (see onebit data show FILE)")


@app.command(epilog=examples("onebit data show optdigits", "onebit data show offers.csv.gz --map offers.toml --json"))
@with_settings(Program.SHOW)
def show(
    settings: Settings,
    name_or_file: Annotated[str, typer.Argument(metavar="NAME-OR-FILE", autocompletion=data_names)],
    n_features: Annotated[int | None, typer.Option(min=1, help="Number of features in an svmlight file")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed for a synthetic data set")] = 0,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="FILE.toml|PAIRS",
            show_default="the .toml file beside the log; without one, guessed",
            help="Columns of a tabular log",
        ),
    ] = None,
    features_file: Annotated[
        Path | None,
        typer.Option(
            "--save-features",
            help="Write a log's feature names and their indices to this file, for `onebit learn --features`",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show a data set: rows, features, classes, terms of use, first rows and, for a tabular log, a mapping."""
    if is_log(name_or_file):
        _show_log(name_or_file, mapping, features_file, settings, as_json=json)
        return
    dataset = load_scaled(name_or_file, n_features, seed, settings.scale)
    if uneven := uneven_warning(uneven_of(dataset)):
        warn(uneven)
    if json:
        fields = {
            "name": dataset.name, "rows": dataset.rows, "features": dataset.n_features, "classes": dataset.n_classes,
            "class_names": dataset.class_names, "terms": dataset.terms,
            "actions": None if dataset.blocks is None else dataset.blocks._asdict(),
        }  # fmt: skip
        print_json(fields)
        return
    if (blocks := dataset.blocks) is not None:
        _print_offers(dataset, blocks)
        return
    out.print(f"[bold]{escape(dataset.name)}[/]: {dataset.rows:,} rows, {dataset.n_features:,} features")
    named = ", ".join(f"{label} = {name}" for label, name in enumerate(dataset.class_names))
    out.print(f"{dataset.n_classes} classes: {escape(named)}", soft_wrap=True)
    out.print(f"terms: {escape(dataset.terms)}", soft_wrap=True)
    table = boxed_table("event", "class", "non-zeros", "first entries", numbers=("class", "non-zeros"))
    for row in range(min(5, dataset.rows)):
        x, label = dataset.row(row)
        entries = " ".join(f"{index}:{value:g}" for index, value in zip(x.indices[:6], x.values[:6], strict=True))
        table.add_row(dataset.event_id(row), str(label), str(x.indices.size), entries)
    out.print(table)


def _print_offers(dataset: Dataset, blocks: ActionBlocks) -> None:
    """Print the sizes and the first rows of a data set of contexts with actions."""
    out.print(
        f"[bold]{escape(dataset.name)}[/]: {dataset.rows:,} rows; contexts with {blocks.context:,} features, and up to "
        f"{blocks.places} actions with {blocks.features:,}",
        soft_wrap=True,
    )
    out.print(f"terms: {escape(dataset.terms)}", soft_wrap=True)
    table = boxed_table("event", "actions", "first ids", "context, first entries", numbers=("actions",))
    for row in range(min(5, dataset.rows)):
        x, ids = dataset.row(row).x, dataset.actions(row) or ()
        entries = " ".join(f"{index}:{value:.3g}" for index, value in zip(x.indices[:4], x.values[:4], strict=True))
        table.add_row(dataset.event_id(row), str(len(ids)), " ".join(ids[:3]), entries)
    out.print(table)


def _show_log(
    path: str, mapping_given: str | None, features_file: Path | None, settings: Settings, *, as_json: bool
) -> None:
    """Print a summary of a log, with the number of invalid rows."""
    shown = summarise_log(path, mapping_given, settings.reward_above, settings.scale, settings.graded)
    if features_file is not None:
        shown.save_features(features_file)
    if as_json:
        print_json(shown.to_dict())
        return
    out.print(f"[bold]{escape(path)}[/]: {shown.format}", soft_wrap=True)
    if shown.columns:
        listed = ", ".join(column or "''" for column in shown.columns)
        print_line(f"{len(shown.columns)} columns: {escape(listed)}")
    if shown.guessed is not None:
        out.print("guessed mapping; correct it, save it, and use it with --map:", highlight=False)
        print_line(escape(to_toml(shown.guessed)))
    if shown.log is not None:
        _print_rows(shown, shown.log)


def _features(n: int) -> str:
    return f"{n:,} {'feature' if n == 1 else 'features'}"


def _print_rows(shown: LogSummary, log: LogFile) -> None:
    rows = f"{shown.rows:,} valid {'row' if shown.rows == 1 else 'rows'}"
    out.print(rows if log.blocks is not None else f"{rows}, {_features(log.n_features)}")
    for line in remarks_of(log):
        print_line(escape(line))
    if (blocks := log.blocks) is None:
        some = ", ".join(log.class_names[:_CLASSES_SHOWN]) + (", ..." if len(log.class_names) > _CLASSES_SHOWN else "")
        print_line(f"{len(log.class_names)} classes: {escape(some)}")
    else:
        print_line(
            f"contexts with {_features(blocks.context)}, and up to {blocks.places} actions with {blocks.features:,}"
        )
    if uneven := uneven_warning(log.uneven):
        print_line(escape(uneven))
    for note in log.notes:
        print_line(escape(note))
    for row in rows_of(shown.first, log):
        line = "  ".join(f"{key} {value}" for key, value in row.items() if value is not None and key != "features")
        print_line(escape(line))
        print_line(f"  [dim]{escape(str(row['features']))}[/]")
