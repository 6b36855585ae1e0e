"""`onebit topics`: create, alter, describe and delete the topics."""

import sys
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from onebit.cli.console import examples, out, print_json, print_line
from onebit.cli.flags import Json, with_settings
from onebit.topics import Described, alter_topics, create_topics, deletable_topics, describe_topics
from stream import __version__
from stream.errors import ExitCode
from stream.programs.connection import command_hint
from stream.programs.process import quantity, warn
from stream.settings.definitions import Settings, SettingsError
from stream.settings.model import Panel, Program
from stream.settings.values import format_retention
from stream.wire import schemas
from stream.wire.asyncapi import document
from stream.wire.topics import TopicDescription

app = typer.Typer(help="Create, alter, describe and delete the topics.", no_args_is_help=True)


@app.command(epilog=examples("onebit topics create --partitions 4", "onebit topics create --replication 3 --keep 7d"))
@with_settings(Program.CREATE)
def create(settings: Settings, json: Json = False) -> None:
    """Create all topics with the required configuration and check existing topics.

    All topics keep their records for the time set by --keep. `onebit verify`, `onebit model export` and a recovery can
    use only these records. A learner renews its snapshots in time, so that the retention does not end an idle pipeline.
    """
    created = create_topics(settings)
    if json:
        print_json(created._asdict())
        return
    log = f", and {created.updates} with one (log of the shared model)" if created.updates else ""
    out.print(f"{created.topics} topics {settings.topic_prefix}* with {quantity(created.partitions, 'partition')}{log}")


@app.command(epilog=examples("onebit topics alter --keep 7d", "onebit topics alter --keep unlimited"))
@with_settings(Program.ALTER)
def alter(settings: Settings, json: Json = False) -> None:
    """Change the retention of all topics.

    Running learners read the new value within 30 seconds. Kafka deletes records that are older within minutes.
    """
    altered = alter_topics(settings)
    if json:
        print_json({"altered": altered, "keep_ms": settings.keep_ms})
    else:
        out.print(f"{', '.join(altered)}: retention {format_retention(settings.keep_ms)}")


@app.command(
    epilog=examples("onebit topics describe", "onebit topics describe --schema", "onebit topics describe --asyncapi")
)
@with_settings(Program.DESCRIBE)
def describe(
    settings: Settings,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            rich_help_panel=Panel.OUTPUT,
            help="Print the JSON Schema for each topic's values, without connecting to Kafka",
        ),
    ] = False,
    asyncapi: Annotated[
        bool,
        typer.Option(
            "--asyncapi",
            rich_help_panel=Panel.OUTPUT,
            help="Print the AsyncAPI 3 document of the event topics, without connecting to Kafka",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show the topics. Exit with 1 if a topic is missing.

    Warns if the retention is too short for these settings, or differs between topics.
    """
    if schema or asyncapi:
        by_topic = {getattr(settings.topics, name): schemas.schema_of(name) for name in schemas.EVENTS}
        printed = document(settings.topics, __version__) if asyncapi else by_topic
        sys.stdout.write(orjson.dumps(printed, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    found = describe_topics(settings)
    if json:
        topics = {name: None if topic is None else topic._asdict() for name, topic in found.topics.items()}
        print_json({"ok": found.ok, "topics": topics, "warnings": found.warnings})
    else:
        _print(found)
    if not found.ok:
        warn(f"topics are missing. Run: {command_hint(settings, 'topics create')}")
        raise typer.Exit(ExitCode.DIFFERS)


def _print(found: Described) -> None:
    table = Table("topic", "partitions", "time", "cleanup", "retention", "copies", box=None, padding=(0, 2, 0, 0))
    for name, topic in found.topics.items():
        table.add_row(*((name, "-", "[red]missing[/]", "-", "-", "-") if topic is None else _row(topic)))
    out.print(table)
    for warning in found.warnings:
        print_line(f"[bold yellow]warning:[/] {escape(warning)}")


def _row(topic: TopicDescription) -> tuple[str, ...]:
    return (
        topic.name,
        str(topic.partitions),
        "LogAppendTime" if topic.append_time else "[red]CreateTime[/]",
        "compact" if topic.compacted else "delete",
        format_retention(topic.retention_ms),
        str(topic.replication),
    )


@app.command(epilog=examples("onebit topics delete --topic-prefix trial.", "onebit topics delete --yes --json"))
@with_settings(Program.CONNECT)
def delete(
    settings: Settings,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    json: Json = False,
) -> None:
    """Delete the topics of the pipeline with this prefix, and their records."""
    with deletable_topics(settings) as (found, broker):
        if not found and not json:
            out.print(f"no topics {settings.topic_prefix}*")
            return
        if found and not yes:
            if not sys.stdin.isatty():
                raise SettingsError(f"to delete {', '.join(found)} without a terminal, add --yes")
            if not typer.confirm(f"Delete {', '.join(found)} on {settings.bootstrap}?", err=True):
                raise typer.Exit(ExitCode.DIFFERS)
        broker.delete_topics(found)
    if json:
        print_json({"deleted": found})
    else:
        out.print(f"deleted: {', '.join(found)}")
