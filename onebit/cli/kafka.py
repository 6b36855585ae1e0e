"""`onebit kafka`: a local Apache Kafka broker for development."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from onebit.cli.console import examples, out, print_json, print_line
from onebit.cli.flags import Json, with_log_flags
from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from stream.errors import ExitCode
from stream.programs.process import announce
from stream.settings.definitions import SettingsError

app = typer.Typer(help="Start and stop a local single-node Apache Kafka.", no_args_is_help=True)

DataDir = Annotated[
    Path | None, typer.Option(help="The broker's home folder", show_default=str(local_kafka.default_home()))
]


def _command(command: str, data_dir: Path | None) -> str:
    """Return the command line of an `onebit kafka` subcommand for the broker with this home folder."""
    return f"onebit kafka {command}" + ("" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}")


def _none_runs(data_dir: Path | None, hint: str) -> None:
    home = data_dir or local_kafka.default_home()
    print_line(f"no Kafka broker is running in {home}{hint}")
    if data_dir is None:
        print_line("if the broker was started with --data-dir, use the same --data-dir")


def print_running(kafka: LocalKafka, data_dir: Path | None, runs: str) -> None:
    """Print the broker's address, the flags for connecting to it, and the command that stops it."""
    out.print(f"Kafka {runs} at {kafka.bootstrap}, pid {kafka.pid}, records in {kafka.storage}", soft_wrap=True)
    is_default = kafka.bootstrap == f"{local_kafka.HOST}:{local_kafka.DEFAULT_PORT}"
    at = "" if is_default else f" --bootstrap {kafka.bootstrap}"
    by = f" --client-config {shlex.quote(str(kafka.client_config))}" if kafka.client_config else ""
    if at or by:
        print_line(f"flags for other commands:{at}{by}")
    print_line(f"to stop: {_command('down', data_dir)}")


@app.command(epilog=examples("onebit kafka up", "onebit kafka up --port 9192 --ephemeral"))
@with_log_flags
def up(
    port: Annotated[int, typer.Option(help="Port for clients on the loopback interface")] = 9092,
    data_dir: DataDir = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Delete all records when the broker stops")] = False,
    secure: Annotated[bool, typer.Option("--secure", help="Require TLS and SCRAM, and enforce ACLs")] = False,
    json: Json = False,
) -> None:
    """Start the broker and wait until it responds. Do nothing if it is already running.

    The first start downloads the Java archives and caches their classes, which takes up to a minute. With --secure,
    certificates and an administrator account are created, and the output includes the --client-config for other
    commands.
    """
    kafka = local_kafka.start(port, data_dir, ephemeral=ephemeral, secure=secure, progress=announce)
    if json:
        print_json(kafka._asdict())
    else:
        print_running(kafka, data_dir, "is already running" if kafka.already else "is running")


@app.command(epilog=examples("onebit kafka status", "onebit kafka status --json"))
@with_log_flags
def status(data_dir: DataDir = None, json: Json = False) -> None:
    """Show whether the broker is running. Exit with 1 if no broker is running."""
    kafka = local_kafka.status(data_dir)
    if json:
        print_json({"runs": kafka is not None, **({} if kafka is None else kafka._asdict())})
        raise typer.Exit(ExitCode.OK if kafka else ExitCode.DIFFERS)
    if kafka is None:
        _none_runs(data_dir, f". Run: {_command('up', data_dir)}")
        raise typer.Exit(ExitCode.DIFFERS)
    print_running(kafka, data_dir, "is running")


@app.command(epilog=examples("onebit kafka logs --lines 200", "onebit kafka logs --follow"))
@with_log_flags
def logs(
    data_dir: DataDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Number of lines from the end of the log")] = 50,
) -> None:
    """Show the broker's log."""
    path = local_kafka.log_path(data_dir)
    if not path.exists():
        raise SettingsError(
            f"no log at {path}: no broker was started in this folder. Run: {_command('up', data_dir)}; or use the "
            "--data-dir of the broker"
        )
    command = ["tail", "-n", str(lines), *(["-f"] if follow else []), str(path)]
    sys.exit(subprocess.call(command))


@app.command(epilog=examples("onebit kafka down", "onebit kafka down --purge"))
@with_log_flags
def down(
    data_dir: DataDir = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also delete all records")] = False,
) -> None:
    """Stop the broker. Records are kept, unless --purge is given or the broker is ephemeral."""
    if local_kafka.stop(data_dir, purge=purge, progress=announce):
        out.print("Kafka stopped")
    else:
        _none_runs(data_dir, "")
