"""The log of a shared model taken in again beside the steps of one task, whose decisions are made again on it."""

from collections import deque
from collections.abc import Iterator

from stream.journal.commit import predictions_digest
from stream.journal.digests import state_digest
from stream.journal.format import JournalError, JournalStep, LogStep
from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.shared.view import View
from stream.snapshots.chunks import MODEL_PARTITION, read_model_snapshots
from stream.snapshots.state import decode_model
from stream.task.settings import TaskSettings
from stream.task.task import Effects, Task
from stream.verifying.replicas import fresh_replica
from stream.wire import codec
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics
from stream.wire.updates import encode_updates


class LogAgain:
    """A replica of this process's own, from the first entry of the log on, and a task that decides on it.

    What a step had for the log must stand there byte for byte, and each digest that the task's journal tells of a
    replica must be the one that this replica has at that version. So must the newest snapshot of the model.
    """

    def __init__(self, broker: Broker, topics: Topics, settings: TaskSettings, partition: int) -> None:
        """Take in nothing yet.

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
        self._expected: deque[tuple[int, bytes]] = deque()  # steps, and what each had for the log
        self._log_step: LogStep | None = None  # of the step that is made again
        newest = stored.newest if partition == MODEL_PARTITION else None
        self._snapshot = None if newest is None else decode_model(newest)

    def advance(self, task: Task, step: JournalStep) -> None:
        """Have a task see the model as it was when a step was decided.

        Raises:
            JournalError: the log does not hold it, or the journal tells that the replica was another one.
            UpdatesError: the log cannot be read on.
        """
        if task.model is not self._view:
            task.use_model(self._view)
        for record in self._records_up_to(step.updates):
            self._take(record)
        if self.replica.version != step.updates:
            raise JournalError(
                f"step {step.number} of partition {self._partition} was decided on version {step.updates}; "
                f"{self._topics.updates} has no record that ends there, but at {self.replica.version}"
            )
        self._log_step = step.log
        if step.replica is not None:
            self._compare(step.replica.sha256, f"{step.replica.instance} had at step {step.number}")

    def expect(self, number: int, effects: Effects) -> None:
        """Expect of the log what a step has for it that was made again.

        Raises:
            JournalError: it has made other predictions than the journal tells.
        """
        told = self._log_step
        if told is None:
            raise JournalError(
                f"step {number} of partition {self._partition} says nothing of the log of a shared model"
            )
        made = [codec.encode_prediction(prediction, offset) for prediction, offset in effects.predictions]
        if (told.predictions, told.sha256) != (len(made), predictions_digest(made)):
            raise JournalError(
                f"step {number} of partition {self._partition} made {told.predictions} predictions by its journal, "
                f"with the digest {told.sha256[:16]}; made again, {len(made)} with {predictions_digest(made)[:16]}"
            )
        if effects.updates:
            values = encode_updates(self._partition, number, told.follows, effects.updates)
            self._expected += [(number, value) for value in values]

    def read_to_end(self, number: int) -> None:
        """Take in the rest of the log; what steps after this one wrote is not compared.

        Raises:
            JournalError: it does not hold what the steps had for it.
            UpdatesError: it cannot be read on.
        """
        for record in self._records:
            self._take(record, number)
        if self._expected:
            raise JournalError(
                f"step {self._expected[0][0]} of partition {self._partition} has updates when it is made again; "
                f"{self._topics.updates} holds none of it"
            )

    def _records_up_to(self, version: int) -> Iterator[Record]:
        while self.replica.version < version:
            record = next(self._records, None)
            if record is None:
                return
            yield record

    def _take(self, record: Record, last: int | None = None) -> None:
        """Take in a record, which must be what its step wrote, if it is of the task and up to the last step."""
        before = self.replica.place_of(self._partition)
        self.replica.read([record])
        place = self.replica.place_of(self._partition)
        if place != before and (last is None or place.step <= last):
            step, value = self._expected.popleft() if self._expected else (0, b"")
            if (step, value) != (place.step, record.value):
                raise JournalError(
                    f"{record.topic} offset {record.offset} holds updates of step {place.step} of partition "
                    f"{self._partition}; made again, {'it has others' if step == place.step else 'it has none there'}"
                )
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version == self.replica.version:
            self._snapshot = None
            self._compare(state_digest([snapshot.learner]), "is in the newest snapshot of the model")

    def _compare(self, told: str, whose: str) -> None:
        if (found := state_digest([self.replica.learner.state()])) != told:
            raise JournalError(
                f"the log up to version {self.replica.version:,} gives the model {found[:16]}; the one that {whose} is "
                f"{told[:16]}; run this with the versions of Onebit, Python and numpy and on the processor type of the "
                "learners"
            )
