"""The commands of `onebit`, their flags and their help."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.markup import escape

from producers.datasets.base import DatasetError
from stream.brokers.local_kafka import LocalKafkaError
from stream.brokers.port import BrokerError, BrokerUnavailableError, FencedError
from stream.cli import admin, model, options, programs
from stream.cli.console import (
    EXIT_DIFFERS,
    EXIT_FENCED,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    StopRequest,
    err,
    examples,
    fail,
    out,
    print_table,
)
from stream.cli.run import run_embedded
from stream.cli.run_kafka import run_on_kafka
from stream.cli.settings import SettingsError, command_line
from stream.cli.simulate import simulate
from stream.durations import DurationError, parse_duration
from stream.joining.task import PolicyError, Unsuitable
from stream.learners import ParameterError
from stream.randomness.delays import DelayError
from stream.recovery.journal import JournalError
from stream.reporting.run_report import RunReport
from stream.reporting.tables import comparison
from stream.verifying.model_files import ModelError

app = typer.Typer(
    help="Online multiclass learning from one late bit of feedback: right or wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(admin.topics_app, name="topics")
app.add_typer(admin.kafka_app, name="kafka")
app.add_typer(admin.data_app, name="data")
app.add_typer(model.model_app, name="model")
app.command(name="learners")(admin.learners)
app.command(name="simulate")(simulate)

DEFAULT_REPORT = Path("reports/run.html")
DEFAULT_BOOTSTRAP = "localhost:9092"


@app.command(
    epilog=examples(
        "onebit run",
        "onebit run --learner perceptron --learner banditron --learner soba-diag --param gamma=0.05",
        "onebit run --data synsep --events 100000 --delay fixed:5s --loss 0.02 --json",
        "onebit run --data my.svm.gz --n-features 5000 --epochs 3 --shuffle --window 30s --on-expiry negative",
        "onebit run --kafka localhost:9092 --delay exponential:200ms --window 5s",
    )
)
def run(
    data: options.Data = None,
    n_features: options.NFeatures = None,
    events: options.Events = None,
    epochs: options.Epochs = None,
    shuffle: options.Shuffle = None,
    rate: options.Rate = None,
    seed: options.Seed = None,
    learner: options.LearnerNames = None,
    param: options.Parameters = None,
    delay: options.Delay = None,
    loss: options.Loss = None,
    duplicates: options.Duplicates = None,
    window: options.Window = None,
    on_expiry: options.OnExpiry = None,
    late: options.Late = None,
    orphan_window: options.OrphanWindow = None,
    retain: options.Retain = None,
    pending_max: options.PendingMax = None,
    orphans_max: options.OrphansMax = None,
    retained_max: options.RetainedMax = None,
    partitions: options.Partitions = None,
    topic_prefix: options.TopicPrefix = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]", rich_help_panel=options.KAFKA_PANEL, show_default="embedded",
            help="Real processes and topics instead of the embedded broker; localhost:9092 when no address is given.",
        ),
    ] = None,
    config: options.Config = None,
    report: Annotated[
        Path | None,
        typer.Option(rich_help_panel=options.OUTPUT_PANEL, show_default=str(DEFAULT_REPORT), help="The page."),
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", rich_help_panel=options.OUTPUT_PANEL, help="Write no page.")
    ] = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Run the whole pipeline to its end: replay, learner, feedback; then a table, and a page with the error curves.

    By default in this one process, over an embedded broker, in virtual time: no service is needed, and the same seed
    gives the same run, bit for bit. Feedback still on its way at the end is waited for, so that nothing is pending.
    """
    settings = options.settings_from(
        config, data=data, n_features=n_features, events=events, epochs=epochs, shuffle=shuffle, rate=rate, seed=seed,
        learner=learner, param=param, delay=delay, loss=loss, duplicates=duplicates, window=window,
        on_expiry=on_expiry, late=late, orphan_window=orphan_window, retain=retain,
        pending_max=pending_max, orphans_max=orphans_max, retained_max=retained_max,
        partitions=partitions, topic_prefix=topic_prefix, bootstrap=kafka,
    )  # fmt: skip
    dataset = options.dataset_of(settings)
    for name in settings.learner:  # all are checked before the first one runs
        options.task_settings(settings, name, dataset.n_classes, dataset.n_features).make_learner()
    command = command_line(sys.argv[1:])
    if kafka is None:
        reports = [run_embedded(settings, name, dataset, command) for name in settings.learner]
    else:
        stop = StopRequest()
        reports = [run_on_kafka(settings, name, dataset, command, stop) for name in settings.learner]
    _publish(reports, None if no_report else report or DEFAULT_REPORT, json=json)
    if not all(result.ledger_ok for result in reports):
        raise typer.Exit(EXIT_DIFFERS)


def _publish(reports: list[RunReport], path: Path | None, *, json: bool) -> None:
    """Write the page, and print the results."""
    if path is not None:
        from stream.reporting.page import write_report

        try:
            written = write_report(path, reports)
        except OSError as error:  # the results are printed all the same
            err.print(f"[bold red]error:[/] --report {escape(str(path))}: {escape(str(error))}", highlight=False)
            _publish(reports, None, json=json)
            raise typer.Exit(EXIT_USAGE) from error
        reports = [replace(report, report=str(written)) for report in reports]
    if json:
        objects = [report.as_json() for report in reports]
        sys.stdout.write(orjson.dumps(objects[0] if len(objects) == 1 else {"runs": objects}).decode() + "\n")
        return
    print_table(comparison(reports))
    for report in reports:
        if not report.ledger_ok:
            out.print(f"[bold red]✗ the ledger of {report.learner} does not add up")
    if path is not None:
        out.print(f"error curves and ledger: {reports[0].report}", highlight=False, soft_wrap=True)


@app.command(epilog=examples("onebit replay --data synsep --events 100000 --rate 500", "onebit replay --resume"))
def replay(
    data: options.Data = None,
    n_features: options.NFeatures = None,
    events: options.Events = None,
    epochs: options.Epochs = None,
    shuffle: options.Shuffle = None,
    rate: options.Rate = None,
    seed: options.Seed = None,
    resume: Annotated[
        bool, typer.Option("--resume", rich_help_panel=options.DATA_PANEL, help="Go on after the last event there.")
    ] = False,
    bootstrap: options.Bootstrap = None,
    topic_prefix: options.TopicPrefix = None,
    connect_timeout: options.ConnectTimeout = None,
    config: options.Config = None,
) -> None:  # fmt: skip
    """Write a data set's rows as contexts, at a pace. Ctrl-C or SIGTERM ends it; --resume goes on from there."""
    settings = options.settings_from(
        config, data=data, n_features=n_features, events=events, epochs=epochs, shuffle=shuffle, rate=rate, seed=seed,
        bootstrap=bootstrap, topic_prefix=topic_prefix, connect_timeout=connect_timeout,
    )  # fmt: skip
    programs.replay(settings, resume=resume)


@app.command(
    epilog=examples(
        "onebit learn --learner soba-diag --param gamma=0.05",
        "onebit learn --data synsep --instance a   # and --instance b in another terminal, with 2 partitions",
        "onebit learn --n-classes 12 --n-features 4096   # for contexts of your own",
    )
)
def learn(
    learner: options.LearnerName = None,
    param: options.Parameters = None,
    data: options.Data = None,
    n_classes: Annotated[
        int | None,
        typer.Option(rich_help_panel=options.LEARNER_PANEL, help="With --n-features: for contexts of no data set."),
    ] = None,
    n_features: options.NFeatures = None,
    seed: options.Seed = None,
    window: options.Window = None,
    on_expiry: options.OnExpiry = None,
    late: options.Late = None,
    orphan_window: options.OrphanWindow = None,
    retain: options.Retain = None,
    pending_max: options.PendingMax = None,
    orphans_max: options.OrphansMax = None,
    retained_max: options.RetainedMax = None,
    instance: options.Instance = None,
    snapshot_interval: options.SnapshotInterval = None,
    bootstrap: options.Bootstrap = None,
    topic_prefix: options.TopicPrefix = None,
    connect_timeout: options.ConnectTimeout = None,
    config: options.Config = None,
) -> None:
    """Answer contexts with predictions, and learn from their feedback.

    Ctrl-C or SIGTERM finishes the open transaction and exits 0. A learner that was killed goes on where it stood when
    it is started again with the same settings.
    """
    settings = options.settings_from(
        config, learner=learner, param=param, data=data, n_classes=n_classes, n_features=n_features, seed=seed,
        window=window, on_expiry=on_expiry, late=late, orphan_window=orphan_window, retain=retain,
        pending_max=pending_max, orphans_max=orphans_max, retained_max=retained_max,
        instance=instance, snapshot_interval=snapshot_interval,
        bootstrap=bootstrap, topic_prefix=topic_prefix, connect_timeout=connect_timeout,
    )  # fmt: skip
    programs.learn(settings)


@app.command(epilog=examples("onebit feedback --delay lognormal:10s,1.0 --loss 0.02 --duplicates 0.01"))
def feedback(
    data: options.Data = None,
    n_features: options.NFeatures = None,
    seed: options.Seed = None,
    delay: options.Delay = None,
    loss: options.Loss = None,
    duplicates: options.Duplicates = None,
    with_label: Annotated[
        bool | None,
        typer.Option("--with-label", rich_help_panel=options.FEEDBACK_PANEL, help="Tell the true class too."),
    ] = None,
    instance: options.Instance = None,
    bootstrap: options.Bootstrap = None,
    topic_prefix: options.TopicPrefix = None,
    connect_timeout: options.ConnectTimeout = None,
    config: options.Config = None,
) -> None:
    """Answer predictions with right or wrong, late. It knows the labels of the data set by event id.

    Ctrl-C or SIGTERM ends it; feedback that is still due is sent when it is started again.
    """
    settings = options.settings_from(
        config, data=data, n_features=n_features, seed=seed, delay=delay, loss=loss, duplicates=duplicates,
        with_label=with_label, instance=instance, bootstrap=bootstrap, topic_prefix=topic_prefix,
        connect_timeout=connect_timeout,
    )  # fmt: skip
    programs.feedback(settings)


@app.command(
    epilog=examples("onebit verify", "onebit verify --wait-events 5620 --timeout 10m --json", "onebit verify --replay")
)
def verify(
    wait_events: Annotated[
        int | None, typer.Option(help="First wait until so many events are decided and none is pending.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for that.")] = "10m",
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Apply the whole journal again too, and compare the state with a recovery's."),
    ] = False,
    bootstrap: options.Bootstrap = None,
    topic_prefix: options.TopicPrefix = None,
    connect_timeout: options.ConnectTimeout = None,
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Recompute the ledger from the topics alone, and compare it with what the learner counted.

    With --replay the learner's whole state as well: from the first step on, without any snapshot, it must come out to
    the bit as a recovery from the newest snapshot gives it. Exit code 1 and the differences when they do not agree; 2
    when records that the ledger is counted from have been deleted, by retention or otherwise.
    """
    settings = options.settings_from(
        config, bootstrap=bootstrap, topic_prefix=topic_prefix, connect_timeout=connect_timeout
    )
    findings = programs.verify(settings, wait_events=wait_events, timeout_ms=parse_duration(timeout))
    replays = model.replay(settings) if replay else []
    ok = all(finding.ok for finding in findings) and all(found.ok for found in replays)
    if json:
        result = {"ok": ok, "partitions": [finding.as_json() for finding in findings]}
        if replay:
            result["replay"] = [found._asdict() | {"ok": found.ok} for found in replays]
        sys.stdout.write(orjson.dumps(result).decode() + "\n")
    else:
        programs.print_findings(findings)
        model.print_replays(replays)
    if not ok:
        gone = {finding.partition for finding in findings if finding.gone}
        wrong = [one.partition for one in findings if not one.ok] + [one.partition for one in replays if not one.ok]
        differs = set(wrong) - gone
        raise typer.Exit(EXIT_DIFFERS if differs else EXIT_USAGE)


USAGE_ERRORS = (
    SettingsError,
    ParameterError,
    DatasetError,
    DelayError,
    DurationError,
    JournalError,
    LocalKafkaError,
    ModelError,
)


POLICY_HINTS = {
    Unsuitable.NO_LABEL: "use --on-expiry drop",
    Unsuitable.NOTHING_ASSUMED: "--late correct needs --on-expiry negative",
    Unsuitable.NOT_RETRACTABLE: "use --late ignore",
}
"""What to do about a policy that a learner cannot follow."""


def main() -> None:
    """Run a command, and turn what it raises into a message and an exit code."""
    try:
        app(args=_with_default_address(sys.argv[1:]))
    except PolicyError as error:
        raise fail(f"{error}; {POLICY_HINTS[error.reason]}", EXIT_USAGE) from error
    except USAGE_ERRORS as error:
        raise fail(str(error), EXIT_USAGE) from error
    except FencedError as error:
        raise fail(str(error), EXIT_FENCED) from error
    except BrokerUnavailableError as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    except BrokerError as error:
        raise fail(str(error), EXIT_USAGE) from error
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(EXIT_INTERRUPTED)


def _with_default_address(arguments: list[str]) -> list[str]:
    """`--kafka` may stand without an address, which the option parser does not offer."""
    completed: list[str] = []
    for index, argument in enumerate(arguments):
        following = arguments[index + 1] if index + 1 < len(arguments) else "-"
        bare = argument == "--kafka" and following.startswith("-")
        completed.append(f"--kafka={DEFAULT_BOOTSTRAP}" if bare else argument)
    return completed
