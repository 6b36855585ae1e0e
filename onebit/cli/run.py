"""`onebit run`: run a pipeline to completion, embedded or on Kafka, and print the results."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from onebit.cli.console import StopRequest, examples, fail, out, print_json, print_line, print_table
from onebit.cli.flags import Json, with_settings
from onebit.cli.progress import shown_progress
from onebit.runs.run import RunReport, run_pipelines
from stream.errors import ExitCode
from stream.estimating.live_results import LiveResults
from stream.programs.process import announced_when_slow, warn
from stream.reporting.live_results import result_lines
from stream.reporting.pages import REPORTS
from stream.reporting.tables import comparison, labels
from stream.settings.definitions import Settings, SettingsError
from stream.settings.model import Panel, Program
from stream.settings.sources import command_line

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit run",
        "onebit run --learner perceptron,banditron,soba-diag --param banditron.gamma=0.05",
        "onebit run --learner banditron,late-ucb --seeds 10",
        "onebit run --data synsep --events 100000 --delay fixed:5s --loss 0.02 --json",
        "onebit run --data my.svm.gz --n-features 5000 --epochs 3 --shuffle --window 30s --on-expiry negative",
        "onebit run --kafka --bootstrap localhost:9092 --delay exponential:200ms --window 5s",
    ),
)
@with_settings(Program.RUN)
def run(
    settings: Settings,
    kafka: Annotated[
        bool,
        typer.Option("--kafka", rich_help_panel=Panel.KAFKA, help="Run on Kafka, with each program in its own process"),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=Panel.OUTPUT,
            show_default=f"a new file in {REPORTS}/, listed in {REPORTS}/index.html",
            help="Write the page to this file",
        ),
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", rich_help_panel=Panel.OUTPUT, help="Do not write a page")
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Run each learner with N consecutive seeds, and report means with 95% intervals",
        ),
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="all cores; 1 for short runs and logs",
            help="Number of parallel embedded runs, each in a process with its own copy of the data",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a pipeline to completion, embedded or on Kafka, and report its error.

    By default, the run is embedded: replay, learner and feedback share a broker in this process, in virtual time. An
    embedded run does not require any other service. The same seed gives the same result, bit for bit. The run ends when
    no decision is pending. The command prints a table and writes a page with error curves. Several learners run in
    parallel; use --jobs 1 for comparable wall times.
    """
    if kafka and jobs is not None:
        raise SettingsError(f"--jobs {jobs} cannot be combined with --kafka, which runs learners one after another")
    if kafka and seeds > 1:
        raise SettingsError(f"--seeds {seeds} cannot be combined with --kafka, which runs one seed")
    if no_report and report is not None:
        raise SettingsError(f"--report {report} cannot be combined with --no-report")
    command = command_line(sys.argv[1:])
    with shown_progress() as show:
        stop = StopRequest("completing open transactions") if kafka else lambda: False
        found = run_pipelines(settings, seeds=seeds, jobs=jobs, kafka=kafka, command=command, stop=stop, show=show)
    if no_report:
        _print_results(found, None, json=json)
    else:
        _publish(found, report, json=json)
    if not found.ok:
        raise typer.Exit(ExitCode.DIFFERS)


def _publish(found: RunReport, path: Path | None, *, json: bool) -> None:
    """Write the page to the given file or to a new file, and print the results."""
    from stream.reporting.pages import add_page, write_page

    at = datetime.now(UTC)
    try:
        with announced_when_slow("drawing the page"):
            written = add_page(REPORTS, found.runs, at) if path is None else write_page(path, found.runs, at)
    except OSError as error:  # if the page cannot be written, the results are still printed
        _print_results(found, None, json=json)
        raise fail(f"--report {path or REPORTS}: cannot write: {error}", ExitCode.USAGE) from error
    _print_results(RunReport(tuple(replace(run, page=str(written)) for run in found)), written, json=json)


def _print_results(found: RunReport, page: Path | None, *, json: bool) -> None:
    warnings = dict.fromkeys(message for run in found for message in run.warnings)
    if json:
        for message in warnings:
            warn(message)
        objects = found.to_dicts()
        print_json(objects[0] if len(objects) == 1 else {"runs": objects})
        return
    print_table(comparison(found.runs))
    for run in found:
        if not run.ok:
            out.print(f"[bold red]✗ the ledger of {run.learner} does not add up")
    for label, run in zip(labels(found.runs), found, strict=True):
        results = LiveResults(run.estimate, run.holdout, run.challengers)
        for line in result_lines(results, f"{label}: " if len(found) > 1 else ""):
            print_line(line, markup=False)
    for message in warnings:
        warn(message)
    if page is not None:
        print_line(f"error curves and ledger: {page}")
