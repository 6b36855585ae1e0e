"""`onebit run`: the whole pipeline to its end, embedded or on Kafka, and what is shown of it."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from typer.core import TyperCommand

from producers.datasets.logged import LogDataset
from producers.datasets.logs.streams import STDIN
from stream.cli import cost
from stream.cli.composition import check_play, class_names_of, dataset_of, events_of, task_settings, with_chosen
from stream.cli.console import StopRequest, announce, announced_when_slow, examples, fail, out, print_table, warn
from stream.cli.embedded import BrokenOffError
from stream.cli.exits import ExitCode
from stream.cli.flags import Json, with_settings
from stream.cli.live_estimates import check_estimate, estimate_lines
from stream.cli.settings import Panel, Program, Settings, SettingsError
from stream.cli.side_by_side import Plan, planned, run_side_by_side
from stream.cli.sources import command_line
from stream.reporting.pages import REPORTS
from stream.reporting.run_report import RunReport
from stream.reporting.tables import comparison, labels

app = typer.Typer()


class _RunCommand(TyperCommand):
    """The parser of `onebit run`, whose --kafka may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare --kafka an empty address: the one of the settings."""
        followed = zip(args, [*args, "-"][1:], strict=True)
        completed = ["--kafka=" if one == "--kafka" and after.startswith("-") else one for one, after in followed]
        return super().parse_args(ctx, completed)


@app.command(
    cls=_RunCommand,
    epilog=examples(
        "onebit run",
        "onebit run --learner perceptron,banditron,soba-diag --param banditron.gamma=0.05",
        "onebit run --learner banditron,late-ucb --seeds 10",
        "onebit run --data synsep --events 100000 --delay fixed:5s --loss 0.02 --json",
        "onebit run --data my.svm.gz --n-features 5000 --epochs 3 --shuffle --window 30s --on-expiry negative",
        "onebit run --kafka localhost:9092 --delay exponential:200ms --window 5s",
    ),
)
@with_settings(Program.RUN)
def run(
    settings: Settings,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            rich_help_panel=Panel.KAFKA,
            show_default="embedded",
            help="Run real processes over real topics, at this address; without one, at ONEBIT_BOOTSTRAP or "
            "localhost:9092.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=Panel.OUTPUT,
            show_default=f"a new one in {REPORTS}/, listed by {REPORTS}/index.html",
            help="Where the page is written.",
        ),
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", rich_help_panel=Panel.OUTPUT, help="Write no page.")
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Run each learner with so many seeds, from --seed on; table and page show means and how far they lie "
            "apart.",
        ),
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="all cores; 1 for short runs and logs",
            help="Learners and seeds that run at once, embedded, each in a process with its own copy of the data.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run the whole pipeline to its end: replay, learner, feedback; then a table, and a page with the error curves.

    By default embedded, over a broker in the same process, in virtual time: no service is needed, and the same seed
    gives the same run, bit for bit. Feedback still on its way at the end is waited for, so that nothing is pending.
    Several learners run side by side; for their wall times alone, give --jobs 1.
    """
    if kafka is not None and jobs is not None:
        raise SettingsError(f"--jobs {jobs}: on Kafka the learners run one after the other; leave it out")
    if kafka is not None and seeds > 1:
        raise SettingsError(f"--seeds {seeds}: a run on Kafka has one seed; leave it out, or leave out --kafka")
    if kafka:
        settings = settings.model_copy(update={"bootstrap": kafka})
    if kafka is not None and settings.data == STDIN:
        raise SettingsError(
            "--data -: each program of a run on Kafka reads the log, and standard input only one can; give a file"
        )
    dataset = dataset_of(settings)
    check_play(settings, dataset)
    check_estimate(settings.play, is_asked=settings.estimate)
    settings, why = with_chosen(settings, dataset.n_classes, dataset.n_features, cost.mean_nnz_of(dataset))
    if why:
        announce(why)
    nnz, events = cost.nnz_of(dataset), events_of(settings, dataset)
    seconds: list[float] = []  # that each learner will take
    for name in settings.learner:  # all are checked before the first one runs
        task = task_settings(settings, name, dataset.n_classes, dataset.n_features, class_names_of(dataset))
        task.make_learner()
        seconds.append(cost.run_s(task, nnz, events))
        if slow := cost.warning(task, nnz, events):
            warn(slow)
    command = command_line(sys.argv[1:])
    if kafka is None:
        each_s = [one_s for one_s in seconds for _ in range(seeds)]
        reports = _run_embedded(planned(settings, dataset, command, seeds), each_s, jobs)
    else:
        from stream.cli.on_kafka import run_on_kafka  # here: an embedded run need not load the Kafka client

        stop = StopRequest("what was begun is finished")
        reports = [run_on_kafka(settings, name, dataset, command, stop) for name in settings.learner]
    if no_report:
        _print_results(reports, None, json=json)
    else:
        _publish(reports, report, json=json)
    if not all(result.ledger_ok for result in reports):
        raise typer.Exit(ExitCode.DIFFERS)


PROCESSES_FROM_S = 5.0
"""Runs that take less in all are made here, one after the other: processes take two seconds to begin."""


def jobs_of(asked: int | None, seconds: Sequence[float], cores: int, *, is_log: bool = False) -> int:
    """How many runs are made at once.

    A log is read from its folder as it is needed, and may be larger than the memory: each process would hold all of it.

    >>> jobs_of(None, [9.0, 1.0, 2.0], cores=2), jobs_of(None, [1.0, 1.0], cores=2), jobs_of(8, [1.0, 1.0], cores=2)
    (2, 1, 2)
    >>> jobs_of(None, [9.0, 9.0], cores=2, is_log=True), jobs_of(2, [9.0, 9.0], cores=2, is_log=True)
    (1, 2)
    """
    if asked is None:
        asked = cores if sum(seconds) >= PROCESSES_FROM_S and not is_log else 1
    return min(asked, len(seconds))


def _run_embedded(plan: Plan, seconds: list[float], jobs: int | None) -> list[RunReport]:
    """The reports of all runs.

    Args:
        plan: settings, data, command line and runs.
        seconds: how long each run will take.
        jobs: how many run at once; None: as is best.
    """
    try:
        is_log = isinstance(plan.dataset, LogDataset)
        if (jobs := jobs_of(jobs, seconds, os.cpu_count() or 1, is_log=is_log)) > 1:
            longest_first = sorted(range(len(seconds)), key=lambda place: -seconds[place])
            return run_side_by_side(plan, longest_first, jobs)
        return [plan.make(run) for run in plan.runs]
    except BrokenOffError as error:
        raise fail(f"{error}; no page is written", ExitCode.INTERRUPTED) from error


def _publish(reports: list[RunReport], path: Path | None, *, json: bool) -> None:
    """Write the page, to the given file or under a name of its own, and print the results."""
    from stream.reporting.pages import add_page, write_page

    at = datetime.now(UTC)
    try:
        with announced_when_slow("drawing the page"):
            written = add_page(REPORTS, reports, at) if path is None else write_page(path, reports, at)
    except OSError as error:  # the results are printed all the same
        _print_results(reports, None, json=json)
        raise fail(f"--report {path or REPORTS}: the page cannot be written: {error}", ExitCode.USAGE) from error
    _print_results([replace(report, report=str(written)) for report in reports], written, json=json)


def _print_results(reports: list[RunReport], page: Path | None, *, json: bool) -> None:
    warnings = dict.fromkeys(message for report in reports for message in report.warnings)
    if json:
        for message in warnings:
            warn(message)
        objects = [report.as_json() for report in reports]
        sys.stdout.write(orjson.dumps(objects[0] if len(objects) == 1 else {"runs": objects}).decode() + "\n")
        return
    print_table(comparison(reports))
    for report in reports:
        if not report.ledger_ok:
            out.print(f"[bold red]✗ the ledger of {report.learner} does not add up")
    for label, report in zip(labels(reports), reports, strict=True):
        if report.estimate is not None:
            for line in estimate_lines(report.estimate, f"{label}: " if len(reports) > 1 else ""):
                out.print(line, highlight=False, markup=False, soft_wrap=True)
    for message in warnings:
        warn(message)
    if page is not None:
        out.print(f"error curves and ledger: {page}", highlight=False, soft_wrap=True)
