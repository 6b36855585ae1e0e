"""`onebit move`: move a stopped pipeline to new topics."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from onebit.cli.console import err, examples, out, print_json
from onebit.cli.flags import Json, with_settings
from onebit.moves import Desired, MoveReport, Side, move
from stream.errors import ExitCode
from stream.programs.connection import command_hint, connect, connected
from stream.programs.process import announce, quantity, warn
from stream.settings.definitions import Settings, SettingsError
from stream.settings.model import Program
from stream.settings.sources import FIELDS, load_settings
from stream.wire.control import Balance
from stream.wire.ledger import MISPLACED_REMEDY

app = typer.Typer()


@app.command(
    name="move",
    epilog=examples(
        "onebit move --to-prefix shop2. --partitions 12",
        "onebit move --to-prefix shop2. --model shared --model-from 0 --yes",
        "onebit move --to-prefix shop. --to-bootstrap kafka2:9092 --to-client-config kafka2.properties",
    ),
)
@with_settings(Program.CONNECT)
def move_pipeline(
    settings: Settings,
    to_prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Prefix of the new topics", show_default=False)],
    to_bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Kafka broker of the new topics", show_default="the same cluster"),
    ] = None,
    to_client_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Kafka client properties for --to-bootstrap, in place of all settings of the first connection",
            show_default="the same settings",
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=1_000, metavar="N", help="Number of partitions", show_default="unchanged"),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Replication factor of the new topics", show_default="unchanged"),
    ] = None,
    model: Annotated[
        Literal["own", "shared"] | None,
        typer.Option(help="One model per partition, or one model shared by all", show_default="unchanged"),
    ] = None,
    model_from: Annotated[
        int | None,
        typer.Option(min=0, metavar="PARTITION", help="Use this partition's own model everywhere", show_default="none"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed for all later decisions", show_default="unchanged")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    json: Json = False,
) -> None:
    """Move a stopped pipeline to new topics with its whole state, to change its partitions.

    Also changes the cluster, the seed, or whether the partitions share a model. The state is the model, the unsettled
    decisions, orphans, settled ids and settings. Feedback for old decisions counts in the new pipeline.

    First let the services use the new topics, and stop the learners when they have applied all records in the old ones.
    Creates the new topics if they do not exist, with the retention of the old ones. Learners with the old topics no
    longer start. If the command is interrupted, run it again.
    """
    target = _target(settings, to_prefix, to_bootstrap, to_client_config)
    if not yes:
        _confirm(settings, target)
    with connected(settings) as (broker, topics, _), closing(connect(target)) as other:
        report = move(
            Side(broker, topics, settings.bootstrap),
            Side(other, target.topics, target.bootstrap),
            f"{settings.topic_prefix}learner",
            Desired(partitions, model, model_from, seed, replication),
            announce,
        )
    if json:
        print_json(None if report is None else _plain(report))
    elif report is None:
        out.print(f"the pipeline was already moved to {to_prefix}*", highlight=False)
    else:
        _print(report, target)


def _target(settings: Settings, prefix: str, bootstrap: str | None, client_config: Path | None) -> Settings:
    """Return the settings of the second connection."""
    if client_config is not None and bootstrap is None:
        raise SettingsError("--to-client-config: expected --to-bootstrap too")
    flags = {"topic_prefix": prefix, "bootstrap": bootstrap, "client_config": client_config and str(client_config)}
    checked = load_settings({name: value for name, value in flags.items() if value is not None}, frozenset(flags))
    changed = {name: getattr(checked, name) for name, value in flags.items() if value is not None}
    given = settings.given if client_config is None else settings.given - frozenset(FIELDS)
    own = {name: getattr(settings, name) for name in given} | changed
    return Settings.model_construct({*own}, **own)


def _confirm(settings: Settings, target: Settings) -> None:
    if not sys.stdin.isatty():
        raise SettingsError("to move a pipeline without a terminal, add --yes")
    err.print(
        f"{settings.topic_prefix}* on {settings.bootstrap} moves to {target.topic_prefix}* on {target.bootstrap}. Its "
        "learners will not start again.",
        highlight=False, markup=False,
    )  # fmt: skip
    if not typer.confirm("Move the pipeline?", err=True):
        raise typer.Exit(ExitCode.DIFFERS)


def _plain(report: MoveReport) -> dict[str, object]:
    moved = report.moved
    return {
        "bootstrap": moved.bootstrap,
        "prefix": moved.prefix,
        "partitions": moved.partitions,
        "model": report.settings.model,
        "seed": report.settings.seed,
        "balance": {name: getattr(moved.balance, name) for name in Balance.__struct_fields__},
        "retained": report.retained,
        "clock_shift_ms": report.clock_shift_ms,
    }


def _print(report: MoveReport, target: Settings) -> None:
    moved, balance = report.moved, report.moved.balance
    lines = [
        f"moved {quantity(report.partitions, 'partition')} to {quantity(moved.partitions, 'partition')} of {moved}: "
        f"model {report.settings.model}, seed {report.settings.seed}",
        f"opening balance: {balance.pending:,} pending decisions, {balance.deferred:,} deferred decisions, "
        f"{balance.orphans_waiting:,} orphans; {report.retained:,} settled ids are remembered",
        "all records in the old topics were applied; records that services write to them from now on are not used",
        "decision times are unchanged; stream time begins at the largest of the old partitions",
    ]
    if report.clock_shift_ms:
        lines.append(
            f"the new broker's clock is {-report.clock_shift_ms / 1_000:,.1f} s behind; stream time leaves this out"
        )
    lines.append(f"Run: {command_hint(target, 'learn')}")
    out.print("\n".join(lines), highlight=False, markup=False)
    if report.misplaced:
        warn(f"the old pipeline had {report.misplaced:,} {MISPLACED_REMEDY}; their feedback may not reach its decision")
