"""Rebuilds a shared model at a position of its log, from the newest earlier snapshot and the log."""

from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.shared.replica import Replica
from stream.snapshots.chunks import Generation, read_model_snapshots
from stream.snapshots.state import decode_model, restore_model
from stream.task.settings import TaskSettings
from stream.verifying.model_files import ModelError
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

BATCH_RECORDS = 1_000


def fresh_replica(settings: TaskSettings, imported: Generation | None = None) -> Replica:
    """A replica before the first entry of the log, with the imported model if there is one.

    Raises:
        JournalError: the imported model cannot be read, or belongs to another learner.
    """
    replica = Replica(settings.make_shareable_learner())
    if imported is not None:
        restore_model(decode_model(imported), replica, settings)
    return replica


def replica_at(
    broker: Broker, topics: Topics, settings: TaskSettings, *, offset: int | None = None, version: int | None = None
) -> Replica:
    """The shared model of a pipeline at the current end of its log, or at an earlier position.

    Args:
        broker: the broker.
        topics: the pipeline's topics.
        settings: settings of the tasks.
        offset: offset of the first record of the log that is not applied.
        version: number of entries to apply; only whole records are applied.

    Raises:
        ModelError: no record of the log ends at this version.
        UpdatesError: the log cannot be read further.
        JournalError: the newest snapshot cannot be read, or belongs to another model.
    """
    stored = read_model_snapshots(broker, topics)
    replica, newest = fresh_replica(settings, stored.imported), stored.newest
    if newest is not None and (version is None or newest.number <= version):
        found = decode_model(newest)
        if offset is None or found.offset <= offset:
            restore_model(found, replica, settings)
    tp, before = TopicPartition(topics.updates, 0), replica.version
    batch: list[Record] = []
    batch_records = BATCH_RECORDS if version is None else 1
    for record in read_partition(broker, tp, start=replica.offset):
        if (offset is not None and record.offset >= offset) or (version is not None and replica.version >= version):
            break
        batch.append(record)
        if len(batch) == batch_records:
            before = replica.version
            replica.read(batch)
            batch.clear()
    replica.read(batch)
    if version is not None and replica.version != version:
        last = replica.version if replica.version < version else before
        more = f", the next at {replica.version}" if replica.version > version else ", and it is the last"
        raise ModelError(
            f"{topics.updates}: expected a version at which one of its records ends; got {version}: one ends at "
            f"{last}{more}"
        )
    return replica
