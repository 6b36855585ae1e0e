"""Applies the log of a shared model again, and repeats the steps and decisions of one task."""

from collections import deque
from collections.abc import Iterator

from stream.journal.commit import predictions_digest
from stream.journal.format import JournalError, JournalStep, LogStep
from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.shared.view import View
from stream.snapshots.chunks import MODEL_PARTITION, read_model_snapshots
from stream.snapshots.state import decode_model, state_digest
from stream.task.settings import TaskSettings
from stream.task.task import Effects, Task
from stream.verifying.models import fresh_replica
from stream.wire import codec
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics
from stream.wire.updates import encode_updates


class LogAgain:
    """A replica that starts at the first entry of the log, for a task that repeats its decisions.

    A step's entries must equal its records in the log byte for byte. Each replica digest in the task's journal, and the
    digest of the newest snapshot of the model, must equal this replica's digest at the same version.
    """

    def __init__(self, broker: Broker, topics: Topics, settings: TaskSettings, partition: int) -> None:
        """Start before the first entry of the log.

        Raises:
            JournalError: the newest snapshot of the model cannot be read.
        """
        stored = read_model_snapshots(broker, topics)
        self.replica = fresh_replica(settings, stored.imported)
        self._broker = broker
        self._topics = topics
        self._partition = partition
        self._view = View(self.replica, partition)
        self._records = read_partition(broker, TopicPartition(topics.updates, 0), open_ms=OPEN_MS)
        self._expected: deque[tuple[int, bytes]] = deque()  # (step, expected log record)
        self._log_step: LogStep | None = None  # log position of the step being replayed
        newest = stored.newest if partition == MODEL_PARTITION else None
        self._snapshot = None if newest is None else decode_model(newest)

    def advance(self, task: Task, step: JournalStep) -> None:
        """Set a task's model to the version that made a step's decisions.

        Raises:
            JournalError: the log does not have this version, or the journal has a different digest for the replica.
            UpdatesError: the log cannot be read further.
        """
        if task.model is not self._view:
            task.use_model(self._view)
        for record in self._records_up_to(step.updates):
            self._take(record)
        if task.classes.is_open and self.replica.names != task.classes.names:
            raise JournalError(
                f"step {step.number} of partition {self._partition} knew the classes {task.classes.names}; the log up "
                f"to version {self.replica.version} has {self.replica.names}"
            )
        if self.replica.version != step.updates:
            raise JournalError(
                f"step {step.number} of partition {self._partition} made its decisions at version {step.updates}; "
                f"no record of {self._topics.updates} ends at this version; a record ends at {self.replica.version}"
            )
        self._log_step = step.log
        if step.replica is not None:
            self._compare(step.replica.sha256, f"{step.replica.instance} at step {step.number}")

    def expect(self, number: int, effects: Effects) -> None:
        """Add the log records that a replayed step is expected to have written.

        Raises:
            JournalError: the step's predictions differ from the digest in the journal.
        """
        expected = self._log_step
        if expected is None:
            raise JournalError(
                f"step {number} of partition {self._partition} has no position in the shared model's log"
            )
        values = [codec.encode_prediction(prediction, offset) for prediction, offset in effects.predictions]
        if (expected.predictions, expected.sha256) != (len(values), predictions_digest(values)):
            raise JournalError(
                f"step {number} of partition {self._partition}, applied again: expected {expected.predictions} "
                f"predictions with digest {expected.sha256[:16]}, as in the journal; got {len(values)} with digest "
                f"{predictions_digest(values)[:16]}"
            )
        if effects.updates:
            updates = encode_updates(self._partition, number, expected.follows, effects.updates)
            self._expected += [(number, value) for value in updates]

    def read_to_end(self, number: int) -> None:
        """Apply the remaining records of the log. Records of later steps are not compared.

        Raises:
            JournalError: records of the steps are missing or differ.
            UpdatesError: the log cannot be read further.
        """
        for record in self._records:
            self._take(record, number)
        if self._expected:
            raise JournalError(
                f"step {self._expected[0][0]} of partition {self._partition}, applied again, has updates; "
                f"{self._topics.updates} has none for this step"
            )

    def _records_up_to(self, version: int) -> Iterator[Record]:
        while self.replica.version < version:
            record = next(self._records, None)
            if record is None:
                return
            yield record

    def _take(self, record: Record, last: int | None = None) -> None:
        """Apply a record. If it belongs to a replayed step of the task, it must equal that step's expected record."""
        before = self.replica.place_of(self._partition)
        self.replica.read([record])
        place = self.replica.place_of(self._partition)
        if place != before and (last is None or place.step <= last):
            step, value = self._expected.popleft() if self._expected else (0, b"")
            if (step, value) != (place.step, record.value):
                raise JournalError(
                    f"{record.topic} offset {record.offset} contains updates of step {place.step} of partition "
                    f"{self._partition}; applied again, the step has "
                    f"{'different updates' if step == place.step else 'no updates at this offset'}"
                )
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version == self.replica.version:
            self._snapshot = None
            self._compare(state_digest([snapshot.learner]), "the newest snapshot of the model")
            if snapshot.classes != self.replica.names:
                raise JournalError(
                    f"the log up to version {self.replica.version:,} names the classes {self.replica.names}; the "
                    f"newest snapshot of the model has {snapshot.classes}"
                )

    def _compare(self, expected: str, owner: str) -> None:
        if (found := state_digest([self.replica.learner.state()])) != expected:
            raise JournalError(
                f"the log up to version {self.replica.version:,} gives the model {found[:16]}; {owner} has "
                f"{expected[:16]}; run this check with the processor type and the versions of Onebit, Python and numpy "
                "of the learners"
            )
