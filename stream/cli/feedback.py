"""`onebit feedback`: the simulated environment on its own, against Kafka."""

import typer

from stream.app.feedback import run_feedback
from stream.app.settings import Program, Settings
from stream.cli.console import StopRequest, examples
from stream.cli.flags import with_settings

app = typer.Typer()


@app.command(epilog=examples("onebit feedback --delay lognormal:10s,1.0 --loss 0.02 --duplicates 0.01"))
@with_settings(Program.FEEDBACK)
def feedback(settings: Settings) -> None:
    """Answer predictions with right or wrong, late.

    It knows the labels of the data set by event id. Ctrl-C or SIGTERM ends it; feedback that is still due is sent
    when it is started again.
    """
    run_feedback(settings, StopRequest("what was sent is acknowledged"))
