"""`onebit model`: export, compare and import models."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from onebit.cli.console import examples, out, print_json, print_line
from onebit.cli.flags import Json, Partition, with_log_flags, with_settings
from onebit.models import Moment, exported, imported
from stream.errors import ExitCode
from stream.parsing import format_duration
from stream.programs.connection import command_hint
from stream.programs.process import quantity
from stream.recovery.model_files import compare_models, read_model, write_model
from stream.settings.definitions import Settings
from stream.settings.model import Panel, Program
from stream.settings.values import flag_of, setting_name

app = typer.Typer(help="Export, compare and import models.", no_args_is_help=True)

ModelFile = Annotated[Path, typer.Argument(metavar="FILE", help="File from `onebit model export` or `onebit train`")]


@app.command(
    epilog=examples(
        "onebit model export --out now.npz",
        "onebit model export --at 2026-03-01T12:00:00+01:00 --out noon.npz",
        "onebit model export --journal 5000 --partition 2 --out step-5000.npz --json",
    )
)
@with_settings(Program.CONNECT)
def export(
    settings: Settings,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE.npz", help="Write the model to this file")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Export the model as of this broker time: 2026-03-01T12:00:00 (UTC by default), or ms since 1970",
        ),
    ] = None,
    journal: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Export the model after this step in the journal")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Export the shared model after the first N entries of its log"),
    ] = None,
    partition: Partition = 0,
    json: Json = False,
) -> None:
    """Write the current model, or the model as of an earlier time, to a numpy file without pickle.

    The model is rebuilt from the newest earlier snapshot and the journal. The learner may keep running. `meta` in the
    file contains the learner, the parameters, the position in the topics, and a digest of the state. A shared model is
    exported as of a version of its log. With --journal, this is the version that the step used.
    """
    model = exported(settings, Moment(at, journal, version), partition)
    write_model(out_file, model)
    if json:
        print_json({"file": str(out_file), **model.meta})
        return
    print_line(
        f"{out_file}: {model.meta['learner']} {model.moment}, {model.meta['updates']:,} updates, digest "
        f"{model.meta['digest'][:16]}"
    )


@app.command(
    epilog=examples("onebit model diff monday.npz tuesday.npz", "onebit model diff monday.npz tuesday.npz --json")
)
@with_log_flags
def diff(first: ModelFile, second: ModelFile, json: Json = False) -> None:
    """Compare two models array by array. Exit with 1 if they differ in any bit."""
    models = read_model(first), read_model(second)
    differences = compare_models(*models)
    identities = [{name: model.meta[name] for name in ("learner", "parameters")} for model in models]
    same = all(difference.same for difference in differences) and identities[0] == identities[1]
    if json:
        arrays = [difference._asdict() | {"same": difference.same} for difference in differences]
        print_json({"same": same, "models": identities, "arrays": arrays})
    else:
        for path, model in zip((first, second), models, strict=True):
            parameters = ", ".join(f"{name}={value}" for name, value in model.meta["parameters"].items())
            print_line(
                f"{path}: {model.meta['learner']} ({escape(parameters)}) {model.moment}, {model.meta['updates']:,} "
                "updates"
            )
        table = Table(box=None, header_style="bold underline", padding=(0, 2, 0, 0))
        for column in ("array", "shape", "entries that differ", "greatest difference"):
            table.add_column(column, justify="left" if column in ("array", "shape") else "right")
        for name, (shape, other), differing, greatest in differences:
            shapes = str(shape) if shape == other else f"{shape or 'none'} and {other or 'none'}"
            table.add_row(name, shapes, f"{differing:,}", f"{greatest:.6g}" if differing else "0")
        out.print(table, highlight=False)
        out.print("[bold green]identical" if same else "[bold red]different")
    if not same:
        raise typer.Exit(ExitCode.DIFFERS)


@app.command(
    name="import",
    epilog=examples(
        "onebit model import noon.npz --topic-prefix trial.   # then: onebit learn --topic-prefix trial. ...",
        "onebit model import noon.npz --partition 2",
    ),
)
@with_settings(Program.CONNECT)
def import_file(
    settings: Settings,
    file: ModelFile,
    partition: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default="all",
            rich_help_panel=Panel.KAFKA,
            help="Import into this partition only. Each partition then has its own model",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Import a model as the initial state of a new pipeline with the same learner and parameters.

    The model is written to the snapshots topic in one transaction, as the state before the first step. Restarts and
    `onebit verify --replay` also start from this state. The import fails if a learner has already started. If the
    updates topic exists, all partitions share the model.
    """
    found = imported(settings, file, partition)
    meta = found.model.meta
    if json:
        print_json({"partitions": found.partitions, "shared": found.is_shared, **meta})
        return
    whose = " as a shared model" if found.is_shared else ""
    command = " ".join((command_hint(settings, "learn"), *map(shlex.quote, learn_flags(meta))))
    print_line(f"{quantity(found.partitions, 'partition')} will start with {file}{whose}. Run: {command}")


def learn_flags(meta: Mapping[str, Any]) -> list[str]:
    """Return the flags with which a learner continues an exported model with the settings of its pipeline.

    The learner, its parameters, the sizes, the names and the rewards are stored with the model, and need no flags.
    """
    defaults, of_pipeline = Settings.model_construct(), meta.get("settings", {})
    usual = {name: getattr(defaults, name) for name in ("reward", "feedback", "on_expiry", "late", "floor")}
    usual |= asdict(defaults.join)
    flags = []
    for field, value in {**of_pipeline, **of_pipeline.get("join", {})}.items():
        if field in usual and value != usual[field]:
            text = format_duration(value) if field.endswith("_ms") else str(value)
            flags += [flag_of(setting_name(field)), text]
    return flags
