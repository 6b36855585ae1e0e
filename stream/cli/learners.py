"""`onebit learners`: what can be asked to learn."""

import sys
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from stream.cli.console import out
from stream.cli.flags import Json
from stream.learners import registered

app = typer.Typer()


@app.command()
def learners(
    n_classes: Annotated[int, typer.Option(help="K, for the costs.")] = 9,
    n_features: Annotated[int, typer.Option(help="d, for the costs.")] = 400,
    nnz: Annotated[int, typer.Option(help="Non-zeros of x, for the costs.")] = 25,
    json: Json = False,
) -> None:
    """The learners: parameters with defaults, paper, and cost per event."""
    rows = []
    for name, cls in registered().items():
        defaults = {parameter.name: parameter.default for parameter in cls.parameters}
        cost = cls.cost(n_classes, n_features, nnz, defaults)
        rows.append((name, cls, cost))
    if json:
        fields = [
            {
                "name": name, "summary": cls.summary, "paper": cls.paper, "needs_label": cls.needs_label,
                "randomised_update": cls.randomised_update, "retractable": cls.retractable, "cost": cost._asdict(),
                "parameters": {p.name: {"default": p.default, "accepted": p.accepted()} for p in cls.parameters},
            }
            for name, cls, cost in rows
        ]  # fmt: skip
        sys.stdout.write(orjson.dumps(fields).decode() + "\n")
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for name, cls, cost in rows:
        needs = ["needs the true class with its feedback"] if cls.needs_label else []
        parameters = [f"{p.name}={p.default} [dim]({escape(p.accepted())})[/]" for p in cls.parameters]
        costs = f"[dim]{cost.flops_per_event:,} flops, state {cost.state_bytes / 1e3:,.0f} kB[/]"
        lines = [escape(cls.summary), escape(cls.paper), *needs, *parameters, costs]
        table.add_row(f"[bold]{name}[/]", "\n".join(lines))
    out.print(table, highlight=False)
    out.print(
        f"costs per event (predict and update) for K = {n_classes}, d = {n_features}, {nnz} non-zeros", highlight=False
    )
