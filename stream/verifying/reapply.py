"""Applies a whole journal again, and compares the result with the published records and with a recovered task."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from stream.journal.format import JournalError
from stream.journal.reading import last_step
from stream.journal.recover import rebuild
from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.snapshots.state import state_digest, task_digest
from stream.task.task import Effects
from stream.verifying.models import Report
from stream.verifying.shared_replay import LogAgain
from stream.wire import codec
from stream.wire.records import Foreign, Record, TopicPartition, place_of
from stream.wire.topics import Topics
from stream.wire.updates import UpdatesError


class Replay(NamedTuple):
    """The result of applying the whole journal again without snapshots, and the result of recovery."""

    partition: int
    steps: int
    snapshot: int  # step of the snapshot used by recovery; 0 if there is none
    replayed: str  # digest of the task's whole state
    recovered: str
    state: str  # digest of the replayed learner's state alone, as printed by `onebit run`
    fault: str  # the reason for a failure; empty without a failure
    version: int | None = None  # version of the shared model whose state is `state`; None without a shared model
    foreign: str = ""  # message about records of other programs that have step numbers; only with a shared model

    @property
    def ok(self) -> bool:
        """Whether both states are bit-identical."""
        return not self.fault and self.replayed == self.recovered


def replay_journal(broker: Broker, topics: Topics, partition: int, progress: Report = lambda progress: None) -> Replay:
    """Apply a task's whole journal again, and compare it with the published records and with a recovery.

    Every prediction and example must equal the published record byte for byte. The ledger after each step must equal
    the ledger in the journal, and the final state must equal that of a recovery.

    With a shared model, every decision is repeated at its version, and the log must contain the steps' entries; see
    `LogAgain`. In this case, the journal identifies the predictions of a step, and records from other programs with the
    step's number are skipped, as in a recovery.
    """
    if last_step(broker, TopicPartition(topics.journal, partition)) is None:
        return Replay(partition, 0, 0, "", "", "", "")
    log: LogAgain | None = None
    try:
        recovered = rebuild(broker, topics, partition, None)
        if recovered.task.settings.model == "shared":
            log = LogAgain(broker, topics, recovered.task.settings, partition)
        published = _Published(broker, topics, partition, skips_foreign=log is not None)
        number = recovered.step.number
        newest = recovered.stored.newest
        recovered_digest = task_digest(recovered.task)

        def observe(step: int, effects: Effects) -> None:
            published.compare(step, effects)
            if log is not None:
                log.expect(step, effects)

        alone = rebuild(
            broker, topics, partition, None, progress, until=number, snapshots=False, observe=observe,
            decides=None if log is None else log.advance,
        ).task  # fmt: skip
        published.compare_end(number)
        if log is not None:
            log.read_to_end(number)
    except (JournalError, UpdatesError) as error:
        return Replay(partition, 0, 0, "", "", "", str(error))
    state = state_digest([alone.learner.state()])
    snapshot = 0 if newest is None else newest.number
    version = None if log is None else log.replica.version
    foreign = published.foreign.describe("its predictions and examples") if published.foreign.records else ""
    return Replay(partition, number, snapshot, task_digest(alone), recovered_digest, state, "", version, foreign)


class _Published:
    """Compares a task's published records, step by step, with the records of the replay."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, *, skips_foreign: bool) -> None:
        """Open the topics.

        Args:
            broker: the broker.
            topics: the pipeline's topics.
            partition: the task's partition.
            skips_foreign: whether to skip unexpected records, which are then treated as records of other programs. If
                False, an unexpected record causes an error.
        """
        self.foreign = Foreign()  # skipped records
        self._predictions = _of_learners(broker, TopicPartition(topics.predictions, partition))
        self._examples = _of_learners(broker, TopicPartition(topics.examples, partition))
        self._skips_foreign = skips_foreign

    def compare(self, step: int, effects: Effects) -> None:
        """Compare one step's predictions and examples.

        Raises:
            JournalError: a prediction or example differs from the published record.
        """
        for prediction, context_offset in effects.predictions:
            self._compare(self._predictions, step, prediction.id, codec.encode_prediction(prediction, context_offset))
        for example, feedback_offset in effects.examples:
            self._compare(self._examples, step, example.id, codec.encode_example(example, feedback_offset))

    def compare_end(self, step: int) -> None:
        """Check that no further records were published up to a step. Records of later steps are allowed.

        Raises:
            JournalError: there are further records.
        """
        for record in chain(self._predictions, self._examples):
            if (codec.step_of(record) or 0) > step:
                continue
            if not self._skips_foreign:
                raise JournalError(
                    f"{place_of(record)}: this record was not published when the journal was applied again"
                )
            self.foreign = self.foreign.including(record)

    def _compare(self, records: Iterator[Record], step: int, event_id: str, expected: bytes) -> None:
        differing: Record | None = None
        for record in records:
            is_of_step = not self._skips_foreign or codec.step_of(record) == step
            if is_of_step and record.value == expected:
                return
            if is_of_step:
                differing = differing or record
            if not self._skips_foreign:
                break
            self.foreign = self.foreign.including(record)
        if differing is None:
            raise JournalError(f"step {step}, applied again, publishes {event_id!r}, but the topic does not contain it")
        raise JournalError(
            f"{place_of(differing)}: step {step}, applied again, publishes {expected!r:.200}; got "
            f"{differing.value!r:.200}"
        )


def _of_learners(broker: Broker, tp: TopicPartition) -> Iterator[Record]:
    """Return the records with a step number. The audit reports all other records."""
    return (record for record in read_partition(broker, tp, open_ms=OPEN_MS) if codec.step_of(record) is not None)
