"""What the snapshots topic holds."""

from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.snapshots.chunks import Generation, Stored
from stream.snapshots.state import Pulse, Snapshot, SnapshotError, decode_state
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


def read_snapshots(
    broker: Broker,
    topics: Topics,
    partition: int,
    number_max: int | None = None,
    pulse: Pulse = lambda: None,
    *,
    keys: str | None = None,
) -> Stored:
    """Find the newest whole snapshot, or the newest that was taken up to a step; and an imported model.

    Args:
        broker: where the topics are.
        topics: the topics.
        partition: of the snapshots topic.
        number_max: the step; None: the newest one is looked for.
        pulse: is called after each record.
        keys: what keys begin with; None: those of the partition's task.

    Raises:
        SnapshotError: one is of another format.
    """
    stored = Stored(str(partition) if keys is None else keys, number_max)
    for record in read_partition(broker, TopicPartition(topics.snapshots, partition)):
        stored.add(record)
        pulse()
    return stored


def decode_snapshot(generation: Generation, pulse: Pulse = lambda: None) -> Snapshot:
    """The snapshot in a generation, whose payloads are let go as they are read, with a pulse in between.

    Raises:
        SnapshotError: it cannot be read.
    """
    try:
        return decode_state(generation.payloads, pulse)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SnapshotError(f"{generation.place}: generation {generation.number} cannot be read: {error!r}") from error
