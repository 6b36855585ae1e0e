"""`onebit replay`: write a data set's rows as contexts to Kafka."""

from typing import Annotated

import typer

from onebit.cli.console import StopRequest, examples
from onebit.cli.flags import with_settings
from onebit.cli.progress import shown_progress
from producers.replay.loop import run_replay
from stream.settings.definitions import Settings
from stream.settings.model import Panel, Program

app = typer.Typer()


@app.command(
    epilog=examples("onebit replay --data synsep --events 100000 --rate 500", "onebit replay --resume"),
)
@with_settings(Program.REPLAY)
def replay(
    settings: Settings,
    resume: Annotated[
        bool, typer.Option("--resume", rich_help_panel=Panel.DATA, help="Continue after the last event in the topic")
    ] = False,
) -> None:
    """Write the rows of a data set as contexts at a given rate.

    Ctrl-C or SIGTERM stops the replay. --resume continues after the last event in the topic.
    """
    stop = StopRequest("waiting for acknowledgements")
    with shown_progress() as show:
        run_replay(settings, stop, resume=resume, show=show)
