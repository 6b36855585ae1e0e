"""`onebit learners`: what can be asked to learn, what is best for what, and what it costs."""

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from producers.datasets.base import Dataset
from producers.datasets.catalogue import is_log, load
from stream.cli.composition import log_of
from stream.cli.console import announce, every, out
from stream.cli.cost import FLOPS_PER_S, SLOW_S, mean_nnz_of, nnz_of
from stream.cli.flags import BadRows, Json, LogMap, RewardAbove
from stream.cli.measuring import Event, event_us, first_events
from stream.cli.settings import SettingsError
from stream.learners import Cost, FromLogs, Learner, check_parameters, create, registered
from stream.learners.auto import Choice, choose
from stream.reporting.tables import duration

LOGS = {
    FromLogs.LABEL: "needs the true class with its feedback",
    FromLogs.PROPENSITY: "learns from a log's decisions by their propensities",
    FromLogs.NOTHING: "learns from a log's decisions",
}
"""What there is to say of a learner and a log."""

app = typer.Typer()

STATE_BYTES_MAX = 512_000_000
"""A larger state is not made only to measure with it."""


TOLD_EVERY_MS = 5_000
"""How often people are told how many learners have been measured."""


class _Size(NamedTuple):
    """What the costs are for."""

    n_classes: int
    n_features: int
    nnz: int


class _Row(NamedTuple):
    """What is told of one learner."""

    name: str
    cls: type[Learner]
    parameters: Mapping[str, float | int | str]  # as its costs are for
    cost: Cost
    event_us: float | None  # None: not measured
    unmeasured: str  # why it was not, where it should have been
    auto: str  # why auto takes it; nothing where it takes another


@app.command()
def learners(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="These alone.")] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME-OR-FILE", help="Measure what an event costs on this machine, on the first rows."),
    ] = None,
    n_classes: Annotated[int | None, typer.Option(min=2, show_default="9", help="K, for the costs.")] = None,
    n_features: Annotated[int | None, typer.Option(min=1, show_default="400", help="d, for the costs.")] = None,
    nnz: Annotated[
        int | None, typer.Option(min=0, show_default="25", help="Non-zeros of x on average, for the costs.")
    ] = None,
    mapping: LogMap = None,
    on_bad_row: BadRows = "stop",
    reward_above: RewardAbove = None,
    json: Json = False,
) -> None:
    """The learners: what each is best for, parameters, paper, cost per event; and which one auto takes.

    Costs are counts of operations for a size, or, with --data, what was measured.
    """
    for name in names or ():
        check_parameters(name, {})  # an unknown one is refused
    if data is None:
        dataset, size = None, _Size(n_classes or 9, n_features or 400, 25 if nnz is None else nnz)
    elif n_classes is None and nnz is None:
        is_of_log = mapping is not None or is_log(data)
        dataset = log_of(data, mapping, on_bad_row, reward_above) if is_of_log else load(data, n_features)
        size = _Size(dataset.n_classes, dataset.n_features, nnz_of(dataset))
    else:
        raise SettingsError(f"--data {data} tells the classes and the non-zeros: leave --n-classes and --nnz out")
    choice = choose(size.n_classes, size.n_features, size.nnz if dataset is None else mean_nnz_of(dataset))
    rows = list(_rows(names or list(registered()), size, choice, dataset))
    if json:
        sys.stdout.write(orjson.dumps([_fields(row) for row in rows]).decode() + "\n")
    else:
        _print(rows, size, choice, dataset)


def _rows(names: list[str], size: _Size, choice: Choice, dataset: Dataset | None) -> Iterator[_Row]:
    """What is told of each; measured where there are data."""
    events = [] if dataset is None else first_events(dataset)
    if dataset is not None:
        announce(f"measuring {len(names)} learners on {dataset.name}; what was never compiled takes seconds each")
    tell = every(TOLD_EVERY_MS, lambda: announce(f"{measured} of {len(names)} measured"))
    for measured, name in enumerate(names):
        if events and measured:
            tell()
        chosen = name == choice.learner
        parameters = check_parameters(name, choice.parameters if chosen else {})
        cls = registered()[name]
        cost = cls.cost(size.n_classes, size.n_features, size.nnz, parameters)
        measured_us, unmeasured = _measured(name, size, parameters, cost, events) if events else (None, "")
        yield _Row(name, cls, parameters, cost, measured_us, unmeasured, choice.why if chosen else "")


def _measured(
    name: str, size: _Size, parameters: Mapping[str, Any], cost: Cost, events: list[Event]
) -> tuple[float | None, str]:
    """Microseconds per event, or why there are none."""
    estimate_s = cost.flops_per_event / FLOPS_PER_S
    if estimate_s > SLOW_S:
        return None, f"not measured: some {duration(estimate_s)} an event"
    if cost.state_bytes > STATE_BYTES_MAX:
        return None, f"not measured: a state of more than {STATE_BYTES_MAX / 1e6:,.0f} MB"
    if registered()[name].needs_label and any(event.known.label is None for event in events):
        return None, "not measured: the log does not say the true classes"
    learner = create(name, size.n_classes, size.n_features, **parameters)
    return event_us(learner, events), ""


def _fields(row: _Row) -> dict[str, Any]:
    name, cls, _, cost, measured_us, unmeasured, auto = row
    return {
        "name": name, "summary": cls.summary, "best_for": cls.best_for or None, "paper": cls.paper,
        "needs_label": cls.needs_label, "randomised_update": cls.randomised_update, "retractable": cls.retractable,
        "from_logs": cls.from_logs.name.lower(), "one_right_class": cls.one_right_class,
        "cost": cost._asdict(), "us_per_event": measured_us, "unmeasured": unmeasured or None, "auto": auto or None,
        "parameters": {
            p.name: {"default": p.default, "help": p.help, "accepted": p.accepted()} for p in cls.parameters
        },
    }  # fmt: skip


def _print(rows: list[_Row], size: _Size, choice: Choice, dataset: Dataset | None) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for row in rows:
        table.add_row(f"[bold]{row.name}[/]", "\n".join(_lines(row)))
    out.print(table, highlight=False)
    sizes = f"K = {size.n_classes}, d = {size.n_features}, {size.nnz} non-zeros"
    costs = "costs per event (predict, observe and update)"
    if dataset is None:
        told = f"{costs} for {sizes}; --data measures them"
    else:
        told = f"{costs} on {dataset.name} ({sizes}), called from Python: CPU time on this machine"
    out.print(told, highlight=False, markup=False)
    given = "".join(f", {name}={value}" for name, value in choice.parameters.items())
    out.print(f"auto takes {choice.learner}{given}: {choice.why}", highlight=False, markup=False)
    unknown = choose(size.n_classes, size.n_features, None)
    if unknown.learner != choice.learner:
        out.print(
            f"where the contexts are not known beforehand, auto takes {unknown.learner}: {unknown.why}",
            highlight=False,
            markup=False,
        )


def _lines(row: _Row) -> Iterator[str]:
    cls, cost = row.cls, row.cost
    yield escape(cls.summary)
    if cls.best_for:
        yield f"best for {escape(cls.best_for)}"
    yield escape(cls.paper)
    if cls.from_logs in LOGS:
        yield LOGS[cls.from_logs]
    if not cls.one_right_class:
        yield "several classes may be right"
    for p in cls.parameters:
        yield f"{p.name}={p.default} [dim]{escape(p.help)} ({escape(p.accepted())})[/]"
    if row.event_us is not None:
        time = f"{row.event_us:,.1f} µs" if row.event_us < 1e3 else f"{row.event_us / 1e3:,.1f} ms"
    else:
        time = escape(row.unmeasured) or f"{cost.flops_per_event:,} flops"
    yield f"[dim]{time}, state {cost.state_bytes / 1e3:,.0f} kB[/]"
    if row.auto:
        yield f"[bold]auto takes it[/]: {escape(row.auto)}"
