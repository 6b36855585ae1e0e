"""What the snapshots topic of a task holds."""

from stream.brokers.port import Broker
from stream.brokers.reading import read_partition
from stream.recovery.journal import JournalError
from stream.recovery.snapshot_chunks import Generation, Stored, decode
from stream.recovery.snapshot_format import Pulse, Snapshot, SnapshotError
from stream.wire.records import TopicPartition, place_of
from stream.wire.topics import Topics


def read_snapshots(
    broker: Broker, topics: Topics, partition: int, number_max: int | None = None, pulse: Pulse = lambda: None
) -> Stored:
    """Find the newest whole snapshot of a task, or the newest that was taken up to a step; and an imported model.

    The pulse is called after each record.

    Raises:
        JournalError: one was written by a later version.
    """
    stored = Stored(number_max)
    for record in read_partition(broker, TopicPartition(topics.snapshots, partition)):
        try:
            stored.add(record.key, record.value)
        except SnapshotError as error:
            raise JournalError(f"{place_of(record)}: {error}") from error
        pulse()
    return stored


def decode_snapshot(topics: Topics, partition: int, generation: Generation, pulse: Pulse = lambda: None) -> Snapshot:
    """The snapshot in a generation, whose payloads are let go as they are read, with a pulse in between.

    Raises:
        JournalError: it cannot be read.
    """
    try:
        return decode(generation, pulse)
    except SnapshotError as error:
        raise JournalError(f"{topics.snapshots}/{partition}: {error}") from error
