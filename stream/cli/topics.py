"""`onebit topics`: create, describe and delete the topics."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from stream.cli.composition import model_of, topics_of
from stream.cli.connection import command_hint, connect
from stream.cli.console import out, warn
from stream.cli.exits import ExitCode
from stream.cli.flags import with_settings
from stream.cli.setting_values import format_retention
from stream.cli.settings import Panel, Program, Settings
from stream.kafka.port import Broker, TopicSettingsError
from stream.wire import schemas
from stream.wire.topics import TopicDescription, Topics

app = typer.Typer(help="Create, describe and delete the topics.", no_args_is_help=True)


@contextmanager
def _connected(settings: Settings) -> Iterator[tuple[Broker, Topics]]:
    broker = connect(settings)
    try:
        yield broker, topics_of(settings)
    finally:
        broker.close()


@app.command()
@with_settings(Program.CREATE)
def create(settings: Settings) -> None:
    """Create all topics, with the broker's append time and compaction where needed; those that exist are checked.

    With a --retention the learner still recovers, from its snapshots, but `onebit verify` cannot recompute the ledger
    once the first records are deleted. `onebit topics describe` warns when it is too short for a recovery.
    """
    shares_model = model_of(settings, settings.partitions) == "shared"
    with _connected(settings) as (broker, topics):
        try:
            specs = topics.specs(
                settings.partitions, settings.replication, settings.retention_ms, shares_model=shares_model
            )
            broker.create_topics(specs)
        except TopicSettingsError as error:
            hint = _retention_hint(topics, broker.describe_topics(list(topics)), settings.retention_ms)
            raise TopicSettingsError(f"{error}{hint}") from error
    log = f", {topics.updates} with one: the log of the model that they share" if shares_model else ""
    out.print(f"{len(specs)} topics {settings.topic_prefix}* with {settings.partitions} partitions are there{log}")


def _retention_hint(topics: Topics, found: Mapping[str, TopicDescription], asked_ms: int) -> str:
    """With which --retention existing topics would be accepted, if that is what is wrong and there is one."""
    kept_ms = {found[name].retention_ms for name in topics.of_events() if name in found}
    if len(kept_ms) != 1 or kept_ms == {asked_ms}:
        return ""
    (retention_ms,) = kept_ms
    return f"; --retention {format_retention(retention_ms)} accepts theirs"


@app.command()
@with_settings(Program.DESCRIBE)
def describe(
    settings: Settings,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            rich_help_panel=Panel.OUTPUT,
            help="Print one JSON object instead, without asking Kafka: the JSON Schema of the values of each topic.",
        ),
    ] = False,
) -> None:
    """Show the topics as they are; exit code 1 when one is missing.

    A warning says where records are deleted before a recovery is sure not to need them, with these settings.
    """
    if schema:
        by_topic = {getattr(topics_of(settings), name): schemas.schema_of(name) for name in schemas.EVENTS}
        sys.stdout.write(orjson.dumps(by_topic, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    with _connected(settings) as (broker, topics):
        found = broker.describe_topics(topics.all_of(shares_model=True))
    names = topics.all_of(shares_model=topics.updates in found)
    table = Table("topic", "partitions", "time", "cleanup", "retention", "copies", box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_row(*(_row(found[name]) if name in found else (name, "-", "[red]missing[/]", "-", "-", "-")))
    out.print(table)
    for warning in topics.retention_warnings(found, settings.snapshot_interval_ms, settings.window_ms):
        out.print(f"[bold yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    if len(found) < len(names):
        warn(f"topics are missing; create them: {command_hint(settings, 'topics create')}")
        raise typer.Exit(ExitCode.DIFFERS)


def _row(topic: TopicDescription) -> tuple[str, ...]:
    return (
        topic.name,
        str(topic.partitions),
        "LogAppendTime" if topic.append_time else "[red]CreateTime[/]",
        "compact" if topic.compacted else "delete",
        "for ever" if topic.retention_ms < 0 else f"{topic.retention_ms / 3_600_000:,.1f} h",
        str(topic.replication),
    )


@app.command()
@with_settings(Program.CONNECT)
def delete(
    settings: Settings,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete all topics of a prefix, with all that they hold."""
    with _connected(settings) as (broker, topics):
        found = list(broker.describe_topics(topics.all_of(shares_model=True)))
        if not found:
            out.print(f"there is no topic {settings.topic_prefix}*")
            return
        if not yes and not typer.confirm(f"Delete {', '.join(found)} on {settings.bootstrap}?", err=True):
            raise typer.Exit(ExitCode.DIFFERS)
        broker.delete_topics(found)
    out.print(f"deleted: {', '.join(found)}")
