"""`onebit kafka`: a real Apache Kafka for this user."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from stream.app.process import announce
from stream.app.settings import SettingsError
from stream.cli.console import out, print_json
from stream.cli.flags import Json, with_log_flags
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from stream.errors import ExitCode

app = typer.Typer(help="Start and stop a local single-node Apache Kafka.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option(help="The broker's home.", show_default=str(local_kafka.default_home()))]


def _command(command: str, data_dir: Path | None) -> str:
    """A command for the broker of this home."""
    return f"onebit kafka {command}" + ("" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}")


def _none_runs(data_dir: Path | None, hint: str) -> None:
    out.print(f"no Kafka runs in {data_dir or local_kafka.default_home()}{hint}", soft_wrap=True, highlight=False)
    if data_dir is None:
        out.print("one that was started with a --data-dir is found with that", soft_wrap=True, highlight=False)


def print_running(kafka: LocalKafka, data_dir: Path | None, runs: str) -> None:
    """Say where a broker runs, how it is reached, and what stops it."""
    out.print(f"Kafka {runs} at {kafka.bootstrap}, pid {kafka.pid}, records in {kafka.storage}", soft_wrap=True)
    is_default = kafka.bootstrap == f"{local_kafka.HOST}:{local_kafka.DEFAULT_PORT}"
    at = "" if is_default else f" --bootstrap {kafka.bootstrap}"
    by = f" --client-config {shlex.quote(str(kafka.client_config))}" if kafka.client_config else ""
    if at or by:
        out.print(f"other commands reach it with:{at}{by}", soft_wrap=True, highlight=False)
    out.print(f"{_command('down', data_dir)} stops it", soft_wrap=True, highlight=False)


@app.command()
@with_log_flags
def up(
    port: Annotated[int, typer.Option(help="Where clients connect, on the loopback interface.")] = 9092,
    data_dir: DataDir = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep no records when it stops.")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Let clients in by TLS and SCRAM alone, to do what ACLs allow.")
    ] = False,
    json: Json = False,
) -> None:
    """Start the broker, and wait until it answers; one that runs already is left as it is.

    The first time the Java archives are fetched, which takes up to half a minute. A secured broker has certificates of
    its own, and a user who may do everything; it says which --client-config lets other commands in as that user.
    """
    kafka = local_kafka.start(port, data_dir, ephemeral=ephemeral, secure=secure, progress=announce)
    if json:
        print_json(kafka._asdict())
    else:
        print_running(kafka, data_dir, "runs already" if kafka.already else "runs")


@app.command()
@with_log_flags
def status(data_dir: DataDir = None, json: Json = False) -> None:
    """Say whether the broker runs; exit code 1 when it does not."""
    kafka = local_kafka.status(data_dir)
    if json:
        print_json({"runs": kafka is not None, **({} if kafka is None else kafka._asdict())})
        raise typer.Exit(ExitCode.OK if kafka else ExitCode.DIFFERS)
    if kafka is None:
        _none_runs(data_dir, f"; start one: {_command('up', data_dir)}")
        raise typer.Exit(ExitCode.DIFFERS)
    print_running(kafka, data_dir, "runs")


@app.command()
@with_log_flags
def logs(
    data_dir: DataDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what comes.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 50,
) -> None:
    """Show the broker's log."""
    path = local_kafka.log_path(data_dir)
    if not path.exists():
        raise SettingsError(
            f"there is no log at {path}: no broker has run there; start one: {_command('up', data_dir)}; one that was "
            "started with another --data-dir is found with that"
        )
    command = ["tail", "-n", str(lines), *(["-f"] if follow else []), str(path)]
    sys.exit(subprocess.call(command))


@app.command()
@with_log_flags
def down(
    data_dir: DataDir = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove all records too.")] = False,
) -> None:
    """Stop the broker. The records stay, unless --purge is given or it was ephemeral."""
    if local_kafka.stop(data_dir, purge=purge, progress=announce):
        out.print("Kafka is stopped")
    else:
        _none_runs(data_dir, "")
