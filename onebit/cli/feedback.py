"""`onebit feedback`: the feedback program on Kafka."""

import typer

from onebit.cli.console import StopRequest, examples
from onebit.cli.flags import with_settings
from producers.feedback.loop import run_feedback
from stream.settings.definitions import Settings
from stream.settings.model import Program

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit feedback --delay lognormal:10s,1.0 --loss 0.02 --duplicates 0.01",
        "onebit feedback --data synsep --delay fixed:5s --topic-prefix trial.",
    )
)
@with_settings(Program.FEEDBACK)
def feedback(settings: Settings) -> None:
    """Send delayed feedback (right or wrong) for predictions.

    Looks up labels in the data set by event id. Ctrl-C or SIGTERM stops the program. After a restart, it sends the
    outstanding feedback.
    """
    run_feedback(settings, StopRequest("waiting for acknowledgements"))
