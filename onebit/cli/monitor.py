"""`onebit monitor`: a pipeline's state on a web page and as Prometheus metrics."""

from typing import Annotated

import typer

from consumers.monitor.loop import run_monitor
from onebit.cli.console import StopRequest, examples
from onebit.cli.flags import with_settings
from stream.settings.definitions import Settings
from stream.settings.model import Panel, Program

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit monitor",
        "onebit monitor --port 8000 --topic-prefix own.",
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
            show_default="the greedy policy and the uniform policy",
            rich_help_panel=Panel.WATCHING,
            help="Additional policy to evaluate; repeatable: logged, constant:ACTION, or model:FILE from "
            "`onebit model export`",
        ),
    ] = None,
) -> None:
    r"""Show a running pipeline on a web page: status, error, delays, ledger and lag.

    The monitor reads only committed records. No other program depends on the monitor. The counts survive a restart.
    Requires an extra: pip install 'onebit\[monitor]'.
    """
    run_monitor(settings, estimate or (), StopRequest())
