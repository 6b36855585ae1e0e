"""`onebit monitor`: whether a pipeline lives and learns, as a page and for Prometheus."""

from typing import Annotated

import typer

from stream.app.monitor import run_monitor
from stream.app.settings import Panel, Program, Settings
from stream.cli.console import StopRequest, examples
from stream.cli.flags import with_settings

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit monitor",
        "onebit monitor --page-port 8000 --topic-prefix own.",
        "onebit monitor --estimate constant:3 --estimate model:noon.npz",
    )
)
@with_settings(Program.MONITOR)
def monitor(
    settings: Settings,
    estimate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            show_default="the highest score, each class alike",
            rich_help_panel=Panel.WATCHING,
            help="Whom to judge, too; repeat it for more: logged, constant:ACTION, or model:FILE of `onebit model "
            "export`.",
        ),
    ] = None,
) -> None:
    """Show a running pipeline on a page: condition, error, delays, ledger, lag.

    It reads committed records alone, and nothing depends on it. Killed and started again, it goes on with its counts.
    It needs the extra: pip install 'onebit[monitor]'.
    """
    run_monitor(settings, estimate or (), StopRequest())
