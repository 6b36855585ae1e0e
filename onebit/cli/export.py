"""`onebit export`: export a pipeline's decisions."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from onebit.cli.console import examples, print_json, print_line
from onebit.cli.flags import Json, with_settings
from onebit.exports import exported_log
from stream.settings.definitions import Settings
from stream.settings.model import Program

app = typer.Typer(help="Export a pipeline's decisions.", no_args_is_help=True)


@app.callback()
def export() -> None:
    """Export a pipeline's decisions."""


@app.command(
    epilog=examples(
        "onebit export log --topic-prefix shop. --since 7d --out week.parquet",
        "onebit export log --since 2026-03-01 --until 2026-04-01 --out march.jsonl.gz --json",
    )
)
@with_settings(Program.CONNECT)
def log(
    settings: Settings,
    out_file: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Write the log to this file: .parquet, .jsonl or .jsonl.gz")
    ],
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION|TIME", help="Decisions since this time: 7d (ago), or 2026-03-01T12:00 (UTC)"),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DURATION|TIME", help="Only decisions before this time, in the same form")
    ] = None,
    json: Json = False,
) -> None:
    """Write settled decisions to a log: contexts, actions, propensities, rewards, outcomes and delays.

    The mapping of the columns is written beside the log, with the extension .toml, so that `onebit run`, `onebit
    estimate` and `onebit train` read the log without other flags. The log ends before the oldest pending decision.
    Decisions that are left out are counted by reason. Existing files are replaced when the log is complete.
    """
    report = exported_log(settings, out_file, since, until)
    if json:
        print_json(report.to_dict())
        return
    decisions = "decision" if report.rows == 1 else "decisions"
    print_line(
        f"{escape(str(report.files.log))}: {report.rows:,} {decisions} from {_time(report.first_ms)} to "
        f"{_time(report.last_ms)}; mapping in {escape(str(report.files.mapping))}"
    )
    for reason, count in sorted(report.left_out.items()):
        print_line(f"  left out: {count:,} {reason}")
    if report.ends_at_ms is not None:
        print_line(f"  the log ends before {_time(report.ends_at_ms)}, the time of the oldest pending decision")
    if report.repeated:
        print_line(f"  {report.repeated:,} decisions for the id of an earlier row have a suffix: ~2, ~3, ...")


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")
