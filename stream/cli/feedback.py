"""`onebit feedback`: the feedback program on Kafka."""

import typer

from stream.app.feedback import run_feedback
from stream.app.settings import Program, Settings
from stream.cli.console import StopRequest, examples
from stream.cli.flags import with_settings

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
