"""`onebit model`: models of any past moment, side by side, into a new pipeline; and the replay of `onebit verify`."""

import re
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from stream.cli.connection import command_hint, connected
from stream.cli.console import announce, every, examples, monotonic_ms, out
from stream.cli.exits import ExitCode
from stream.cli.flags import Json, Partition, with_settings
from stream.cli.settings import Panel, Program, Settings, SettingsError
from stream.journal.recover import Progress
from stream.verifying.model_files import compare_models, read_model, write_model
from stream.verifying.models import TooEarlyError, export_model, import_model, import_shared_model
from stream.verifying.reapply import Replay, replay_journal

app = typer.Typer(help="Models of any moment: export, compare, import.", no_args_is_help=True)

PROGRESS_INTERVAL_MS = 5_000

ModelFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file of `onebit model export`.")]


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
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE.npz", help="Where the model is written.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="As it was at a time of the broker: 2026-03-01T12:00:00Z, this host's zone if none is given; or "
            "milliseconds since 1970.",
        ),
    ] = None,
    journal: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="As it was after a step of the journal.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of a shared model: as the first N entries of its log made it."),
    ] = None,
    partition: Partition = 0,
    json: Json = False,
) -> None:
    """Write the model as it is, or as it was at any past moment, to a numpy file that needs no pickle.

    It is rebuilt from the newest snapshot of before and the journal after it, while the learner may go on. `meta` in
    the file says which learner it is, with which parameters, where in the topics it stood, and the state's digest. Of a
    shared model, whatever the partition, it is a version of its log: with --journal the one a step was decided on.
    """
    given = {"--at": at, "--journal": journal, "--version": version}
    if len(found := [flag for flag, value in given.items() if value is not None]) > 1:
        raise SettingsError(f"{' and '.join(found)}: expected one of them; got {len(found)}")
    with connected(settings) as (broker, topics, partitions):
        _check_partition(partition, partitions)
        at_ms = None if at is None else time_ms(at)
        progress = report(f"partition {partition}")
        try:
            model = export_model(
                broker, topics, partition, number=journal, at_ms=at_ms, version=version, progress=progress
            )
        except TooEarlyError as error:
            raise SettingsError(
                f"--at {at}: {error.place} had no step by then; the first one was made at "
                f"{_like(at or '', error.first_ms)}: give that time or a later one"
            ) from error
    write_model(out_file, model)
    if json:
        sys.stdout.write(orjson.dumps({"file": str(out_file), **model.meta}).decode() + "\n")
        return
    out.print(
        f"{out_file}: {model.meta['learner']} {model.moment}, {model.meta['updates']:,} updates, digest "
        f"{model.meta['digest'][:16]}",
        highlight=False,
        soft_wrap=True,
    )


@app.command(epilog=examples("onebit model diff monday.npz tuesday.npz"))
def diff(first: ModelFile, second: ModelFile, json: Json = False) -> None:
    """Compare two models array by array; exit code 1 when they are not the same to the bit."""
    models = read_model(first), read_model(second)
    differences = compare_models(*models)
    identities = [{name: model.meta[name] for name in ("learner", "parameters")} for model in models]
    same = all(difference.same for difference in differences) and identities[0] == identities[1]
    if json:
        arrays = [difference._asdict() | {"same": difference.same} for difference in differences]
        sys.stdout.write(orjson.dumps({"same": same, "models": identities, "arrays": arrays}).decode() + "\n")
    else:
        for path, model in zip((first, second), models, strict=True):
            parameters = ", ".join(f"{name}={value}" for name, value in model.meta["parameters"].items())
            out.print(
                f"{path}: {model.meta['learner']} ({escape(parameters)}) {model.moment}, {model.meta['updates']:,} "
                "updates",
                highlight=False,
                soft_wrap=True,
            )
        table = Table(box=None, header_style="bold underline", padding=(0, 2, 0, 0))
        for column in ("array", "shape", "entries that differ", "greatest difference"):
            table.add_column(column, justify="left" if column in ("array", "shape") else "right")
        for name, (shape, other), differing, greatest in differences:
            shapes = str(shape) if shape == other else f"{shape or 'none'} and {other or 'none'}"
            table.add_row(name, shapes, f"{differing:,}", f"{greatest:.6g}" if differing else "0")
        out.print(table, highlight=False)
        out.print("[bold green]the same, to the bit" if same else "[bold red]they differ")
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
            help="Only this one, whose tasks then have models of their own.",
        ),
    ] = None,
) -> None:
    """Let a learner that has not begun yet begin with a model; start it with the model's learner and parameters.

    The model is written to the snapshots topic, in one transaction, as the state before the first step. So a restart,
    and `onebit verify --replay`, begin with it too. Where a learner has begun already nothing is written. If the topics
    have the log of a shared model, it is the one that all partitions share.
    """
    model = read_model(file)
    with connected(settings) as (broker, topics, partitions):
        if partition is not None:
            _check_partition(partition, partitions)
        chosen = range(partitions) if partition is None else [partition]
        is_shared = partition is None and topics.updates in broker.describe_topics([topics.updates])
        if is_shared:
            import_shared_model(broker, topics, partitions, model, f"{settings.topic_prefix}import-0")
        else:
            for number in chosen:
                import_model(broker, topics, number, model, f"{settings.topic_prefix}import-{number}")
    meta = model.meta
    flags = " ".join(f"--param {shlex.quote(f'{name}={value}')}" for name, value in meta["parameters"].items())
    whose = ", which is then one model" if is_shared else ""
    out.print(
        f"{len(chosen)} partitions begin with {file}{whose}; start it: {command_hint(settings, 'learn')} --learner "
        f"{meta['learner']} {flags} --n-classes {meta['n_classes']} --n-features {meta['n_features']}",
        highlight=False,
        soft_wrap=True,
    )


def _check_partition(partition: int, partitions: int) -> None:
    if partition >= partitions:
        raise SettingsError(f"--partition {partition}: the topics have partitions 0 to {partitions - 1}")


def time_ms(text: str) -> int:
    """A time as people write it, in milliseconds since 1970."""
    if re.fullmatch(r"\d{10,15}", text, re.ASCII):
        return int(text)
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1_000)
    except ValueError as error:
        raise SettingsError(
            f"--at {text}: expected a time such as 2026-03-01T12:00:00Z, or milliseconds since 1970"
        ) from error


def _like(text: str, ms: int) -> str:
    """A time as the user has written another one: in milliseconds, or as a date with its zone."""
    if text.isdecimal():
        return str(ms)
    return datetime.fromtimestamp(ms / 1_000, datetime.fromisoformat(text).tzinfo).isoformat(timespec="milliseconds")


def report(label: str) -> Callable[[Progress], None]:
    """What tells people now and then how far a re-application has come."""
    started_ms = monotonic_ms()
    latest: list[Progress] = []

    def tell() -> None:
        number, _, last, records = latest[-1]
        rate = 1_000 * records / max(monotonic_ms() - started_ms, 1)
        announce(f"{label}: step {number:,} of {last:,}, {rate:,.0f} records/s")

    show = every(PROGRESS_INTERVAL_MS, tell)

    def told(progress: Progress) -> None:
        latest[:] = [progress]
        show()

    return told


def replay(settings: Settings) -> list[Replay]:
    """Apply the whole journal of every partition again."""
    with connected(settings) as (broker, topics, partitions):
        return [
            replay_journal(broker, topics, partition, report(f"replaying partition {partition}"))
            for partition in range(partitions)
        ]


def print_replays(replays: list[Replay]) -> None:
    """Show what the whole journals came to."""
    for found in replays:
        if found.foreign:
            out.print(f"[yellow]! partition {found.partition}:[/] {escape(found.foreign)}", soft_wrap=True)
        compared = (
            f"snapshot of step {found.snapshot:,} and the rest" if found.snapshot else "recovery (no snapshot yet)"
        )
        if found.fault:
            out.print(f"[bold red]✗ partition {found.partition}:[/] {escape(found.fault)}", soft_wrap=True)
        elif not found.steps:
            out.print(f"partition {found.partition}: no step has been made")
        elif found.ok:
            out.print(
                f"[bold green]✓ partition {found.partition}:[/] {found.steps:,} steps applied again give the state of "
                f"the {compared}, learner {found.state[:16]}"
                + ("" if found.version is None else f" at version {found.version:,}"),
                highlight=False,
                soft_wrap=True,
            )
        else:
            out.print(
                f"[bold red]✗ partition {found.partition}:[/] {found.steps:,} steps applied again give the state "
                f"{found.replayed[:16]}; the {compared} {found.recovered[:16]}",
                highlight=False,
                soft_wrap=True,
            )
