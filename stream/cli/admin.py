"""`onebit topics`, `kafka`, `data`, `learners`: what there is, and making it be there."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from producers.datasets.catalogue import catalogue, load
from stream.brokers import local_kafka
from stream.brokers.port import TopicSettingsError
from stream.cli import options
from stream.cli.console import EXIT_DIFFERS, announce, out
from stream.cli.programs import connect
from stream.cli.settings import FOR_EVER, SettingsError
from stream.durations import format_duration
from stream.learners import registered
from stream.wire.topics import TopicDescription, Topics

topics_app = typer.Typer(help="Create, describe and delete the topics.", no_args_is_help=True)
kafka_app = typer.Typer(
    help="A real single-node Apache Kafka for this user, from Python packages.", no_args_is_help=True
)
data_app = typer.Typer(help="The data sets that can be replayed.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option(help="Its home.", show_default=str(local_kafka.default_home()))]


def _table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


@topics_app.command()
def create(
    partitions: options.Partitions = None,
    replication: Annotated[int | None, typer.Option(show_default="1", help="Copies of every partition.")] = None,
    retention: options.Retention = None,
    bootstrap: options.Bootstrap = None,
    topic_prefix: options.TopicPrefix = None,
    connect_timeout: options.ConnectTimeout = None,
    config: options.Config = None,
) -> None:
    """Create all topics, with the broker's append time and compaction where needed; those that exist are checked.

    With a --retention the learner still recovers, from its snapshots, but `onebit verify` cannot recompute the ledger
    once the first records are deleted. `onebit topics describe` warns when it is too short for a recovery.
    """
    settings = options.settings_from(
        config, partitions=partitions, replication=replication, retention=retention, bootstrap=bootstrap,
        topic_prefix=topic_prefix, connect_timeout=connect_timeout,
    )  # fmt: skip
    broker = connect(settings)
    try:
        names = options.topics_of(settings)
        specs = names.specs(settings.partitions, settings.replication, settings.retention)
        try:
            broker.create_topics(specs)
        except TopicSettingsError as error:
            hint = _retention_hint(names, broker.describe_topics(list(names)), settings.retention)
            raise TopicSettingsError(f"{error}{hint}") from error
        out.print(f"{len(names)} topics {settings.topic_prefix}* with {settings.partitions} partitions are there")
    finally:
        broker.close()


def _retention_hint(names: Topics, found: Mapping[str, TopicDescription], asked_ms: int) -> str:
    """With which --retention existing topics would be accepted, if that is what is wrong and there is one."""
    kept_ms = {found[name].retention_ms for name in names.of_events() if name in found}
    if len(kept_ms) != 1 or kept_ms == {asked_ms}:
        return ""
    (retention_ms,) = kept_ms
    return f"; --retention {FOR_EVER if retention_ms < 0 else format_duration(retention_ms)} accepts theirs"


@topics_app.command()
def describe(
    window: options.Window = None,
    snapshot_interval: options.SnapshotInterval = None,
    bootstrap: options.Bootstrap = None,
    topic_prefix: options.TopicPrefix = None,
    connect_timeout: options.ConnectTimeout = None,
    config: options.Config = None,
) -> None:
    """Show the topics as they are; exit code 1 when one is missing.

    A warning says where records are deleted before a recovery is sure not to need them, with these settings.
    """
    settings = options.settings_from(
        config, window=window, snapshot_interval=snapshot_interval, bootstrap=bootstrap, topic_prefix=topic_prefix,
        connect_timeout=connect_timeout,
    )  # fmt: skip
    broker = connect(settings)
    try:
        names = options.topics_of(settings)
        descriptions = broker.describe_topics(list(names))
        table = Table("topic", "partitions", "time", "cleanup", "retention", "copies", box=None, padding=(0, 2, 0, 0))
        for name in names:
            found = descriptions.get(name)
            if found is None:
                table.add_row(name, "-", "[red]missing[/]", "-", "-", "-")
                continue
            time_of = "LogAppendTime" if found.append_time else "[red]CreateTime[/]"
            retention = "for ever" if found.retention_ms < 0 else f"{found.retention_ms / 3_600_000:,.1f} h"
            cleanup = "compact" if found.compacted else "delete"
            table.add_row(name, str(found.partitions), time_of, cleanup, retention, str(found.replication))
        out.print(table)
        for warning in names.retention_warnings(descriptions, settings.snapshot_interval, settings.window):
            out.print(f"[bold yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
        if len(descriptions) < len(names):
            raise typer.Exit(EXIT_DIFFERS)
    finally:
        broker.close()


@topics_app.command()
def delete(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: options.Bootstrap = None,
    topic_prefix: options.TopicPrefix = None,
    connect_timeout: options.ConnectTimeout = None,
    config: options.Config = None,
) -> None:
    """Delete all topics of a prefix, with all that they hold."""
    settings = options.settings_from(
        config, bootstrap=bootstrap, topic_prefix=topic_prefix, connect_timeout=connect_timeout
    )
    broker = connect(settings)
    try:
        found = list(broker.describe_topics(list(options.topics_of(settings))))
        if not found:
            out.print(f"there is no topic {settings.topic_prefix}*")
            return
        if not yes and not typer.confirm(f"Delete {', '.join(found)} on {settings.bootstrap}?", err=True):
            raise typer.Exit(EXIT_DIFFERS)
        broker.delete_topics(found)
        out.print(f"deleted: {', '.join(found)}")
    finally:
        broker.close()


@kafka_app.command()
def up(
    port: Annotated[int, typer.Option(help="Where clients connect, on the loopback interface.")] = 9092,
    data_dir: DataDir = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep no records when it stops.")] = False,
) -> None:
    """Start the broker, and wait until it answers; one that runs already is left as it is.

    The first time the Java archives are fetched, which takes up to half a minute.
    """
    kafka = local_kafka.start(port, data_dir, ephemeral=ephemeral, progress=announce)
    runs = "runs already" if kafka.already else "runs"
    out.print(f"Kafka {runs} at {kafka.bootstrap}, pid {kafka.pid}, records in {kafka.storage}", soft_wrap=True)


@kafka_app.command()
def status(data_dir: DataDir = None) -> None:
    """Say whether the broker runs; exit code 1 when it does not."""
    kafka = local_kafka.status(data_dir)
    if kafka is None:
        out.print("Kafka does not run; start it: onebit kafka up")
        raise typer.Exit(EXIT_DIFFERS)
    out.print(f"Kafka runs at {kafka.bootstrap}, pid {kafka.pid}, records in {kafka.storage}", soft_wrap=True)


@kafka_app.command()
def logs(
    data_dir: DataDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what comes.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 50,
) -> None:
    """Show the broker's log."""
    path = local_kafka.log_path(data_dir)
    if not path.exists():
        raise SettingsError(f"there is no log at {path}: no broker has run there")
    command = ["tail", "-n", str(lines), *(["-f"] if follow else []), str(path)]
    sys.exit(subprocess.call(command))


@kafka_app.command()
def down(
    data_dir: DataDir = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove all records too.")] = False,
) -> None:
    """Stop the broker. The records stay, unless --purge is given or it was ephemeral."""
    stopped = local_kafka.stop(data_dir, purge=purge, progress=announce)
    out.print("Kafka is stopped" if stopped else "Kafka did not run")


@data_app.command(name="list")
def list_data() -> None:
    """The data sets that have a name; any svmlight file can be replayed too."""
    table = _table("name", "rows", "features", "classes", "what", numbers=("rows", "features", "classes"))
    for entry in catalogue():
        table.add_row(entry.name, f"{entry.rows:,}", f"{entry.n_features:,}", str(entry.n_classes), entry.summary)
    out.print(table)
    for entry in catalogue():
        out.print(f"terms of {entry.name}: {escape(entry.terms)}", soft_wrap=True, highlight=False)
    out.print("also: any svmlight file, .gz too, by its path")


@data_app.command()
def show(
    name_or_file: Annotated[str, typer.Argument(metavar="NAME-OR-FILE")],
    n_features: options.NFeatures = None,
    seed: options.Seed = None,
    json: options.Json = False,
) -> None:
    """Rows, features, classes and terms of one data set, and its first rows."""
    dataset = load(name_or_file, n_features, seed or 0)
    if json:
        fields = {
            "name": dataset.name, "rows": dataset.rows, "features": dataset.n_features, "classes": dataset.n_classes,
            "class_names": dataset.class_names, "terms": dataset.terms,
        }  # fmt: skip
        sys.stdout.write(orjson.dumps(fields).decode() + "\n")
        return
    out.print(f"[bold]{escape(dataset.name)}[/]: {dataset.rows:,} rows, {dataset.n_features:,} features")
    named = ", ".join(f"{label} = {name}" for label, name in enumerate(dataset.class_names))
    out.print(f"{dataset.n_classes} classes: {escape(named)}", soft_wrap=True)
    out.print(f"terms: {escape(dataset.terms)}", soft_wrap=True)
    table = _table("event", "class", "non-zeros", "first entries", numbers=("class", "non-zeros"))
    for row in range(min(5, dataset.rows)):
        x, label = dataset.row(row)
        entries = " ".join(f"{index}:{value:g}" for index, value in zip(x.indices[:6], x.values[:6], strict=True))
        table.add_row(dataset.event_id(row), str(label), str(x.indices.size), entries)
    out.print(table)


def learners(
    n_classes: Annotated[int, typer.Option(help="K, for the costs.")] = 9,
    n_features: Annotated[int, typer.Option(help="d, for the costs.")] = 400,
    nnz: Annotated[int, typer.Option(help="Non-zeros of x, for the costs.")] = 25,
    json: options.Json = False,
) -> None:
    """The learners: parameters with defaults, paper, and cost per event."""
    rows = []
    for name, cls in registered().items():
        defaults = {parameter.name: parameter.default for parameter in cls.parameters}
        cost = cls.cost(n_classes, n_features, nnz, defaults)
        rows.append((name, cls, cost))
    if json:
        fields = [
            {
                "name": name, "summary": cls.summary, "paper": cls.paper, "needs_label": cls.needs_label,
                "randomised_update": cls.randomised_update, "retractable": cls.retractable, "cost": cost._asdict(),
                "parameters": {p.name: {"default": p.default, "accepted": p.accepted()} for p in cls.parameters},
            }
            for name, cls, cost in rows
        ]  # fmt: skip
        sys.stdout.write(orjson.dumps(fields).decode() + "\n")
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for name, cls, cost in rows:
        needs = ["needs the true class with its feedback"] if cls.needs_label else []
        parameters = [f"{p.name}={p.default} [dim]({escape(p.accepted())})[/]" for p in cls.parameters]
        costs = f"[dim]{cost.flops_per_event:,} flops, state {cost.state_bytes / 1e3:,.0f} kB[/]"
        lines = [escape(cls.summary), escape(cls.paper), *needs, *parameters, costs]
        table.add_row(f"[bold]{name}[/]", "\n".join(lines))
    out.print(table, highlight=False)
    out.print(
        f"costs per event (predict and update) for K = {n_classes}, d = {n_features}, {nnz} non-zeros", highlight=False
    )
