"""When a learner takes snapshots, and how it writes them: one at a time, a portion with each step.

A snapshot is due when stream time has moved by the interval, or nothing was applied for as long, and something has
changed since the last one. An idle task takes one, too: retention deletes its inputs in the end, and then only a
snapshot of after the last of them can be recovered.
"""

from dataclasses import dataclass

from consumers.partition import Partition
from consumers.shared_model import SharedModel, Slots
from stream.kafka.port import Broker
from stream.learners import State
from stream.snapshots.chunks import ChunkWriter, Message, Writer
from stream.snapshots.model import PARTITION, model_writer, take_model
from stream.snapshots.state import Position, take
from stream.task.task import Task
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """How often snapshots are taken, and how they are cut; see `LearnerOptions`."""

    interval_ms: int
    bytes_max: int
    chunk_bytes: int


@dataclass(slots=True)
class SnapshotWriting:
    """The snapshots of all tasks of one process, and of a shared model."""

    broker: Broker
    topics: Topics
    options: SnapshotOptions
    _spare: State | None = None  # memory for the next snapshot's copy of a learner's state
    _writer: tuple[int, Slots, ChunkWriter] | None = None  # and whose it is

    def make_room(self, task: Task) -> None:
        """Allocate memory for a copy of the task's state before the first snapshot is due."""
        if self.options.interval_ms and self._spare is None and task.settings.model == "own":
            self._spare = task.learner.state()

    def abandon(self, partition: int) -> None:
        """Stop writing a snapshot of this task: its rest would be of another state."""
        if self._writer is not None and self._writer[0] == partition:
            self._writer[1].ledger = None
            self._writer = None

    def needs_step(self, running: Partition, shared: SharedModel | None, silent_ms: int) -> bool:
        """Whether a step is needed although there is nothing to apply."""
        if running.number == 0:
            return False
        if self._writer is not None:
            return self._writer[0] == running.partition
        return self._task_is_due(running, silent_ms) or self._model_is_due(running, shared, silent_ms)

    def portion(self, running: Partition, shared: SharedModel | None, silent_ms: int) -> list[Message]:
        """The next portion, to be called after each step: of a snapshot being written, or of one that is due now."""
        if self._writer is None:
            task_is_due = self._task_is_due(running, silent_ms)
            model_is_due = self._model_is_due(running, shared, silent_ms)
            if shared is not None and shared.slots is not None and model_is_due:
                if task_is_due and running.snapshots.taken_ms < shared.slots.taken_ms:
                    self._take(running)
                else:
                    self._take_model(running, shared, shared.slots)
            elif task_is_due:
                self._take(running)
        if self._writer is None or self._writer[0] != running.partition:
            return []
        return self._writer[2].portion(self.options.bytes_max)

    def finish(self) -> None:
        """Note that a snapshot is whole, if its last portion was committed."""
        if self._writer is not None and self._writer[2].done:
            _, slots, writer = self._writer
            self._writer = None
            slots.wrote(writer.slot, writer.count)

    def _is_due(self, slots: Slots, running: Partition, silent_ms: int) -> bool:
        interval_ms = self.options.interval_ms
        if not interval_ms:
            return False
        stream_ms = running.task.join.stream_ms
        if slots.taken_ms < 0:
            slots.taken_ms = stream_ms
        return stream_ms - slots.taken_ms >= interval_ms or silent_ms >= interval_ms

    def _task_is_due(self, running: Partition, silent_ms: int) -> bool:
        return (
            self._is_due(running.snapshots, running, silent_ms)
            and running.task.join.ledger() != running.snapshots.ledger
        )

    def _model_is_due(self, running: Partition, shared: SharedModel | None, silent_ms: int) -> bool:
        if shared is None or shared.slots is None or running.partition != PARTITION:
            return False
        return self._is_due(shared.slots, running, silent_ms) and shared.replica.version != shared.snapshot_version

    def _take(self, running: Partition) -> None:
        """Take a snapshot of a task after the step that is being made."""
        journal = TopicPartition(self.topics.journal, running.partition)
        predictions = TopicPartition(self.topics.predictions, running.partition)
        # This step's records are not in the topics yet: they will be at these offsets or later.
        ends = self.broker.ends([journal] if running.task.settings.model == "own" else [journal, predictions])
        join = running.task.join
        position = Position(
            running.number, ends[journal].high_watermark, running.contexts.offset, running.feedback.offset,
            join.stream_ms, running.settings_from, ends[predictions].high_watermark if predictions in ends else 0,
        )  # fmt: skip
        taken = take(running.task, position, self._spare)
        self._spare = taken.learner or None
        slots = running.snapshots
        slots.taken_ms, slots.ledger = join.stream_ms, join.ledger()
        writer = Writer(taken, running.partition, slots.next_slot, slots.chunks_in_next(), self.options.chunk_bytes)
        self._writer = running.partition, slots, writer

    def _take_model(self, running: Partition, shared: SharedModel, slots: Slots) -> None:
        """Take a snapshot of the shared model as this process has read it."""
        taken = take_model(shared.replica, shared.settings, shared.spare)
        shared.spare, shared.snapshot_version = taken.learner, taken.version
        slots.taken_ms = running.task.join.stream_ms
        writer = model_writer(taken, slots.next_slot, slots.chunks_in_next(), self.options.chunk_bytes)
        self._writer = PARTITION, slots, writer
