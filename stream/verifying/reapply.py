"""Reapplies a journal and compares the result with the published records and with a recovered task.

If the model is shared, its log is also reapplied. If the first records were deleted, or a range was requested, the
replay starts at a snapshot; see `stream.verifying.starts`.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain, dropwhile
from math import inf
from typing import NamedTuple

from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.recovery.chunks import MODEL_PARTITION, read_snapshots
from stream.recovery.commit import predictions_digest
from stream.recovery.control import read_requests
from stream.recovery.recover import Callbacks, Report, log_settings, rebuild
from stream.recovery.state import decode_model, is_of_log, restored_replica, state_digest, task_digest
from stream.recovery.steps import JournalError, JournalStep, LogStep, last_step
from stream.shared.view import View
from stream.task.settings import TaskSettings
from stream.task.stored_settings import stored_settings
from stream.task.task import Effects, Task
from stream.verifying.starts import Start, first_model, first_offset, start_of_check
from stream.wire import codec
from stream.wire.records import Foreign, Record, TopicPartition, place_of
from stream.wire.topics import Topics
from stream.wire.updates import UpdatesError, encode_updates


class Replay(NamedTuple):
    """A comparison of the recovered state with the result of reapplying the whole journal without snapshots."""

    partition: int
    steps: int = 0
    snapshot: int = 0  # step of the snapshot used by recovery; 0 if there is none
    replayed: str = ""  # digest of the task's whole state
    recovered: str = ""
    state: str = ""  # digest of the replayed learner's state alone, as printed by `onebit run`
    fault: str = ""  # the reason for a failure; empty if there is none
    version: int | None = None  # version of the shared model whose state is `state`; None without a shared model
    foreign: str = ""  # message about records from other programs that have step numbers; only with a shared model
    start: int = 0  # step of the snapshot at which the replay started; 0 if all steps were reapplied

    @property
    def ok(self) -> bool:
        """Whether both states are bit-identical."""
        return not self.fault and self.replayed == self.recovered


def replay_journal(
    broker: Broker,
    topics: Topics,
    partition: int,
    progress: Report = lambda progress: None,
    *,
    from_step: int | None = None,
    since_ms: int | None = None,
) -> Replay:
    """Reapply a task's journal and compare the result with the published records and with a recovered task.

    Every prediction and example must equal the published record byte for byte. The ledger after each step must equal
    the ledger in the journal, and the final state must equal the recovered state.

    If the model is shared, every decision is repeated at its version, and the log must contain the steps' entries; see
    `_LogAgain`. The journal then identifies a step's predictions, so records from other programs that have the step's
    number are skipped, as in a recovery. If the task has its own model, such a record is a fault.

    `from_step` and `since_ms` are as in `start_of_check`. In a replay from a snapshot, the first decisions with a
    shared model are not repeated, until the model has observed all of the task's decisions before the snapshot.
    """
    if last_step(broker, TopicPartition(topics.journal, partition)) is None:
        return Replay(partition)
    log: _LogAgain | None = None
    try:
        recovered = rebuild(broker, topics, partition)
        version_min = 0
        if recovered.task.settings.model == "shared":
            oldest = first_model(broker, topics)
            version_min = 0 if oldest is None else oldest.version
        start = start_of_check(broker, topics, partition, from_step, since_ms, version_min)
        if recovered.task.settings.model == "shared":
            log = _LogAgain(broker, topics, recovered.task.settings, partition, start)
        published = _Published(broker, topics, partition, start)
        number = recovered.step.number
        newest = recovered.stored.newest
        recovered_digest = task_digest(recovered.task)

        def observe(step: int, effects: Effects) -> None:
            published.compare(step, effects)
            if log is not None:
                log.expect(step, effects)

        alone = rebuild(
            broker, topics, partition, until=number, snapshots=start is not None,
            snapshot_max=None if start is None else start.step.number,
            callbacks=Callbacks(progress, observe, None if log is None else log.advance),
        ).task  # fmt: skip
        published.read_to_end(number, allows_foreign=log is not None)
        if log is not None:
            log.read_to_end(number)
    except (JournalError, UpdatesError) as error:
        return Replay(partition, fault=str(error))
    learner = alone.learner if log is None else log.replica.learner  # a task that replays no step has no replica
    state = state_digest([learner.state()])
    snapshot = 0 if newest is None else newest.number
    version = None if log is None else log.replica.version
    foreign = published.foreign.describe("its predictions and examples") if published.foreign.records else ""
    first = 0 if start is None else start.step.number
    return Replay(
        partition, number - first, snapshot, task_digest(alone), recovered_digest, state, "", version, foreign, first
    )


class _Published:
    """Compares a task's published records, step by step, with the records from the replay. Skips all other records."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, start: Start | None) -> None:
        self.foreign = Foreign()  # skipped records
        self._predictions = _of_learners(broker, TopicPartition(topics.predictions, partition), start)
        self._examples = _of_learners(broker, TopicPartition(topics.examples, partition), start)

    def compare(self, step: int, effects: Effects) -> None:
        """Compare one step's predictions and examples.

        Raises:
            JournalError: a prediction or example differs from the published record, or was not published.
        """
        for prediction, context_offset in effects.predictions:
            self._compare(self._predictions, step, prediction.id, codec.encode_prediction(prediction, context_offset))
        for example, _ in effects.examples:
            self._compare(self._examples, step, example.id, codec.encode_example(example))

    def read_to_end(self, step: int, *, allows_foreign: bool) -> None:
        """Skip the remaining records. Records from later steps are not foreign.

        Raises:
            JournalError: a record was skipped although no foreign records are allowed.
        """
        for record in chain(self._predictions, self._examples):
            if (codec.step_of(record) or 0) <= step:
                self.foreign = self.foreign.including(record)
        if self.foreign.records and not allows_foreign:
            raise JournalError("reapplying the journal does not produce this record", self.foreign.first)

    def _compare(self, records: Iterator[Record], step: int, event_id: str, expected: bytes) -> None:
        differing: Record | None = None
        for record in records:
            if codec.step_of(record) == step:
                if record.value == expected:
                    return
                differing = differing or record
            self.foreign = self.foreign.including(record)
        if differing is None:
            skipped = f"; skipped {self.foreign.first}" if self.foreign.records else ""
            raise JournalError(
                f"reapplying step {step} produces a record for {event_id!r}; the rest of the topic lacks it{skipped}"
            )
        raise JournalError(
            f"reapplying step {step} produces {expected!r:.200}; got {differing.value!r:.200}", place_of(differing)
        )


def _of_learners(broker: Broker, tp: TopicPartition, start: Start | None) -> Iterator[Record]:
    """Return the records that were written by learners' steps, from the first step after a start on.

    The audit reports all other records.
    """
    first = None if start is None else first_offset(broker, tp, start)
    records = (record for record in read_partition(broker, tp, first, OPEN_MS) if codec.step_of(record))
    number = 0 if start is None else start.step.number
    return dropwhile(lambda record: (codec.step_of(record) or 0) <= number, records)


class _LogAgain:
    """A replica for a task that repeats its decisions. The replica starts at the first entry in the log or a snapshot.

    A step's entries must equal its records in the log byte for byte. Each replica digest in the task's journal, and the
    digest of the model's newest snapshot, must equal this replica's digest at the same version.
    """

    def __init__(
        self, broker: Broker, topics: Topics, settings: TaskSettings, partition: int, start: Start | None
    ) -> None:
        """Start before the first entry in the log or, with a start, at the newest earlier snapshot of the model.

        Raises:
            JournalError: a snapshot of the model cannot be read, or is missing.
        """
        stored = read_snapshots(broker, topics, None)
        model = None if stored.imported is None else decode_model(stored.imported)
        if start is not None and (newest := read_snapshots(broker, topics, None, start.step.updates).newest):
            model = decode_model(newest)
        if model is None or not is_of_log(model):
            settings = log_settings(broker, topics, settings)
        requests = read_requests(broker, topics)
        self.replica = restored_replica(settings, model, requests.settings_after, requests.model)
        tp = TopicPartition(topics.updates, 0)
        if (beginning := broker.beginnings([tp])[tp]) > self.replica.offset:
            raise JournalError(
                f"the log begins at offset {beginning}; the replay needs it from offset {self.replica.offset} on, "
                "because the model has no later snapshot",
                str(tp),
            )
        self._unobserved = 0 if start is None else start.step.wrote  # last step in the log before the start
        self._first = inf  # the first step whose decisions are repeated, when it is known
        self._broker = broker
        self._topics = topics
        self._partition = partition
        self._view: View | None = None  # None until the model has observed all decisions before the start
        self._records = read_partition(broker, tp, self.replica.offset, OPEN_MS)
        self._expected: deque[tuple[int, bytes]] = deque()  # (step, expected log record)
        self._log_step: LogStep | None = None  # log position of the step being replayed
        self._control = 0  # offset in the control topic of the settings of the step being replayed
        last = stored.newest if partition == MODEL_PARTITION else None
        self._snapshot = None if last is None else decode_model(last)

    def advance(self, task: Task, step: JournalStep) -> None:
        """Set a task's model to the version with which a step made its decisions.

        Raises:
            JournalError: the log does not have this version, or the journal has a different digest for the replica.
            UpdatesError: the log cannot be read further.
        """
        while self.replica.version < step.updates and (record := next(self._records, None)) is not None:
            self._take(record)
        expected = self.replica.history.settings_at(step.control)
        if expected is not None and expected != task.settings:
            raise JournalError(
                f"step {step.number} of partition {self._partition} has the settings {stored_settings(task.settings)}; "
                f"after the same requests, the log continues with {stored_settings(expected)}"
            )
        if step.contexts[0] < step.contexts[1] and step.control != self.replica.control:
            raise JournalError(
                f"step {step.number} of partition {self._partition} made its decisions after the requests up to offset "
                f"{step.control}; at version {self.replica.version}, the log puts those up to {self.replica.control} "
                "in force"
            )
        if task.classes.is_open and self.replica.names[: task.settings.n_classes] != task.classes.names:
            raise JournalError(
                f"step {step.number} of partition {self._partition} knew the classes {task.classes.names}; the log up "
                f"to version {self.replica.version} has {self.replica.names}"
            )
        if self.replica.version != step.updates:
            raise JournalError(
                f"step {step.number} of partition {self._partition} made its decisions at version {step.updates}; "
                f"no record in {self._topics.updates} ends at that version; the last record read ends at "
                f"{self.replica.version}"
            )
        if self._view is None and self.replica.place_of(self._partition).step >= self._unobserved:
            self._view, self._first = View(self.replica, self._partition), step.number
            task.use_model(self._view)
        self._log_step, self._control = step.log, step.control
        if self._view is None:
            self._unobserved = step.wrote
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
                f"step {number} of partition {self._partition}, when reapplied: expected {expected.predictions} "
                f"predictions with digest {expected.sha256[:16]}, as in the journal; got {len(values)} with digest "
                f"{predictions_digest(values)[:16]}"
            )
        if effects.updates:
            updates = encode_updates(self._partition, number, expected.follows, effects.updates, control=self._control)
            self._expected += [(number, value) for value in updates]

    def read_to_end(self, number: int) -> None:
        """Apply the remaining records in the log. Records from later steps are not compared.

        Raises:
            JournalError: the steps' records are missing or differ.
            UpdatesError: the log cannot be read further.
        """
        for record in self._records:
            self._take(record, number)
        if self._expected:
            raise JournalError(
                f"reapplying step {self._expected[0][0]} of partition {self._partition} produces updates, but "
                f"{self._topics.updates} contains none for this step"
            )

    def _take(self, record: Record, last: int | None = None) -> None:
        """Apply a record. A record from a replayed step of the task must equal that step's expected record."""
        before = self.replica.place_of(self._partition)
        self.replica.read([record])
        place = self.replica.place_of(self._partition)
        if place != before and place.step >= self._first and (last is None or place.step <= last):
            step, value = self._expected.popleft() if self._expected else (0, b"")
            if (step, value) != (place.step, record.value):
                raise JournalError(
                    f"{record.topic} offset {record.offset} contains updates from step {place.step} of partition "
                    f"{self._partition}; when reapplied, the step produces "
                    f"{'different updates' if step == place.step else 'no updates at this offset'}"
                )
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version == self.replica.version:
            self._snapshot = None
            self._compare(state_digest([snapshot.learner]), "the model's newest snapshot")
            if snapshot.classes != self.replica.names:
                raise JournalError(
                    f"the log up to version {self.replica.version:,} names the classes {self.replica.names}; the "
                    f"model's newest snapshot has {snapshot.classes}"
                )

    def _compare(self, expected: str, owner: str) -> None:
        if (found := state_digest([self.replica.learner.state()])) != expected:
            raise JournalError(
                f"the log up to version {self.replica.version:,} produces the model {found[:16]}; {owner} has "
                f"{expected[:16]}; run this check with the same processor type and the same versions of Onebit, "
                "Python and numpy as the learners"
            )
