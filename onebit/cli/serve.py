"""`onebit serve`: decisions and feedback over HTTP."""

import typer

from onebit.cli.console import StopRequest, examples
from onebit.cli.flags import with_settings
from producers.gateway.loop import run_serve
from stream.settings.definitions import Settings
from stream.settings.model import Program

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit serve",
        "onebit serve --port 8443 --serve-certificate cert.pem --serve-key key.pem --metrics-host 0.0.0.0",
        "onebit serve --timeout 200ms --fallback uniform --rate-max 500",
    )
)
@with_settings(Program.SERVE)
def serve(settings: Settings) -> None:
    r"""Serve decisions over HTTP and accept feedback.

    POST /v1/decide writes up to 100 contexts and returns their committed decisions. POST /v1/feedback writes a
    reward. POST /v1/shown reports that a deferred decision was shown. The gateway requires a running learner. Any
    number of processes can serve one pipeline. ONEBIT_SERVE_TOKEN sets a bearer token. Requires an extra: pip install
    'onebit\[serve]'.
    """
    run_serve(settings, StopRequest("completing open requests"))
