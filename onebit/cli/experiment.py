"""`onebit experiment`: sweeps over learners, data, parameters, delays and seeds, with figures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from onebit.cli.console import boxed_table, examples, out, print_json, print_line
from onebit.cli.flags import Json, with_log_flags
from onebit.cli.progress import shown_lines
from onebit.experiments import commands as use_case
from onebit.experiments.commands import Sizes, Written
from onebit.experiments.definition import read_experiment, shipped
from onebit.experiments.report import PAGE
from onebit.experiments.runner import ExperimentProgress, Refused
from stream.errors import ExitCode
from stream.programs.process import announce, warn
from stream.reporting.tables import duration, percent

RESULTS = Path("reports") / "experiments"

app = typer.Typer(no_args_is_help=True, help="Run sweeps over data, learners, parameters, delays and seeds.")

Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Names from `onebit experiment list`, or TOML files")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar="ONEBIT_DATA_DIR", metavar="FOLDER", help="Folder with data sets as svmlight files"
    ),
]
Results = Annotated[
    Path, typer.Option("--results", metavar="FOLDER", help="Write rows, figures and tables to FOLDER/NAME")
]


@app.command("list", epilog=examples("onebit experiment list", "onebit experiment list --json"))
@with_log_flags
def list_experiments(json: Json = False) -> None:
    """List the built-in experiments."""
    found = {name: read_experiment(path) for name, path in shipped().items()}
    if json:
        print_json([{"name": name, "title": one.title, "data": list(one.data())} for name, one in found.items()])
        return
    table = boxed_table("name", "what", "data")
    for name, experiment in found.items():
        table.add_row(name, experiment.title, ", ".join(experiment.data()))
    out.print(table)


@app.command(
    epilog=examples(
        "onebit experiment run confidit-fig2",
        "onebit experiment run soba-fig2 --data-dir ~/data",
        "onebit experiment run delay --events 20000 --seeds 1 --sweep by-delay",
        "onebit experiment run soba-fig2 --sweep gamma --events 1000000",
        "onebit experiment run mine.toml",
    )
)
@with_log_flags
def run(
    names: Names,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    jobs: Annotated[int | None, typer.Option(min=1, show_default="all cores", help="Number of processes")] = None,
    events: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of events per run. With --sweep, replaces the limit in the sweep's definition",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; overrides the definition")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="Run only this sweep and the sweeps that provide its parameters; repeatable"),
    ] = None,
) -> None:
    """Run experiments and write figures and tables.

    After Ctrl-C, run the same command again to continue. Runs that need a missing data set are skipped, with a warning
    that names the data's source.
    """
    sizes = Sizes(events, seeds, tuple(sweep or ()))
    for experiment, sets in [use_case.prepare(name, sizes, data_dir) for name in names]:
        for reported in sets.missing(experiment).values():
            warn(f"skipped: {reported}")
        try:
            with _shown_progress(experiment.name) as show:
                found = use_case.run(experiment, sets, results, jobs, show, sizes.sweeps)
        except KeyboardInterrupt:
            announce(f"{experiment.name}: stopped; completed runs are kept. Run the same command again to continue")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        _tell(found.refused)
        _print(found.report)


@app.command(epilog=examples("onebit experiment report confidit-fig2", "onebit experiment report mine.toml"))
@with_log_flags
def report(names: Names, data_dir: DataDir = None, results: Results = RESULTS) -> None:
    """Recreate the figures and tables from stored results."""
    for name in names:
        _print(use_case.report(name, results, data_dir))


def _print(written: Written) -> None:
    print_line(f"{written.page}, {PAGE}, and {written.files} figures and tables")


def _tell(refused: list[Refused]) -> None:
    """Log each reason why runs were skipped, once per reason."""
    reasons = dict.fromkeys((one.job.sweep, one.job.data, one.job.title, one.reason) for one in refused)
    for sweep, data, learner, reason in reasons:
        warn(f"{sweep}: {learner} on {data} was not run: {reason}")


@contextmanager
def _shown_progress(name: str) -> Iterator[Callable[[ExperimentProgress], None]]:
    """Return a function that shows an experiment's progress. The first line of a sweep is always logged."""
    with shown_lines() as show:
        yield lambda far: show(f"{name} {far.sweep}", far.done / max(far.of, 1), _figures(far), far.job is None)


def _figures(far: ExperimentProgress) -> str:
    figures = f"{far.done:,} of {far.of:,} runs  ETA {duration(far.left_s)}"
    if far.job is None or far.error is None:
        return figures
    return f"{figures}  {far.job.title} on {far.job.data}: {percent(far.error)}"
