"""`onebit report`: compare saved runs on one page."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from onebit.cli.console import examples, fail, print_line, print_table
from onebit.cli.flags import Json, with_log_flags
from stream.errors import ExitCode
from stream.programs.process import announced_when_slow

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit report reports/20260301-*-optdigits-*.html",
        "onebit report monday.html tuesday.json --report week.html",
        "onebit report monday.html --json",
    ),
)
@with_log_flags
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="PAGE...", help="Pages written by `onebit run`, or JSON downloaded from such pages"),
    ],
    path: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            show_default="a new file in reports/, listed in reports/index.html",
            help="Write the page to this file",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare saved runs on one page.

    The page contains error curves, the settings that differ, and a table. Runs with different seeds and the same
    settings are averaged, and bands show 95% intervals. With --json, the saved runs are printed instead.
    """
    from stream.reporting.runs import read_runs, runs_json
    from stream.reporting.tables import comparison

    found = [run for page in runs for run in read_runs(page)]
    if json:
        sys.stdout.write(runs_json(found).decode() + "\n")
        return
    from stream.reporting.pages import REPORTS, add_page, write_page

    at = datetime.now(UTC)
    print_table(comparison(found))
    try:
        with announced_when_slow("drawing the page"):
            written = add_page(REPORTS, found, at) if path is None else write_page(path, found, at)
    except OSError as error:
        raise fail(f"--report {path or REPORTS}: cannot write: {error}", ExitCode.USAGE) from error
    print_line(f"comparison: {written}")
