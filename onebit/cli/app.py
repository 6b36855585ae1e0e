"""`onebit`: loads commands lazily, and converts errors to messages and exit codes."""

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from stream.errors import ExitCode, OnebitError, StoppedError


def markdown() -> str:
    """Return the Markdown text of docs/exit-codes.md."""
    rows = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n".join(("# Exit codes", "", "| code | meaning |", "|---|---|", *rows)) + "\n"


def epilog() -> str:
    """Return the list of exit codes shown at the end of the help."""
    return "[bold]Exit codes[/]\n\n" + "\n\n".join(f"[cyan]{code.value}[/] {code.meaning}" for code in ExitCode)


class Lazy(NamedTuple):
    """A command that has not been loaded yet."""

    module: str  # module in onebit.cli whose `app` contains the command or the group of commands
    summary: str  # the first line of its help


COMMANDS = {
    "run": Lazy("run", "Run a pipeline to completion, embedded or on Kafka, and report its error."),
    "report": Lazy("report", "Compare saved runs on one page."),
    "replay": Lazy("replay", "Write the rows of a data set as contexts at a given rate."),
    "learn": Lazy("learn", "Publish a prediction for each context and learn from feedback."),
    "feedback": Lazy("feedback", "Send delayed feedback (right or wrong) for predictions."),
    "serve": Lazy("serve", "Serve decisions over HTTP and accept feedback."),
    "monitor": Lazy("monitor", "Show a running pipeline on a web page: status, error, delays, ledger and lag."),
    "change": Lazy("change", "Change the settings of a running pipeline, such as its window or its champion."),
    "changes": Lazy("changes", "List the changes that were requested: who, when, from, to, and the outcome."),
    "move": Lazy("move", "Move a stopped pipeline to new topics with its whole state, to change its partitions."),
    "verify": Lazy("verify", "Recompute the ledger from the topics and compare it with the learner's ledger."),
    "tail": Lazy("tail", "Show records, one per line."),
    "export": Lazy("export", "Export a pipeline's decisions."),
    "estimate": Lazy("estimate", "Estimate the reward of other policies from a log of decisions."),
    "train": Lazy("train", "Train a model from logged decisions or from labelled data."),
    "simulate": Lazy("simulate", "Run learners under random faults and check the state after each run."),
    "learners": Lazy("learners", "List the learners: uses, parameters, papers and cost per event."),
    "settings": Lazy("settings_table", "List every setting with its default."),
    "topics": Lazy("topics", "Create, alter, describe and delete the topics."),
    "config": Lazy("config", "Show the effective settings and their sources."),
    "dead-letters": Lazy("dead_letters", "Write dead letters back to their original topics."),
    "kafka": Lazy("kafka", "Start and stop a local single-node Apache Kafka."),
    "data": Lazy("data", "List and show data sets and logs."),
    "model": Lazy("model", "Export, compare and import models."),
    "experiment": Lazy("experiment", "Run sweeps over data, learners, parameters, delays and seeds."),
}


class LoadedCommands(Mapping[str, Any]):
    """The commands by name. A command is loaded on first access."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            group = get_group(import_module(f"onebit.cli.{COMMANDS[name].module}").app)
            group.name = name
            self._loaded[name] = group.commands.get(name, group)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """The `onebit` command group. Its help shows the summaries without loading the commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Mapping[str, Any] = LoadedCommands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands; see `TyperGroup`."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Format the help from the summaries, without loading the commands; see `TyperGroup`."""
        loaded = self.commands
        self.commands = {name: TyperCommand(name, help=lazy.summary) for name, lazy in COMMANDS.items()}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = loaded

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Ctrl-C at a prompt and a closed stdout have their own exit codes."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            raise _console().interrupted() from None
        except BrokenPipeError:
            with suppress(OSError):  # prevents an error message when the interpreter flushes stdout
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.OUTPUT_CLOSED) from None


app = typer.Typer(
    cls=LazyGroup,
    help="Online multiclass learning from one late bit of feedback: right or wrong.",
    epilog=epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        import stream

        sys.stdout.write(f"onebit {stream.__version__}\n")
        raise typer.Exit


@app.callback()
def onebit(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit")
    ] = False,
) -> None:
    """Online multiclass learning from one late bit of feedback: right or wrong."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, by default the one on the command line. Convert exceptions to a message and an exit code."""
    try:
        app(arguments, prog_name="onebit")
    except StoppedError as error:
        raise SystemExit(error.exit_code) from error
    except OnebitError as error:
        from onebit.cli.console import hint_of

        hint = hint_of(error)
        raise _console().fail(f"{error}; {hint}" if hint else str(error), error.exit_code, error) from error
    except KeyboardInterrupt:
        raise _console().interrupted() from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            message = "too many open files; raise the limit with ulimit -n"
            raise _console().fail(message, ExitCode.USAGE, error) from error
        raise _console().crashed(error) from error
    finally:
        if "onebit.cli.console" in sys.modules:
            _console().end_log()


def _console() -> Any:
    """Load the console module on demand, for commands that print."""
    return import_module("onebit.cli.console")
