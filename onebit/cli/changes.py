"""`onebit changes`: list the requested changes of a pipeline's settings."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import typer
from msgspec import to_builtins
from rich.markup import escape

from onebit.changes import Outcome, Recorded, named, recorded
from onebit.cli.console import boxed_table, examples, out, print_json
from onebit.cli.flags import Json, with_settings
from stream.programs.connection import connected
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.task.changes import shown_changes
from stream.wire.control import Request

app = typer.Typer()


@app.command(epilog=examples("onebit changes", "onebit changes --topic-prefix store. --json"))
@with_settings(Program.CONNECT)
def changes(settings: Settings, json: Json = False) -> None:
    """List the changes that were requested: who, when, from, to, and the outcome.

    Also lists the moves from and to other topics.
    """
    with connected(settings) as connection:
        found = list(recorded(connection))
    if json:
        print_json([_plain(one) for one in found])
        return
    if not found:
        out.print(f"no changes of {settings.topics.contexts}")
        return
    table = boxed_table("time", "by", "change", "outcome")
    table.columns[0].no_wrap = True
    for one in found:
        request = one.request
        shown = ("?", "not a request") if request is None else (request.by, _shown_request(request))
        table.add_row(_utc(one.append_ms), *map(escape, shown), escape(_shown_outcome(one.outcome)))
    out.print(table)


def _shown_request(request: Request) -> str:
    to = f"moved to {request.moved_to}" if request.moved_to else ""
    origin = f"moved from {request.moved_from}" if request.moved_from else ""
    return "\n".join(filter(None, (*shown_changes(request.changes), to, origin)))


def shown_steps(steps: Mapping[int, int]) -> str:
    """Return the step from which on each partition has new settings."""
    return ", ".join(f"partition {partition} from step {step:,} on" for partition, step in steps.items())


def plain_steps(steps: Mapping[int, int]) -> dict[str, int]:
    """Return the steps as a JSON object."""
    return {str(partition): step for partition, step in steps.items()}


def _shown_outcome(outcome: Outcome) -> str:
    if outcome.refusal:
        return f"refused: {outcome.refusal}"
    waiting = f"waiting for {named(outcome.waiting)}" if outcome.waiting else ""
    forgotten = "applied or refused before the retained steps" if outcome.is_forgotten else ""
    return "; ".join(filter(None, (shown_steps(outcome.steps), waiting, forgotten)))


def _plain(one: Recorded) -> dict[str, Any]:
    request = one.request
    changes = {} if request is None else request.changes
    return {
        "offset": one.offset,
        "time": _utc(one.append_ms),
        "id": None if request is None else request.id,
        "by": None if request is None else request.by,
        "changes": {name: {"from": change.old, "to": change.new} for name, change in changes.items()},
        "moved_to": None if request is None else request.moved_to and to_builtins(request.moved_to),
        "moved_from": None if request is None else request.moved_from and to_builtins(request.moved_from),
        "steps": plain_steps(one.outcome.steps),
        "waiting": one.outcome.waiting,
        "refusal": one.outcome.refusal or None,
    }


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
