"""`onebit promote`: make a challenger the champion."""

from typing import Annotated

import typer

from onebit.cli.console import StopRequest, examples, fail, out, print_json
from onebit.cli.flags import Json, with_settings
from onebit.promotion import promote as promote_learner
from stream.errors import ExitCode
from stream.programs.process import quantity
from stream.settings.definitions import Settings
from stream.settings.model import Program

app = typer.Typer()


@app.command(epilog=examples("onebit promote stack-igw", "onebit promote --when-better"))
@with_settings(Program.CONNECT)
def promote(
    settings: Settings,
    name: Annotated[
        str | None, typer.Argument(help="Learner to promote: a challenger, or the first champion", show_default=False)
    ] = None,
    when_better: Annotated[
        bool,
        typer.Option(
            "--when-better",
            help="Wait until the confidence interval for a challenger's reward minus the champion's is above 0",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Promote a challenger, so that it makes the decisions.

    Writes a record to each partition of the feedback topic. The challenger becomes the champion when the learner
    applies this record. The old champion continues to learn as a challenger.
    """
    if (name is None) is not when_better:
        raise fail("expected the name of a learner, or --when-better", ExitCode.USAGE)
    promoted = promote_learner(settings, name, StopRequest())
    if json:
        print_json(promoted._asdict())
        return
    where = f"in {quantity(promoted.partitions, 'partition')}"
    already = f"{promoted.learner} already makes the decisions {where}"
    out.print(already if promoted.was_champion else f"promoted {promoted.learner} {where}", highlight=False)
