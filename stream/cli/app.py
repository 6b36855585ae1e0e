"""`onebit`: its command groups, and how errors become messages and exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import stream
from producers.datasets.base import DatasetError
from stream.cli import (
    config,
    data,
    dead_letters,
    estimate,
    experiment,
    feedback,
    kafka,
    learn,
    learners,
    model,
    monitor,
    replay,
    report,
    run,
    settings_table,
    simulate,
    tail,
    topics,
    verify,
)
from stream.cli.access import access_hint
from stream.cli.console import end_log, fail, interrupted
from stream.cli.exits import ExitCode, epilog
from stream.cli.settings import SettingsError
from stream.devkafka.local_kafka import LocalKafkaError, LocalKafkaPortError
from stream.durations import DurationError
from stream.estimating.policies import EstimateError
from stream.experiments.definition import ExperimentError
from stream.journal.format import JournalError, UnrecoverableError
from stream.kafka.port import AccessError, BrokerError, BrokerUnavailableError, FencedError
from stream.learners import ParameterError
from stream.randomness.delays import DelayError
from stream.reporting.saved_runs import SavedRunsError
from stream.task.settings import PolicyError, Unsuitable
from stream.verifying.model_files import ModelError
from stream.wire.updates import UpdatesError

app = typer.Typer(
    help="Online multiclass learning from one late bit of feedback: right or wrong.",
    epilog=epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (
    run,
    report,
    replay,
    learn,
    feedback,
    monitor,
    verify,
    tail,
    estimate,
    simulate,
    learners,
    settings_table,
):
    app.add_typer(group.app)
app.add_typer(topics.app, name="topics")
app.add_typer(config.app, name="config")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(kafka.app, name="kafka")
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")
app.add_typer(experiment.app, name="experiment")


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"onebit {stream.__version__}\n")
        raise typer.Exit


@app.callback()
def onebit(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Online multiclass learning from one late bit of feedback: right or wrong."""


USAGE_ERRORS = (
    SettingsError,
    ParameterError,
    DatasetError,
    DelayError,
    DurationError,
    EstimateError,
    ExperimentError,
    JournalError,
    LocalKafkaError,
    ModelError,
    SavedRunsError,
    UpdatesError,
)


POLICY_HINTS = {
    Unsuitable.NO_LABEL: "use --on-expiry drop",
    Unsuitable.NOTHING_ASSUMED: "--late correct needs --on-expiry negative",
    Unsuitable.NOT_RETRACTABLE: "use --late ignore, or late-ucb with --param drift=off",
    Unsuitable.NOT_FROM_LOGS: "use another --learner, or --play match",
    Unsuitable.ONE_RIGHT_CLASS: "use another --learner",
}
"""What to do about a policy that a learner cannot follow."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command (by default the process's own), and turn what it raises into a message and an exit code."""
    try:
        app(arguments, prog_name="onebit")
    except PolicyError as error:
        raise fail(f"{error}; {POLICY_HINTS[error.reason]}", ExitCode.USAGE) from error
    except UnrecoverableError as error:
        raise fail(f"{error}; start anew under another --topic-prefix", ExitCode.USAGE) from error
    except LocalKafkaPortError as error:
        raise fail(f"{error}: --port", ExitCode.USAGE) from error
    except USAGE_ERRORS as error:
        raise fail(str(error), ExitCode.USAGE) from error
    except FencedError as error:
        raise fail(str(error), ExitCode.FENCED) from error
    except BrokerUnavailableError as error:
        raise fail(str(error), ExitCode.UNAVAILABLE) from error
    except AccessError as error:
        raise fail(f"{error}{access_hint(error)}", ExitCode.USAGE) from error
    except BrokerError as error:
        raise fail(str(error), ExitCode.USAGE) from error
    except KeyboardInterrupt:
        raise interrupted() from None
    finally:
        end_log()
