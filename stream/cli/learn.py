"""`onebit learn`: the learner program on its own, against Kafka."""

from typing import Annotated

import typer

from stream.app.learner import run_learner
from stream.app.settings import Panel, Program, Settings
from stream.cli.console import StopRequest, examples
from stream.cli.flags import with_settings

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit learn --learner soba-diag --param gamma=0.05",
        "onebit learn --data synsep --instance a   # and --instance b in another terminal, with 2 partitions",
        "onebit learn --n-classes 12 --n-features 4096   # for contexts of your own",
    )
)
@with_settings(Program.LEARN)
def learn(
    settings: Settings,
    change_settings: Annotated[
        bool,
        typer.Option(
            "--change-settings",
            rich_help_panel=Panel.JOIN,
            help="In a pipeline that has begun, let what is given here hold from the next step on.",
        ),
    ] = False,
) -> None:
    """Answer contexts with predictions, and learn from their feedback.

    Ctrl-C or SIGTERM finishes the open transaction and exits 0. A learner that was killed goes on where it stood when
    it is started again. What is not given is then what the pipeline has; what is given and differs is refused, unless
    --change-settings lets it change: windows, limits, and what expiry teaches.
    """
    run_learner(settings, StopRequest("the open transaction is finished"), change_settings=change_settings)
