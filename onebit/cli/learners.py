"""`onebit learners`: the learners' uses, parameters and costs."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from onebit.cli.console import examples, out, print_json
from onebit.cli.flags import Json, data_names, learner_names, with_settings
from onebit.learner_costs import LearnerRow, LearnerSurvey, Size, survey_learners
from producers.data import dataset_of
from stream.learners import FromLogs
from stream.learners.auto import choose, choose_for_actions
from stream.settings.definitions import Settings, SettingsError, SourceSettings
from stream.settings.model import Program

LOGS = {
    FromLogs.LABEL: "requires the true class in feedback",
    FromLogs.PROPENSITY: "learns from a log's decisions and propensities",
    FromLogs.NOTHING: "learns from a log's decisions",
}
"""Descriptions of the ways in which learners can learn from a log."""

app = typer.Typer()


@app.command(epilog=examples("onebit learners", "onebit learners late-ucb soba-diag --data optdigits"))
@with_settings(Program.LEARNERS)
def learners(
    settings: Settings,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Names of learners", autocompletion=learner_names)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME-OR-FILE",
            autocompletion=data_names,
            help="Measure the cost per event on this machine with the first rows of a data set",
        ),
    ] = None,
    n_classes: Annotated[
        int | None, typer.Option(min=2, show_default="9", help="Number of classes K assumed for the costs")
    ] = None,
    n_features: Annotated[
        int | None, typer.Option(min=1, show_default="400", help="Number of features d assumed for the costs")
    ] = None,
    nnz: Annotated[
        int | None, typer.Option(min=0, show_default="25", help="Mean number of non-zeros of x assumed for the costs")
    ] = None,
    json: Json = False,
) -> None:
    """List the learners: uses, parameters, papers and cost per event.

    Also shows the learner that auto selects. Costs are operation counts for a problem size or, with --data,
    measurements.
    """
    if data is None:
        found = survey_learners(names or (), Size(n_classes or 9, n_features or 400, 25 if nnz is None else nnz))
    elif n_classes is None and nnz is None:
        source = SourceSettings(
            data=data,
            map=settings.map,
            on_bad_row=settings.on_bad_row,
            reward_above=settings.reward_above,
            n_features=n_features,
        )
        found = survey_learners(names or (), dataset=dataset_of(source))
    else:
        raise SettingsError(f"--data {data} cannot be combined with --n-classes or --nnz")
    if json:
        print_json([row.to_dict() for row in found.rows])
    else:
        _print(found)


def _print(found: LearnerSurvey) -> None:
    rows, size, choice, dataset = found
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for row in rows:
        table.add_row(f"[bold]{row.name}[/]", "\n".join(_lines(row)))
    out.print(table, highlight=False)
    sizes = f"K = {size.n_classes}, d = {size.n_features}, {size.nnz} non-zeros"
    costs = "costs per event (predict, observe and update)"
    if dataset is None:
        text = f"{costs} for {sizes}; measure with --data"
    else:
        text = f"{costs} on {dataset.name} ({sizes}), called from Python: CPU time on this machine"
    out.print(text, highlight=False, markup=False)
    given = "".join(f", {name}={value}" for name, value in choice.parameters.items())
    out.print(f"auto selects {choice.learner}{given}: {choice.why}", highlight=False, markup=False)
    blocks = None if dataset is None else dataset.blocks
    unknown = choose(size.n_classes, size.n_features, None) if blocks is None else choose_for_actions(blocks, None)
    if unknown.learner != choice.learner:
        out.print(
            f"if the data's sparsity is unknown, auto selects {unknown.learner}: {unknown.why}",
            highlight=False,
            markup=False,
        )


def _lines(row: LearnerRow) -> Iterator[str]:
    cls, cost = row.cls, row.cost
    yield escape(cls.summary)
    if cls.best_for:
        yield f"best for {escape(cls.best_for)}"
    yield escape(cls.paper)
    if cls.from_logs in LOGS:
        yield LOGS[cls.from_logs]
    if cls.for_actions:
        yield "decides among actions with features; requires --actions-max"
    elif cls.supports_eligible:
        yield "can decide among eligible classes"
    if not cls.one_right_class:
        yield "several classes may be right"
    if cls.learns_values:
        yield "learns graded rewards"
    for p in cls.parameters:
        yield f"{p.name}={p.default} [dim]{escape(p.help)} ({escape(p.accepted())})[/]"
    if row.event_us is not None:
        time = f"{row.event_us:,.1f} µs" if row.event_us < 1e3 else f"{row.event_us / 1e3:,.1f} ms"
    else:
        time = escape(row.unmeasured) or f"{cost.flops_per_event:,} flops"
    yield f"[dim]{time}, state {cost.state_bytes / 1e3:,.0f} kB[/]"
    if row.auto:
        yield f"[bold]selected by auto[/]: {escape(row.auto)}"
