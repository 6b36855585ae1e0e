"""Which settings a pipeline has, read from its topics before any of its tasks is recovered."""

from typing import Any

from stream.journal.format import JournalError, JournalStep
from stream.journal.reading import last_step, settings_entry
from stream.journal.stored_settings import by_name, named
from stream.kafka.port import Broker
from stream.snapshots.model import PARTITION, ModelSnapshot, decode_model, read_model_snapshots
from stream.snapshots.reading import decode_snapshot, read_snapshots
from stream.snapshots.state import Pulse, Snapshot
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


def settings_by_name(snapshot: Snapshot | ModelSnapshot, place: str) -> dict[str, Any]:
    """The settings in a snapshot, by name; an imported model is a task's own unless it is shared.

    Raises:
        JournalError: they cannot be read.
    """
    try:
        return {"model": "own", **named(snapshot.settings)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalError(f"{place} has settings that cannot be read: {error!r}") from error


def settings_in_force(broker: Broker, topics: Topics, partition: int, pulse: Pulse = lambda: None) -> dict[str, Any]:
    """The settings of a task after its last step, by name.

    Of a task that has made no step, those of the model that was imported for it. Nothing where there is nothing, or
    where what would be needed is gone: then recovery says what. The pulse is called while snapshots are read.

    Raises:
        JournalError: journal or snapshots cannot be read.
    """
    journal = TopicPartition(topics.journal, partition)
    last = last_step(broker, journal)
    if last is not None:
        entry = settings_entry(broker, journal, last.settings_from)
        if entry is not None:
            return by_name(entry.settings)
    return _of_snapshots(broker, topics, partition, last, pulse)


def _of_snapshots(
    broker: Broker, topics: Topics, partition: int, last: JournalStep | None, pulse: Pulse
) -> dict[str, Any]:
    """The settings of an imported model; or, where retention has deleted their record, of the newest snapshot."""
    stored = read_snapshots(broker, topics, partition, pulse=pulse)
    generation = stored.imported if last is None else stored.newest
    if generation is None:
        return {}
    snapshot = decode_snapshot(generation, pulse)
    if last is not None and snapshot.position.settings_from != last.settings_from:
        return {}
    return settings_by_name(snapshot, f"{topics.snapshots}/{partition}, generation {generation.number},")


def pipeline_settings(broker: Broker, topics: Topics, partitions: int, pulse: Pulse = lambda: None) -> dict[str, Any]:
    """The settings of the first task that has begun, by name, which a task that has not begun yet takes over.

    Where none has begun, those of the first model that was imported; nothing in a new pipeline. The pulse is called
    while snapshots are read.

    Raises:
        JournalError: journal or snapshots cannot be read.
    """
    for topic in (topics.journal, topics.snapshots):
        ends = broker.ends([TopicPartition(topic, partition) for partition in range(partitions)])
        for tp, end in ends.items():
            if end.high_watermark and (found := settings_in_force(broker, topics, tp.partition, pulse)):
                return found
    imported = read_model_snapshots(broker, topics, pulse).imported
    if imported is None:
        return {}
    place = f"the model imported into {topics.snapshots}/{PARTITION} for all partitions"
    return {**settings_by_name(decode_model(imported), place), "model": "shared"}
