"""`onebit learn`: the learner program on Kafka."""

from typing import Annotated

import typer

from consumers.learner.loop import run_learner
from onebit.cli.console import StopRequest, examples
from onebit.cli.flags import with_settings
from producers.data import data_sizes
from stream.settings.definitions import Settings
from stream.settings.model import Panel, Program

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
            help="From the next step on, use the settings given here instead of the pipeline's",
        ),
    ] = False,
) -> None:
    """Publish a prediction for each context and learn from feedback.

    Ctrl-C or SIGTERM completes the open transaction and exits with 0. After a restart, a killed learner continues from
    its last commit. Settings that you do not set are taken from the pipeline. A setting that differs from the
    pipeline's is rejected. --change-settings allows changes to windows, limits and the expiry policy.
    """
    stop = StopRequest("completing the open transaction")
    run_learner(settings, stop, sizes_of=data_sizes, change_settings=change_settings)
