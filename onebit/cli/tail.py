"""`onebit tail`: print records from the topics."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import filterfalse, islice
from typing import Annotated

import typer

from onebit.cli.console import examples
from onebit.cli.flags import Json, with_settings
from stream.kafka.port import Broker
from stream.kafka.reading import follow as follow_topics
from stream.kafka.reading import offset_at, read_in_order, read_partition
from stream.parsing import close_matches
from stream.programs.connection import connected
from stream.programs.process import announce
from stream.programs.since import parse_since
from stream.reporting.record_lines import event_id_of, record_json, record_line, short_name
from stream.settings.definitions import Settings, SettingsError
from stream.settings.model import Program
from stream.wire.codec import is_tick
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

LAST = 10

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit tail                          # the last ten records of all event topics",
        "onebit tail --id visit-1             # all records of one event",
        "onebit tail dead-letter --since 5m --follow",
        "onebit tail predictions --since 2026-03-01T12:00 --json",
    )
)
@with_settings(Program.CONNECT)
def tail(
    settings: Settings,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="Topic: contexts, predictions, feedback, examples, dead-letter, journal or snapshots; by default "
            "the first five of these",
        ),
    ] = None,
    event_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Only records for this event, from the start of the topics")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION|TIME", help="Records since this time: 5m (ago), or 2026-03-01T12:00 (UTC)"),
    ] = None,
    last: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of newest records, if neither --id nor --since is given")
    ] = LAST,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new records until Ctrl-C")] = False,
    json: Json = False,
) -> None:
    """Show records, one per line.

    Each line contains the append time, topic/partition@offset, event id and content. Records from all topics are
    ordered by append time. Only committed records are read. --id reads all partitions, because a record may be in the
    wrong partition. Ticks, which are empty feedback records from the learner, are skipped.
    """

    def is_shown(record: Record) -> bool:
        return not is_tick(record) and (event_id is None or event_id_of(record) == event_id)

    with connected(settings) as (broker, topics, partitions):
        tps = _partitions_of(topic, topics, partitions)
        starts = _starts(broker, tps, since, None if event_id is not None else last)
        found: Iterable[Record] = filter(is_shown, _noting(read_in_order(broker, starts), starts))
        if event_id is None and since is None:
            found = deque(found, maxlen=last)
        is_found = False
        for record in found:
            is_found = True
            _show(record, topics, json=json)
        if event_id is not None and not is_found:
            announce(f"no record with the id {event_id!r} in {', '.join(sorted({tp.topic for tp in tps}))}")
        if follow:
            for records in follow_topics(broker, starts):
                for record in filter(is_shown, records):
                    _show(record, topics, json=json)


def _partitions_of(topic: str | None, topics: Topics, partitions: int) -> list[TopicPartition]:
    """Return the partitions to read, in the order of their topics."""
    by_name = {short_name(name, topics): name for name in topics}
    if topic is not None and topic not in by_name and topic not in topics:
        hint = close_matches(topic, by_name) or f"; got {topic!r}"
        raise SettingsError(f"TOPIC: expected one of {', '.join(by_name)}{hint}")
    chosen = topics.of_events() if topic is None else (by_name.get(topic, topic),)
    return [TopicPartition(name, partition) for name in chosen for partition in range(partitions)]


def _starts(
    broker: Broker, tps: list[TopicPartition], since: str | None, last: int | None
) -> dict[TopicPartition, int]:
    """Return each partition's start offset: the offset at time `since`, or one before the newest `last` records."""
    if since is not None:
        since_ms = parse_since(since)
        return {tp: offset_at(broker, tp, since_ms) for tp in tps}
    beginnings = broker.beginnings(tps)
    if last is None:
        return beginnings
    ends = broker.ends(tps)
    return {tp: _start_of_last(broker, tp, beginnings[tp], ends[tp].stable, last) for tp in tps}


def _start_of_last(broker: Broker, tp: TopicPartition, beginning: int, end: int, last: int) -> int:
    """Return an offset that is followed by at least `last` records, or `beginning` if there are fewer records."""
    reach = 2 * last + 2  # a transaction writes at least one record and a marker to a partition
    while (start := end - reach) > beginning:
        is_enough = islice(filterfalse(is_tick, read_partition(broker, tp, start=start)), last - 1, None)
        if last == 0 or next(is_enough, None) is not None:
            return start
        reach *= 4  # too few records, because some offsets belong to ticks or additional markers
    return beginning


def _noting(records: Iterable[Record], starts: dict[TopicPartition, int]) -> Iterator[Record]:
    """Yield the records. Advance `starts` past each record, so that a later call continues there."""
    for record in records:
        starts[TopicPartition(record.topic, record.partition)] = record.offset + 1
        yield record


def _show(record: Record, topics: Topics, *, json: bool) -> None:
    line = record_json(record).decode() if json else record_line(record, topics)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
