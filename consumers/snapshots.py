"""When a learner takes snapshots of its tasks, and how they are written: one at a time, a portion with each step."""

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.following import Following
from consumers.running_task import RunningTask
from stream.brokers.port import Broker
from stream.joining.task import Task
from stream.learners import State
from stream.recovery.broker_time import BrokerTime
from stream.recovery.model_snapshot import PARTITION, model_writer, take_model
from stream.recovery.snapshot import take
from stream.recovery.snapshot_chunks import ChunkWriter, Message, Stored, Writer, other_slot
from stream.recovery.snapshot_format import Position
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """How often snapshots are taken, and how they are cut; see `LearnerOptions`."""

    interval_ms: int
    bytes_max: int
    chunk_bytes: int


@dataclass(slots=True)
class ModelSnapshots:
    """The snapshots of a shared model, as the learner writes them that has the task of partition 0."""

    following: Following
    stored: Stored  # what there was when the task came here
    next_slot: str
    chunks: dict[str, int]  # of each slot, as far as it was written to since
    taken_ms: int  # -1: it is not known yet from when the interval counts
    version: int  # of the newest
    spare: State | None = None  # memory for the next copy


class SnapshotWriting:
    """The snapshots of all tasks of one process, and of a shared model."""

    def __init__(self, broker: Broker, topics: Topics, options: SnapshotOptions, time: BrokerTime) -> None:
        """Write none yet; `time` is what the learner knows of the broker's time."""
        self._broker = broker
        self._topics = topics
        self._options = options
        self._time = time
        self._spare: State | None = None  # memory for the next snapshot's copy of a learner's state
        self._model: ModelSnapshots | None = None  # None: another process writes them, or tasks have their own models
        self.writer: tuple[int, ChunkWriter] | None = None  # of the snapshot that is being written, and whose it is

    def make_room(self, task: Task) -> None:
        """Have memory for a copy of its state before the first snapshot is due."""
        if self._options.interval_ms and self._spare is None and task.view is None:
            self._spare = task.learner.state()

    def begin_model(self, following: Following, stored: Stored) -> None:
        """Write the snapshots of a shared model from now on, in a generation of its own; `stored` is what there is."""
        version = 0 if stored.newest is None else stored.newest.number
        for generation in filter(None, (stored.newest, stored.imported)):
            generation.payloads.clear()  # what is in it has been read; here only its place counts
        self._model = ModelSnapshots(following, stored, stored.next_slot(), {}, -1, version)

    def is_writing(self, partition: int) -> bool:
        """Whether a snapshot of this task is being written."""
        return self.writer is not None and self.writer[0] == partition

    def give_up(self, partition: int) -> None:
        """Let a snapshot of this task be, whose rest would be of another state."""
        if self.is_writing(partition):
            self.writer = None
        if partition == PARTITION:
            self._model = None

    def portion(self, partition: int, running: RunningTask) -> list[Message]:
        """The next portion of this task's snapshot: of one that is being written, or that is due after this step."""
        if self.writer is None:
            model = self._model if partition == PARTITION else None
            if model is not None and self._model_is_due(model) and model.taken_ms <= running.snapshots.taken_ms:
                self._begin_model_snapshot(model)
            elif self._is_due(running):
                self._begin_snapshot(partition, running)
            elif model is not None and self._model_is_due(model):
                self._begin_model_snapshot(model)
        if self.writer is None or self.writer[0] != partition:
            return []
        return self.writer[1].portion(self._options.bytes_max)

    def _begin_snapshot(self, partition: int, running: RunningTask) -> None:
        journal = TopicPartition(self._topics.journal, partition)
        predictions = TopicPartition(self._topics.predictions, partition)
        # This step's records are not in the topics yet: they stand here or later, and the next step's after them.
        ends = self._broker.ends([journal] if running.task.view is None else [journal, predictions])
        position = Position(
            running.number, ends[journal].high_watermark, running.contexts_offset, running.feedback_offset,
            self._time.now_ms, running.settings_from,
            ends[predictions].high_watermark if predictions in ends else 0,
        )  # fmt: skip
        taken = take(running.task, position, self._spare)
        self._spare = taken.learner or None
        slot = running.snapshots.next_slot
        chunks_before, chunk_bytes = running.snapshots.chunks_in(slot), self._options.chunk_bytes
        self.writer = partition, Writer(taken, partition, slot, chunks_before, chunk_bytes)

    def _begin_model_snapshot(self, model: ModelSnapshots) -> None:
        """Write the model as this process has read it."""
        taken = take_model(model.following.replica, model.following.settings, model.spare)
        model.spare, model.taken_ms, model.version = taken.learner, self._time.now_ms, taken.version
        chunks_before = model.chunks.get(model.next_slot, model.stored.chunks_in(model.next_slot))
        self.writer = PARTITION, model_writer(taken, model.next_slot, chunks_before, self._options.chunk_bytes)

    def _model_is_due(self, model: ModelSnapshots) -> bool:
        if not self._options.interval_ms or not self._time.is_known:
            return False
        if model.taken_ms < 0:
            model.taken_ms = self._time.now_ms
        has_passed = self._time.now_ms - model.taken_ms >= self._options.interval_ms
        return has_passed and model.following.replica.version != model.version

    def _is_due(self, running: RunningTask) -> bool:
        snapshots = running.snapshots
        if not self._options.interval_ms or not self._time.is_known:
            return False
        if snapshots.taken_ms < 0:
            snapshots.taken_ms = self._time.now_ms
        has_passed = self._time.now_ms - snapshots.taken_ms >= self._options.interval_ms
        return has_passed and running.task.join.ledger() != snapshots.ledger

    def waits(self, partition: int, running: RunningTask) -> bool:
        """Whether a step without records is needed for a snapshot, or to learn whether it is time for one.

        A task that is idle takes it, too: retention deletes its inputs some time, and then only a snapshot of after
        the last of them can be recovered. That of a shared model is for those whose tasks are not idle.
        """
        model = self._model if partition == PARTITION else None
        if self.writer is None and (self._is_due(running) or (model is not None and self._model_is_due(model))):
            return True
        interval_ms = self._options.interval_ms
        is_idle = interval_ms > 0 and self._time.silent_ms >= interval_ms
        has_news = model is not None and model.following.replica.version != model.version
        return is_idle and (has_news or running.task.join.ledger() != running.snapshots.ledger)

    def finish(self, tasks: Mapping[int, RunningTask]) -> None:
        """Take note of a snapshot whose last portion is committed."""
        if self.writer is None or not self.writer[1].done:
            return
        partition, writer = self.writer
        self.writer = None
        if isinstance(writer, Writer):
            snapshots = tasks[partition].snapshots
            snapshots.written(writer.slot, writer.count)
            snapshots.taken_ms, snapshots.ledger = writer.position.taken_ms, writer.ledger
        elif self._model is not None:
            self._model.chunks[writer.slot] = writer.count
            self._model.next_slot = other_slot(writer.slot)
