"""`onebit simulate`: random fault injection into learners, in virtual time."""

import os
from typing import Annotated

import typer

from onebit.cli.console import examples
from onebit.cli.flags import with_log_flags
from onebit.cli.simulated import Runs, simulate_campaign, simulate_seed
from onebit.simulation.schedule import EVENTS
from stream.errors import ExitCode
from stream.task.settings import Sharing

app = typer.Typer()


@app.command(epilog=examples("onebit simulate --seeds 20000 --model shared", "onebit simulate --seed 17 --trace"))
@with_log_flags
def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds")] = 2_000,
    seed: Annotated[int, typer.Option(min=0, help="First seed")] = 0,
    events: Annotated[int, typer.Option(min=1, help="Number of contexts per run")] = EVENTS,
    model: Annotated[Sharing, typer.Option(help="Separate model for each partition, or a shared model")] = "own",
    jobs: Annotated[int | None, typer.Option(min=1, show_default="all cores", help="Number of processes")] = None,
    show_trace: Annotated[
        bool, typer.Option("--trace", help="Run only the seed given by --seed, and print all events of the run")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="0-3,7", help="Run only these items of the seed's schedule, as printed for a failure"),
    ] = None,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="Show failing seeds without shrinking")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON")] = False,
) -> None:
    """Run learners under random faults and check the state after each run.

    Faults: crashes at any step, zombies, rebalances, outages, replication lag, commits with unknown outcomes, and
    duplicated, reordered, lost and malformed records. The seed determines all faults. Runs use the embedded broker and
    virtual time. If a seed fails, its schedule is shrunk, the command to replay the schedule is printed, and the exit
    code is 1. After Ctrl-C, the results so far are printed without shrinking.
    """
    runs = Runs(events, model)
    if show_trace or only is not None:
        raise typer.Exit(ExitCode.OK if simulate_seed(runs, seed, only, json=json) else ExitCode.DIFFERS)
    chosen = range(seed, seed + seeds)
    raise typer.Exit(simulate_campaign(runs, chosen, jobs or os.cpu_count() or 1, shrinks=not no_shrink, json=json))
