"""A whole journal applied again, and compared with what was published and with what recovery gives."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from stream.journal.digests import state_digest, task_digest
from stream.journal.format import JournalError
from stream.journal.reading import last_step
from stream.journal.recover import rebuild
from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.task.task import Effects
from stream.verifying.models import Report
from stream.verifying.shared_replay import LogAgain
from stream.wire import codec
from stream.wire.records import Foreign, Record, TopicPartition, place_of
from stream.wire.topics import Topics
from stream.wire.updates import UpdatesError


class Replay(NamedTuple):
    """What the whole journal, applied again without snapshots, comes to, beside what recovery gives."""

    partition: int
    steps: int
    snapshot: int  # the step after which the snapshot was taken that recovery began with; 0: without one
    replayed: str  # digests of the task's whole state
    recovered: str
    state: str  # the digest of the replayed learner's state alone, as `onebit run` shows it
    fault: str  # why it could not be done; empty when it could
    version: int | None = None  # of a shared model, whose state it then is
    foreign: str = ""  # what other programs have written under the numbers of steps, where that can be told; for people

    @property
    def ok(self) -> bool:
        """Whether both ways came to the same state, to the bit."""
        return not self.fault and self.replayed == self.recovered


def replay_journal(broker: Broker, topics: Topics, partition: int, progress: Report = lambda progress: None) -> Replay:
    """Apply a task's whole journal again from its first step, and compare with what was published, and with recovery.

    Every prediction and example must come out byte for byte as it stands in its topic, each step must leave the ledger
    that the journal says, and the state in the end must be the one of the newest recovery. With a shared model every
    decision is made again on its version, and the log must hold what the steps wrote, see `LogAgain`. As its journal
    tells which predictions are a step's, those of other programs that carry its number are passed over, as recovery
    does, and so are examples.
    """
    if last_step(broker, TopicPartition(topics.journal, partition)) is None:
        return Replay(partition, 0, 0, "", "", "", "")
    log: LogAgain | None = None
    try:
        recovered = rebuild(broker, topics, partition, None)
        if recovered.task.settings.model == "shared":
            log = LogAgain(broker, topics, recovered.task.settings, partition)
        published = _Published(broker, topics, partition, passes_over=log is not None)
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
    """What a task has published, compared step by step with what it publishes when applied again."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, *, passes_over: bool) -> None:
        """Compare nothing yet.

        Args:
            broker: where the topics are.
            topics: the topics.
            partition: the task's.
            passes_over: whether records that no step publishes are of other programs, and no fault.
        """
        self.foreign = Foreign()  # records that were passed over
        self._predictions = _of_learners(broker, TopicPartition(topics.predictions, partition))
        self._examples = _of_learners(broker, TopicPartition(topics.examples, partition))
        self._passes_over = passes_over

    def compare(self, step: int, effects: Effects) -> None:
        """Compare one step's predictions and examples.

        Raises:
            JournalError: one is not what stands in its topic.
        """
        for prediction, context_offset in effects.predictions:
            self._compare(self._predictions, step, prediction.id, codec.encode_prediction(prediction, context_offset))
        for example, feedback_offset in effects.examples:
            self._compare(self._examples, step, example.id, codec.encode_example(example, feedback_offset))

    def compare_end(self, step: int) -> None:
        """See that nothing more was published up to a step; a learner that runs has gone on since.

        Raises:
            JournalError: there is more.
        """
        for record in chain(self._predictions, self._examples):
            if (codec.step_of(record) or 0) > step:
                continue
            if not self._passes_over:
                raise JournalError(
                    f"{place_of(record)} is published, and comes of no step when the journal is applied again"
                )
            self.foreign = self.foreign.and_also(record)

    def _compare(self, records: Iterator[Record], step: int, event_id: str, expected: bytes) -> None:
        differing: Record | None = None
        for record in records:
            is_of_step = not self._passes_over or codec.step_of(record) == step
            if is_of_step and record.value == expected:
                return
            if is_of_step:
                differing = differing or record
            if not self._passes_over:
                break
            self.foreign = self.foreign.and_also(record)
        if differing is None:
            raise JournalError(f"step {step} applied again publishes {event_id!r}; nothing of it stands in the topic")
        raise JournalError(
            f"{place_of(differing)} holds {differing.value!r:.200}; step {step} applied again publishes "
            f"{expected!r:.200}"
        )


def _of_learners(broker: Broker, tp: TopicPartition) -> Iterator[Record]:
    """The records that a learner has published, and others like them; the audit names all others."""
    return (record for record in read_partition(broker, tp, open_ms=OPEN_MS) if codec.step_of(record) is not None)
