"""Models of any moment: out of the topics into a file, side by side, and into a new pipeline.

A file is a numpy archive without pickles: the arrays of the learner's state as `state.NAME`, and `meta`, a JSON text
that says which learner with which parameters it is, where in its topics it stood, and the state's digest.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import orjson
from numpy.typing import NDArray

from stream import codec
from stream.broker import Broker
from stream.checkpoint import (
    OPEN_MS,
    JournalError,
    JournalStep,
    Progress,
    Recovered,
    decode_step,
    last_step,
    read_partition,
    rebuild,
    state_digest,
)
from stream.engine import Effects
from stream.join import Overflows
from stream.learners import ParameterError, State, create
from stream.ledger import Ledger
from stream.records import Record, TopicPartition
from stream.snapshot import IMPORT_SLOT, Position, Snapshot, SnapshotError, Stored, Writer, task_digest
from stream.topics import Topics

FILE_FORMAT = 1
STATE_PREFIX = "state."
IMPORT_BYTES_MAX = 4_000_000  # queued at once

Report = Callable[[Progress], None]


class ModelError(ValueError):
    """A model that cannot be exported, read or imported; the message says why."""


class Model(NamedTuple):
    """A learner's state, and what it is."""

    meta: dict[str, Any]
    state: State


def export_model(
    broker: Broker,
    topics: Topics,
    partition: int,
    *,
    number: int | None = None,
    at_ms: int | None = None,
    progress: Report = lambda progress: None,
) -> Model:
    """The model of a task as it is, as it was after a step of its journal, or as it was at a time of the broker.

    Raises:
        ModelError: there was no model then.
        JournalError: records that are needed are gone.
    """
    journal = TopicPartition(topics.journal, partition)
    if at_ms is not None:
        number = _step_at(broker, journal, at_ms)
    last = last_step(broker, journal)
    place = f"{journal.topic}/{journal.partition}"
    if last is None:
        raise ModelError(f"{place} is empty: no step has been made, and so there is no model yet")
    if number is not None and not 1 <= number <= last.number:
        raise ModelError(f"{place} has steps 1 to {last.number}; got {number}")
    return _model_of(topics, partition, rebuild(broker, topics, partition, None, progress, until=number))


def _model_of(topics: Topics, partition: int, recovered: Recovered) -> Model:
    task = recovered.task
    state = task.learner.state()
    meta = {
        "format": FILE_FORMAT,
        **_identity(asdict(task.settings)),
        "settings": asdict(task.settings),
        "position": {
            "topics": topics.contexts.removesuffix("contexts"),
            "partition": partition,
            "journal": recovered.number,
            "contexts": recovered.contexts_offset,
            "feedback": recovered.feedback_offset,
            "watermark_ms": task.join.watermark_ms,
        },
        "updates": task.updates,
        "ledger": task.join.ledger()._asdict(),
        "digest": state_digest([state]),
    }
    return Model(meta, state)


def _identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a task's settings, those that its learner's state depends on."""
    return {name: settings[name] for name in ("learner", "n_classes", "n_features", "parameters")}


def _step_at(broker: Broker, journal: TopicPartition, at_ms: int) -> int:
    """The last step that was in the journal at a time of the broker, by bisection.

    Raises:
        ModelError: there was none.
    """
    low, high = broker.beginnings([journal])[journal], broker.ends([journal])[journal].stable
    found = None
    consumer = broker.reader([journal])
    try:
        while low < high:
            middle = (low + high) // 2
            consumer.seek(journal, middle)
            record = None
            while record is None and consumer.position(journal) < high:
                record = next(iter(consumer.poll(100, 1)), None)
            if record is None or record.append_ms > at_ms:
                high = middle
                continue
            low = record.offset + 1
            entry = decode_step(record)
            if isinstance(entry, JournalStep):
                found = entry.number
    finally:
        consumer.close()
    if found is None:
        raise ModelError(f"{journal.topic}/{journal.partition}: no step had been made at {at_ms} ms; give a later time")
    return found


def write_model(path: Path, model: Model) -> None:
    """Write a model's file.

    Raises:
        ModelError: it cannot be written.
    """
    scalars = {name: type(value).__name__ for name, value in model.state.items() if not isinstance(value, np.ndarray)}
    arrays: dict[str, Any] = {STATE_PREFIX + name: np.asarray(value) for name, value in model.state.items()}
    try:
        with path.open("wb") as file:
            np.savez(file, meta=np.array(orjson.dumps({**model.meta, "scalars": scalars}).decode()), **arrays)
    except OSError as error:
        raise ModelError(f"{path} cannot be written: {error}") from error


def read_model(path: Path) -> Model:
    """Read a model's file.

    Raises:
        ModelError: it is none, of a later format, or not as it was written.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            meta = orjson.loads(str(archive["meta"]))
            arrays = {
                name.removeprefix(STATE_PREFIX): archive[name]
                for name in archive.files
                if name.startswith(STATE_PREFIX)
            }
        scalars = meta.pop("scalars")
        state: State = {name: array.item() if name in scalars else array for name, array in arrays.items()}
        written_format, digest = meta["format"], meta["digest"]
        _identity(meta)
    except (OSError, BadZipFile, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise ModelError(f"{path}: expected a file of `onebit model export`; cannot be read: {error!r}") from error
    if written_format > FILE_FORMAT:
        raise ModelError(
            f"{path} is of format {written_format}; this version of Onebit reads up to {FILE_FORMAT}: take the later "
            "version that wrote it"
        )
    if state_digest([state]) != digest:
        raise ModelError(f"{path}: the digest of its state is not the one in meta: the file was changed")
    return Model(meta, state)


class Difference(NamedTuple):
    """How one part of two models' states compares."""

    name: str
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]  # None: the model does not have it
    differing: int  # entries that are not the same to the bit; all, when the shapes differ
    greatest: float  # difference of two entries; nan when they cannot be subtracted

    @property
    def same(self) -> bool:
        """Whether the two are the same to the bit."""
        return self.differing == 0


def compare_models(first: Model, second: Model) -> list[Difference]:
    """How two models' states compare, array by array."""
    names = sorted(first.state.keys() | second.state.keys())
    return [_difference(name, first.state.get(name), second.state.get(name)) for name in names]


def _difference(name: str, first: Any, second: Any) -> Difference:
    arrays = [None if value is None else np.asarray(value) for value in (first, second)]
    a, b = arrays
    shapes = (None if a is None else a.shape, None if b is None else b.shape)
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        entries = max(0 if array is None else array.size for array in arrays)
        return Difference(name, shapes, max(entries, 1), float("nan"))
    if a.tobytes() == b.tobytes():
        return Difference(name, shapes, 0, 0.0)
    differs = (_raw(a) != _raw(b)).any(axis=1)
    greatest = float("nan")
    if a.dtype.kind in "fiub":
        with np.errstate(invalid="ignore", over="ignore"):
            apart = a.reshape(-1)[differs].astype(np.float64) - b.reshape(-1)[differs].astype(np.float64)
        greatest = float(np.max(np.abs(apart)))
    return Difference(name, shapes, int(np.count_nonzero(differs)), greatest)


def _raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of each entry."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)


def import_model(broker: Broker, topics: Topics, partition: int, model: Model, transactional_id: str) -> None:
    """Let the learner of a partition begin with a model: only where none has begun.

    The model becomes the snapshot that stands before the first step. The learner's journal then names it, so that
    recovery and `onebit verify --replay` start from it too.

    Raises:
        ModelError: a learner has begun there, another model was imported, or the state does not fit its learner.
    """
    try:
        create(
            model.meta["learner"], model.meta["n_classes"], model.meta["n_features"], **model.meta["parameters"]
        ).load(model.state)
    except (ParameterError, ValueError, TypeError) as error:
        raise ModelError(f"the model does not fit its learner: {error}") from error
    _check_empty(broker, topics, partition)
    settings = _identity(model.meta)
    position = Position(0, 0, 0, 0, 0)
    nothing: tuple[list[str], list[Any]] = ([], [])
    snapshot = Snapshot(
        settings, position, model.meta["updates"], 0, 0, Ledger(), Overflows(), model.state, nothing, nothing, nothing
    )
    writer = Writer(snapshot, partition, IMPORT_SLOT)
    producer = broker.transactional_producer(transactional_id)
    try:
        producer.begin()
        while not writer.done:
            for key, value in writer.portion(IMPORT_BYTES_MAX):
                producer.send(topics.snapshots, partition, key, value, codec.HEADERS)
            producer.flush()
        _check_empty(broker, topics, partition)
        producer.commit()
    finally:
        producer.close()


def _check_empty(broker: Broker, topics: Topics, partition: int) -> None:
    """Refuse an import where a learner has begun, or will begin with another model."""
    journal, snapshots = TopicPartition(topics.journal, partition), TopicPartition(topics.snapshots, partition)
    if broker.ends([journal])[journal].high_watermark > 0:
        raise ModelError(
            f"{journal.topic}/{journal.partition}: a learner has begun there; a model can be imported only before its "
            "first step: take another --topic-prefix, or delete the topics and create them anew"
        )
    stored = Stored()
    for record in read_partition(broker, snapshots):
        try:
            stored.add(record.key, record.value)
        except SnapshotError as error:
            raise ModelError(f"{snapshots.topic}/{snapshots.partition}: {error}") from error
    if stored.imported is not None or stored.newest is not None:
        raise ModelError(
            f"{snapshots.topic}/{snapshots.partition} holds a model already: take another --topic-prefix, or delete "
            "the topics and create them anew"
        )


class Replay(NamedTuple):
    """What the whole journal, applied again without snapshots, comes to, beside what recovery gives."""

    partition: int
    steps: int
    snapshot: int  # the step after which the snapshot was taken that recovery began with; 0: without one
    replayed: str  # digests of the task's whole state
    recovered: str
    state: str  # the digest of the replayed learner's state alone, as `onebit run` shows it
    fault: str  # why it could not be done; empty when it could

    @property
    def ok(self) -> bool:
        """Whether both ways came to the same state, to the bit."""
        return not self.fault and self.replayed == self.recovered


def replay_journal(broker: Broker, topics: Topics, partition: int, progress: Report = lambda progress: None) -> Replay:
    """Apply a task's whole journal again from its first step, and compare with what was published, and with recovery.

    Every prediction and example must come out byte for byte as it stands in its topic, each step must leave the ledger
    that the journal says, and the state in the end must be the one of the newest recovery.
    """
    if last_step(broker, TopicPartition(topics.journal, partition)) is None:
        return Replay(partition, 0, 0, "", "", "", "")
    published = _Published(broker, topics, partition)
    try:
        recovered = rebuild(broker, topics, partition, None)
        number = recovered.number
        newest = recovered.stored.newest
        recovered_digest = task_digest(recovered.task)
        alone = rebuild(
            broker, topics, partition, None, progress, until=number, snapshots=False, observe=published.compare
        ).task
        published.compare_end(number)
    except JournalError as error:
        return Replay(partition, 0, 0, "", "", "", str(error))
    state = state_digest([alone.learner.state()])
    snapshot = 0 if newest is None else newest.number
    return Replay(partition, number, snapshot, task_digest(alone), recovered_digest, state, "")


class _Published:
    """What a task has published, compared step by step with what it publishes when applied again."""

    def __init__(self, broker: Broker, topics: Topics, partition: int) -> None:
        self._predictions = read_partition(broker, TopicPartition(topics.predictions, partition), open_ms=OPEN_MS)
        self._examples = read_partition(broker, TopicPartition(topics.examples, partition), open_ms=OPEN_MS)

    def compare(self, step: int, effects: Effects) -> None:
        """Compare one step's predictions and examples.

        Raises:
            JournalError: one is not what stands in its topic.
        """
        for prediction, context_offset in effects.predictions:
            _compare(self._predictions, step, prediction.id, codec.encode_prediction(prediction, context_offset))
        for example, feedback_offset in effects.examples:
            _compare(self._examples, step, example.id, codec.encode_example(example, feedback_offset))

    def compare_end(self, step: int) -> None:
        """See that nothing more was published up to a step; a learner that runs has gone on since.

        Raises:
            JournalError: there is more.
        """
        for record in (*self._predictions, *self._examples):
            if codec.step_of(record) <= step:
                place = f"{record.topic}/{record.partition} offset {record.offset}"
                raise JournalError(f"{place} is published, and comes of no step when the journal is applied again")


def _compare(records: Iterator[Record], step: int, event_id: str, expected: bytes) -> None:
    record = next(records, None)
    if record is None:
        raise JournalError(f"step {step} applied again publishes {event_id!r}; nothing of it stands in the topic")
    if record.value != expected:
        raise JournalError(
            f"{record.topic}/{record.partition} offset {record.offset} holds {record.value!r:.200}; step {step} "
            f"applied again publishes {expected!r:.200}"
        )
