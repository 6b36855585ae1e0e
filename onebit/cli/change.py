"""`onebit change`: change the settings of a running pipeline."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from onebit.changes import (
    DesiredChange,
    check_retention,
    first_better,
    latest_steps,
    outcome_of,
    request_for,
    send,
    settings_now,
    shown_uploads,
    start_files,
    wait_until_applied,
    with_changes,
)
from onebit.cli.changes import plain_steps, shown_steps
from onebit.cli.console import StopRequest, err, examples, fail, out, print_json
from onebit.cli.flags import Json, with_settings
from stream.errors import ExitCode
from stream.programs.connection import Connected, connected
from stream.programs.costs import cost_change
from stream.programs.pipeline_settings import determined_by
from stream.programs.process import quantity
from stream.programs.task_settings import challengers_of
from stream.settings.definitions import Settings, SettingsError
from stream.settings.model import Program
from stream.settings.sources import described
from stream.task.changes import ChangeRefusedError, shown_changes
from stream.wire.control import Request

app = typer.Typer()

NAMES = tuple(
    one.field
    for one in described()
    if Program.CHANGE in one.setting.programs and (determined_by(one) or one.field == "param")
)
"""The settings with a flag that changes them."""


@app.command(
    epilog=examples(
        "onebit change --window 2m --on-expiry negative",
        "onebit change --challenger late-ucb:m=128 --floor 3%",
        "onebit change --challenger late-ucb:m=128 --from start.npz",
        "onebit change --champion late-ucb:m=128 --remove-learner banditron --yes",
        "onebit change --retire-class summer-sale --restore-class winter-sale",
        "onebit change --champion-when-better",
    )
)
@with_settings(Program.CHANGE, unset=dict.fromkeys(NAMES, "unchanged"))
def change(
    settings: Settings,
    context: typer.Context,
    champion: Annotated[
        str | None,
        typer.Option(help="Learner that makes the decisions: the first champion, or a challenger", show_default=False),
    ] = None,
    champion_when_better: Annotated[
        bool,
        typer.Option(
            "--champion-when-better",
            help="Wait until the confidence interval for a challenger's reward minus the champion's is above 0, and "
            "let this challenger decide",
        ),
    ] = False,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="[NAME=]FILE",
            help="Model file with which a new challenger starts, from onebit train or onebit model export; the name "
            "is necessary if several challengers are added; repeatable",
            show_default=False,
        ),
    ] = None,
    remove_learner: Annotated[
        list[str] | None, typer.Option(help="Learner to remove; repeatable", show_default=False)
    ] = None,
    add_class: Annotated[
        list[str] | None,
        typer.Option(help="Name of a class to append to the pipeline's fixed classes; repeatable", show_default=False),
    ] = None,
    retire_class: Annotated[
        list[str] | None,
        typer.Option(
            help="Class that is never eligible from then on: a name, or an index if the classes have no names; "
            "repeatable",
            show_default=False,
        ),
    ] = None,
    restore_class: Annotated[
        list[str] | None, typer.Option(help="Retired class to make eligible again; repeatable", show_default=False)
    ] = None,
    retire_feature: Annotated[
        list[str] | None,
        typer.Option(
            help="Feature to ignore from then on: a name, or an index if the features have no names; repeatable",
            show_default=False,
        ),
    ] = None,
    restore_feature: Annotated[
        list[str] | None, typer.Option(help="Retired feature to use again; repeatable", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until all tasks have applied the change")] = True,
    json: Json = False,
) -> None:
    """Change the settings of a running pipeline, such as its window or its champion.

    Writes a request to the control topic. Each task applies it at the beginning of a step; no program needs a restart.
    A challenger is added to the others. Only flags count: variables and the settings file do not change a pipeline.
    `onebit changes` lists all requests.
    """
    given = frozenset(
        one.field
        for one in described()
        if one.field in NAMES
        if (source := context.get_parameter_source(one.field)) is not None and source.name == "COMMANDLINE"
    )
    files = start_files(start or (), challengers_of(settings) if "challenger" in given else ())
    desired = DesiredChange(
        settings, given, champion, remove_learner or (), add_class or (), retire_class or (), restore_class or (),
        retire_feature or (), restore_feature or (), files,
    )  # fmt: skip
    if desired == DesiredChange(settings, frozenset()) and not champion_when_better:
        raise fail("expected a setting to change, such as --window 2m", ExitCode.USAGE)
    if champion is not None and champion_when_better:
        raise fail("expected --champion or --champion-when-better, not both", ExitCode.USAGE)
    with connected(settings) as connection:
        if champion_when_better:
            desired = desired._replace(champion=first_better(connection, StopRequest()))
        now = settings_now(connection)
        after = with_changes(now.settings, desired)
        check_retention(connection, after.join)
        request = request_for(now, after, files.values())
        uploads = shown_uploads(connection.broker, connection.topics, files)
        cost = [*filter(None, (cost_change(now.settings, after),)), *uploads]
        if request.changes and not champion_when_better and not yes:
            _confirm(request, cost, connection)
        stop = StopRequest()
        offset = now.control - 1
        if request.changes:
            offset = send(connection.broker, connection.topics, request, files.values())
        if wait:
            wait_until_applied(connection, offset + 1, stop)
        outcome = outcome_of(connection.broker, latest_steps(connection), offset) if request.changes else None
    if outcome is not None and outcome.refusal:
        raise ChangeRefusedError(f"request {request.id}: the tasks refused it: {outcome.refusal}")
    steps = {} if outcome is None else outcome.steps
    if json:
        changes = {name: {"from": one.old, "to": one.new} for name, one in request.changes.items()}
        print_json({"id": request.id if changes else None, "changes": changes, "steps": plain_steps(steps)})
    elif not request.changes:
        out.print("the pipeline already has these settings", highlight=False)
    else:
        lines = (*shown_changes(request.changes), *cost, shown_steps(steps) or "requested")
        out.print("\n".join(lines), highlight=False, markup=False)


def _confirm(request: Request, cost: Sequence[str], connection: Connected) -> None:
    if not sys.stdin.isatty():
        raise SettingsError("to change a pipeline without a terminal, add --yes")
    err.print("\n".join((*shown_changes(request.changes), *cost)), highlight=False, markup=False)
    tasks = quantity(connection.partitions, "partition")
    if not typer.confirm(f"Change this in {tasks} of {connection.topics.contexts}?", err=True):
        raise typer.Exit(ExitCode.DIFFERS)
