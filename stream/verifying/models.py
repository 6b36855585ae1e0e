"""Exports the model as of any past step, rebuilds a shared model, and imports a model into a new pipeline."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

from stream.kafka.port import Broker
from stream.kafka.reading import offset_at, read_partition
from stream.learners import Learner, ParameterError
from stream.recovery.chunks import (
    IMPORT_SLOT,
    MODEL_KEYS,
    MODEL_PARTITION,
    ChunkWriter,
    read_snapshots,
)
from stream.recovery.control import read_requests
from stream.recovery.model_files import Model, ModelError, identity, model_of
from stream.recovery.recover import Callbacks, Report, log_settings, pipeline_settings, rebuild, settings_in_force
from stream.recovery.state import (
    ModelSnapshot,
    Snapshot,
    decode,
    decode_model,
    encode,
    is_of_log,
    restored_replica,
)
from stream.recovery.steps import (
    JournalError,
    JournalStep,
    MissingRecordsError,
    last_step,
    read_from_step,
    read_journal,
)
from stream.shared.replica import Replica
from stream.task.settings import TaskSettings, learner_of
from stream.task.stored_settings import PARAMETER, check_settings, restored_settings
from stream.verifying.starts import first_model, starts_of
from stream.wire import codec
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


class TooEarlyError(ModelError):
    """Raised when no model can be exported as of the given time, because the records that it needs are later."""

    def __init__(self, place: str, at_ms: int, first_ms: int) -> None:
        """Create an error message from the partition's name, the given time and the earliest possible time."""
        super().__init__(
            f"{place}: expected a time from {first_ms} ms on, because earlier records do not exist or were "
            f"deleted; got {at_ms} ms"
        )
        self.place = place
        self.first_ms = first_ms


IMPORT_BYTES_MAX = 4_000_000  # limit on the bytes that are queued before a flush


def export_model(
    broker: Broker,
    topics: Topics,
    partition: int,
    *,
    number: int | None = None,
    at_ms: int | None = None,
    version: int | None = None,
    progress: Report = lambda progress: None,
) -> Model:
    """Export a task's current model, or its model as of a given step or broker time.

    A shared model is exported at its newest version, at the version with which a step made its decisions, or at the
    version that the log had at a given time.

    Raises:
        ModelError: there is no model, or no model of this step or version.
        TooEarlyError: the task had completed no step by the given time, or the records that the model needs were
            deleted.
        JournalError: required records have been deleted.
    """
    journal = TopicPartition(topics.journal, partition)
    last = last_step(broker, journal)
    if last is None:
        last = _last_snapshot(broker, topics, partition)
    if last is None:
        raise ModelError(f"{journal} is empty: the task has not started, so there is no model yet")
    if last.log is not None:
        return _shared_model(broker, topics, partition, last, number, at_ms, version)
    if version is not None:
        raise ModelError(f"{journal}: the task has its own model, which has no log versions; use a step or a time")
    if at_ms is not None:
        offset = _offset_after(broker, journal, at_ms, first_ms=lambda: _first_ms(broker, topics, partition))
        _, later = next(read_journal(broker, journal, offset), (None, None))
        number = last.number if later is None else later.number - 1
    if number is not None and not 1 <= number <= last.number:
        raise ModelError(f"{journal}: expected a step from 1 to {last.number}; got {number}")
    try:
        recovered = rebuild(broker, topics, partition, until=number, callbacks=Callbacks(progress))
    except MissingRecordsError as error:
        starts = starts_of(broker, topics, partition)
        if number is None or not error.is_deleted or not starts:
            raise
        if at_ms is not None:
            raise TooEarlyError(str(journal), at_ms, starts[0].append_ms) from error
        first = starts[0].step.number
        raise ModelError(f"{journal}: expected a step from {first} on; got {number}: {error}") from error
    task, step = recovered.task, recovered.step
    position = {
        "partition": partition,
        "journal": step.number,
        "contexts": step.contexts[1],
        "feedback": step.feedback[1],
        "watermark_ms": task.join.stream_ms,
    }
    counts = {"updates": task.version, "ledger": task.join.ledger()._asdict()}
    return _model_of(topics, task.settings, position, counts, task.learner, task.classes.names)


def _last_snapshot(broker: Broker, topics: Topics, partition: int) -> JournalStep | None:
    """Return the step of a task's newest snapshot, for a task whose journal was deleted by retention."""
    newest = read_snapshots(broker, topics, partition).newest
    return None if newest is None else decode(newest).step


def _model_of(
    topics: Topics,
    settings: TaskSettings,
    position: dict[str, Any],
    counts: dict[str, Any],
    learner: Learner,
    classes: list[str] | None,
) -> Model:
    """Return a learner's model. If there are challengers, return only the current champion's model."""
    if settings.challengers:
        name = settings.members[learner.decides]
        parameters = settings.challengers.get(name, settings.parameters)
        settings = replace(
            settings,
            learner=learner_of(name),
            parameters=dict(parameters),
            challengers={},
            champion=None,
            started_from={},
        )
        learner = learner.deciding
    of_topics = {"topics": topics.contexts.removesuffix("contexts"), **position}
    return model_of(settings, learner, classes, of_topics, counts)


def _shared_model(
    broker: Broker,
    topics: Topics,
    partition: int,
    last: JournalStep,
    number: int | None,
    at_ms: int | None,
    version: int | None,
) -> Model:
    """Return the shared model at its newest version, or as of a given step, time or version.

    `last` is the last step in the partition's journal.
    """
    tp = TopicPartition(topics.updates, 0)
    first_ms = partial(_first_model_ms, broker, topics)
    offset = None if at_ms is None else _offset_after(broker, tp, at_ms, first_ms)
    if number is not None:
        journal = TopicPartition(topics.journal, partition)
        _, step = next(read_from_step(broker, journal, number, last), (None, last))  # `last` if no step is found
        if step.number != number:
            raise ModelError(f"{journal} has no step {number}")
        version = step.updates
    settings = restored_settings(settings_in_force(broker, topics, partition).settings)
    try:
        replica = replica_at(broker, topics, settings, offset=offset, version=version)
    except MissingRecordsError as error:
        if at_ms is None or (earliest_ms := first_ms()) is None:
            raise
        raise TooEarlyError(str(tp), at_ms, earliest_ms) from error
    position = {"version": replica.version, "offset": replica.offset}
    counts = {"updates": replica.updates}
    classes = replica.names if settings.open_classes else replica.settings.make_classes().names
    return _model_of(topics, replica.settings, position, counts, replica.learner, classes)


def _offset_after(broker: Broker, tp: TopicPartition, at_ms: int, first_ms: Callable[[], int | None]) -> int:
    """Return the offset after the last record at or before a given broker time.

    Args:
        broker: the broker.
        tp: the partition.
        at_ms: the time.
        first_ms: returns the earliest possible time if the partition's first records were deleted.

    Raises:
        TooEarlyError: the first record was written later.
        BrokerUnavailableError: the broker did not respond.
    """
    offset = offset_at(broker, tp, at_ms + 1)
    if offset == broker.beginnings([tp])[tp] and (first := next(read_partition(broker, tp), None)) is not None:
        deleted_ms = first_ms() if offset > 0 else None
        raise TooEarlyError(str(tp), at_ms, first.append_ms if deleted_ms is None else deleted_ms)
    return offset


def import_model(broker: Broker, topics: Topics, partition: int, model: Model, transactional_id: str) -> None:
    """Write a model as the snapshot that precedes the first step of a partition's task.

    The task's journal then contains the model's digest. Recovery and `onebit verify --replay` start from the model.

    Raises:
        ModelError: the task has started, another model was imported, the state does not fit its learner, or the tasks
            share a model.
    """
    settings = _model_settings(model)
    partitions = broker.describe_topics([topics.contexts])[topics.contexts].partitions
    if pipeline_settings(broker, topics, partitions).settings.get("model") == "shared":
        raise ModelError(
            f"the tasks of {topics.contexts} share a model, so no task can have its own model; "
            "use a different topic prefix"
        )
    step = JournalStep(0, (0, 0), (0, 0), model.meta["updates"], Ledger())
    snapshot = Snapshot(settings, step, 0, {}, 0, model.meta["classes"] or [], model.state)
    writer = ChunkWriter(0, encode(snapshot), str(partition), IMPORT_SLOT)
    _import(broker, topics, [partition], writer, transactional_id)


def import_shared_model(broker: Broker, topics: Topics, partitions: int, model: Model, transactional_id: str) -> None:
    """Write a model as version 0 of the shared model. The tasks' journals then contain the model's digest.

    Raises:
        ModelError: a task has started, another model was imported, or the state does not fit its learner.
    """
    classes = model.meta["classes"] or []
    snapshot = ModelSnapshot(_model_settings(model), 0, model.meta["updates"], 0, 0, {}, classes, model.state)
    writer = ChunkWriter(0, encode(snapshot), MODEL_KEYS, IMPORT_SLOT)
    _import(broker, topics, range(partitions), writer, transactional_id)


def _model_settings(model: Model) -> dict[str, Any]:
    """Check that a model's state fits its settings. Return the settings and the model's names in their stored form."""
    of_model = identity(model.meta)
    given = of_model.pop("parameters")
    try:
        model.learner()
        return check_settings({**of_model, **{PARAMETER + name: value for name, value in given.items()}, **model.names})
    except (ParameterError, ValueError, TypeError) as error:
        raise ModelError(f"the model does not fit its learner: {error}") from error


def _import(
    broker: Broker, topics: Topics, partitions: Sequence[int], writer: ChunkWriter, transactional_id: str
) -> None:
    """Write a model for these partitions. The first partition stores the snapshot."""
    _check_empty(broker, topics, partitions)
    producer = broker.transactional_producer(transactional_id)
    try:
        producer.begin()
        while not writer.done:
            for key, value in writer.portion(IMPORT_BYTES_MAX):
                producer.send(topics.snapshots, partitions[0], key, value, codec.HEADERS)
            producer.flush()
        _check_empty(broker, topics, partitions)
        producer.commit()
    finally:
        producer.close()


def _check_empty(broker: Broker, topics: Topics, partitions: Sequence[int]) -> None:
    """Check that no task has started, and that no other model was imported."""
    journals = [TopicPartition(topics.journal, partition) for partition in partitions]
    for journal, ends in broker.ends(journals).items():
        if ends.high_watermark > 0:
            raise ModelError(
                f"{journal}: expected an empty journal; a learner has already started. "
                "Use a different topic prefix, or delete and recreate these topics"
            )
    try:
        for partition in (*partitions, None):  # None for a shared model
            stored = read_snapshots(broker, topics, partition)
            if stored.imported is not None or stored.newest is not None:
                place = f"{topics.snapshots}/{MODEL_PARTITION if partition is None else partition}"
                raise ModelError(
                    f"{place} already contains a model: use a different topic prefix, or delete and recreate these "
                    "topics"
                )
    except JournalError as error:
        raise ModelError(str(error)) from error


def _first_ms(broker: Broker, topics: Topics, partition: int) -> int | None:
    """Return the earliest time as of which a task's model can be exported, after records were deleted."""
    starts = starts_of(broker, topics, partition)
    return starts[0].append_ms if starts else None


def _first_model_ms(broker: Broker, topics: Topics) -> int | None:
    """Return the earliest time as of which a shared model can be exported, after records were deleted."""
    start = first_model(broker, topics)
    if start is None:
        return None
    complete = read_snapshots(broker, topics, None).complete.values()
    return min(each.append_ms for each in complete if each.number == start.version)


BATCH_RECORDS = 1_000


def replica_at(
    broker: Broker, topics: Topics, settings: TaskSettings, *, offset: int | None = None, version: int | None = None
) -> Replica:
    """Return a pipeline's shared model at the current end of its log, or at an earlier position.

    Args:
        broker: the broker.
        topics: the pipeline's topics.
        settings: the settings of one of the tasks.
        offset: only log records before this offset are applied; None means the current end.
        version: number of entries to apply; None means all. The last entry must be at the end of a record.

    Raises:
        ModelError: no log record ends at this version.
        MissingRecordsError: the log after the newest snapshot for this version was deleted.
        UpdatesError: the log cannot be read further.
        JournalError: the newest snapshot cannot be read, or belongs to a different model.
    """
    stored = read_snapshots(broker, topics, None, version)
    snapshot, newest = None if stored.imported is None else decode_model(stored.imported), stored.newest
    while newest is not None:
        taken = decode_model(newest)
        if offset is None or taken.offset <= offset:
            snapshot = taken
            break
        newest = read_snapshots(broker, topics, None, newest.number - 1).newest
    if snapshot is None or not is_of_log(snapshot):
        settings = log_settings(broker, topics, settings)
    requests = read_requests(broker, topics)
    replica = restored_replica(settings, snapshot, requests.settings_after, requests.model)
    tp = TopicPartition(topics.updates, 0)
    if (beginning := broker.beginnings([tp])[tp]) > replica.offset:
        raise MissingRecordsError(
            f"expected the log from offset {replica.offset} on, where the newest snapshot for this version ends; "
            f"it begins at offset {beginning}. Earlier records were deleted; export a later model",
            tp, beginning, is_deleted=True,
        )  # fmt: skip
    records: Iterator[Record] = read_partition(broker, tp, start=replica.offset)
    if offset is not None:
        records = takewhile(lambda record: record.offset < offset, records)
    before, batch_records = replica.version, BATCH_RECORDS if version is None else 1
    while (version is None or replica.version < version) and (batch := list(islice(records, batch_records))):
        before = replica.version
        replica.read(batch)
    if version is not None and replica.version != version:
        last = replica.version if replica.version < version else before
        more = f", the next at {replica.version}" if replica.version > version else ", which is the last one"
        raise ModelError(
            f"{topics.updates}: expected a version at the end of a record; got {version}: "
            f"a record ends at version {last}{more}"
        )
    return replica
