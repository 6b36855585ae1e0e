"""Reads the data for a recovery: the steps and settings of journals, the inputs of steps, and published decisions.

`resolve` combines the settings in force with the user's settings.
"""

from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, dropwhile
from typing import Any, NamedTuple

from stream.journal.commit import predictions_digest
from stream.journal.format import (
    JOIN_SETTINGS,
    PARAMETER,
    JournalError,
    JournalStep,
    UnrecoverableError,
    decode_step,
    stored_settings,
    task_settings,
)
from stream.kafka.port import Broker
from stream.kafka.reading import offset_of_number, read_partition, read_partitions
from stream.snapshots.chunks import Pulse, read_model_snapshots, read_snapshots
from stream.snapshots.state import decode, decode_model
from stream.task.settings import TaskSettings
from stream.task.task import merge
from stream.wire.codec import MalformedError, decode_prediction, step_of
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Decision, Foreign, Record, TopicPartition, place_of
from stream.wire.topics import Topics

_ESTIMATE_MARGIN = 20
"""Margin, in offsets, added to the estimated distance between a step and the journal's end."""


def read_journal(
    broker: Broker, journal: TopicPartition, start: int | None = None, open_ms: int = 0
) -> Generator[tuple[Record, JournalStep], None, None]:
    """Yield the steps of a journal with their records, up to its current end; see `read_partition`.

    Raises:
        JournalError: a record cannot be read, or was written by another program.
    """
    for record in read_partition(broker, journal, start=start, open_ms=open_ms):
        yield record, decode_step(record)


def read_from_step(
    broker: Broker, journal: TopicPartition, number: int, last: JournalStep
) -> Iterator[tuple[Record, JournalStep]]:
    """Yield the steps of a journal from a step number on; see `read_journal`.

    A step usually uses two offsets: one for its record and one for the marker of its transaction. The start offset is
    therefore estimated from the number of the last step. If aborted transactions make the estimate too high, the search
    is repeated from earlier offsets.
    """
    beginning = broker.beginnings([journal])[journal]
    end = broker.ends([journal])[journal].stable
    reach = 2 * max(0, last.number - number + 1) + _ESTIMATE_MARGIN
    while True:
        start = max(beginning, end - reach)
        steps = read_journal(broker, journal, start)
        first = next(steps, None)
        if start == beginning or (first is not None and first[1].number <= number):
            entries = steps if first is None else chain((first,), steps)
            return dropwhile(lambda each: each[1].number < number, entries)
        steps.close()
        reach *= 2


def last_step(broker: Broker, journal: TopicPartition) -> JournalStep | None:
    """Return the last step of a journal, or None if the task has made no step."""
    return last_steps(broker, [journal]).get(journal)


def last_steps(broker: Broker, journals: Sequence[TopicPartition]) -> dict[TopicPartition, JournalStep]:
    """Return the last step of each journal that has one. The search goes backwards from the ends."""
    found: dict[TopicPartition, JournalStep] = {}
    beginnings, ends = broker.beginnings(journals), broker.ends(journals)
    left = {tp: end.stable for tp, end in ends.items() if beginnings[tp] < end.stable}
    reach = 100  # in offsets; each transaction also has a marker with an offset
    while left:
        starts = {tp: max(beginnings[tp], end - reach) for tp, end in left.items()}
        for record in read_partitions(broker, starts, left):
            found[TopicPartition(record.topic, record.partition)] = decode_step(record)
        left = {tp: end for tp, end in left.items() if tp not in found and starts[tp] > beginnings[tp]}
        reach *= 10
    return found


def settings_in_force(broker: Broker, topics: Topics, partition: int, pulse: Pulse = lambda: None) -> dict[str, Any]:
    """Return the settings of a task after its last step, by name.

    If the task has made no step, the result contains the settings of the imported model. The result is empty if the
    task has not started. It is also empty if the record with the settings was deleted; recovery then reports the
    missing records.

    Args:
        broker: the broker.
        topics: the pipeline's topics.
        partition: the task's partition.
        pulse: called repeatedly while snapshots are read.

    Raises:
        JournalError: the journal or the snapshots cannot be read.
    """
    journal = TopicPartition(topics.journal, partition)
    last = last_step(broker, journal)
    if last is not None:
        _, step = next(read_from_step(broker, journal, last.settings_from, last))
        if step.settings is not None and step.number == last.settings_from:
            return stored_settings(step.settings)
    stored = read_snapshots(broker, topics, partition, pulse=pulse)
    generation = stored.imported if last is None else stored.newest
    if generation is None:
        return {}
    snapshot = decode(generation, pulse)
    is_older = last is not None and snapshot.step.settings_from != last.settings_from
    return {} if is_older else {"model": "own", **snapshot.settings}


def pipeline_settings(broker: Broker, topics: Topics, partitions: int, pulse: Pulse = lambda: None) -> dict[str, Any]:
    """Return the settings of the first task that has started, by name. Other tasks start with these settings.

    If no task has started, the result contains the settings of the first imported model. The result is empty in a new
    pipeline. See `settings_in_force`.
    """
    for topic in (topics.journal, topics.snapshots):
        ends = broker.ends([TopicPartition(topic, partition) for partition in range(partitions)])
        for tp, end in ends.items():
            if end.high_watermark and (found := settings_in_force(broker, topics, tp.partition, pulse)):
                return found
    imported = read_model_snapshots(broker, topics, pulse).imported
    return {} if imported is None else {**decode_model(imported).settings, "model": "shared"}


class JournalFollower:
    """Reads new steps from the journals of a pipeline, and stores the last step of each task."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int, *, from_end: bool = False) -> None:
        """Start at the beginning of the journals or, with `from_end`, at the last step of each task."""
        journals = [TopicPartition(topics.journal, partition) for partition in range(partitions)]
        self.steps: dict[int, JournalStep] = {}  # last step of each task that has made a step
        self._consumer = broker.reader(journals)
        if from_end:
            for journal, ends in broker.ends(journals).items():
                self._consumer.seek(journal, ends.stable)
            self.steps = {journal.partition: step for journal, step in last_steps(broker, journals).items()}

    def read(self, timeout_ms: int) -> Ledger:
        """Read new records, and return the sum of the tasks' ledgers."""
        for record in self._consumer.poll(timeout_ms, 10_000):
            self.steps[record.partition] = decode_step(record)
        return total_ledger(step.ledger for step in self.steps.values())

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()


class Inputs:
    """The contexts and feedback of one task for a range of steps."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: JournalStep, last: JournalStep) -> None:
        contexts, feedback = TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)
        check_kept(broker, contexts, first.contexts[0], last.contexts[1])
        check_kept(broker, feedback, first.feedback[0], last.feedback[1])
        self._contexts = Portions(read_partition(broker, contexts, start=first.contexts[0]))
        self._feedback = Portions(read_partition(broker, feedback, start=first.feedback[0]))

    def of(self, step: JournalStep) -> list[Record]:
        """Return the records of the next step, in the order in which the step applied them."""
        contexts = self._contexts.up_to(step.contexts[1])
        feedback = self._feedback.up_to(step.feedback[1])
        return merge(contexts, feedback, contexts_lag=0, feedback_lag=0, records_max=len(contexts) + len(feedback))

    def close(self) -> None:
        """Release the connections."""
        self._contexts.close()
        self._feedback.close()


def check_kept(broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
    """Check that an input partition still contains the required records.

    Raises:
        UnrecoverableError: the input begins after `offset`, or ends before `end`.
    """
    beginning = broker.beginnings([tp])[tp]
    if beginning > offset:
        raise UnrecoverableError(
            f"recovery needs {tp} from offset {offset}; it begins at {beginning}. Increase its retention.ms"
        )
    kept_to = broker.ends([tp])[tp].stable
    if kept_to < end:
        raise UnrecoverableError(
            f"recovery needs {tp} up to offset {end}; it ends at {kept_to}. The topic was recreated"
        )


class Portions:
    """Returns the records of a partition in batches."""

    def __init__(self, records: Generator[Record, None, None]) -> None:
        self._records = records
        self._next: Record | None = None

    def up_to(self, end: float) -> deque[Record]:
        """Return the records before an offset that have not been returned yet."""
        found: deque[Record] = deque()
        while (record := self._next or next(self._records, None)) is not None:
            self._next = record
            if record.offset >= end:
                break
            self._next = None
            found.append(record)
        return found

    def close(self) -> None:
        """Release the connection."""
        self._records.close()


class Published:
    """The predictions of a task from a given step on, in the order of the task's steps.

    Records without a step number come from other programs and are skipped. If another program wrote a record with a
    step number, that step's digest differs and the recovery fails.
    """

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: int) -> None:
        """Start with the predictions of step `first`."""
        self._broker, self._journal = broker, f"{topics.journal}/{partition}"
        self._tp = tp = TopicPartition(topics.predictions, partition)
        self._start: int | None = offset_of_number(broker, tp, first, lambda record: step_of(record) or None)
        self._read_from_start()

    def _read_from_start(self) -> None:
        self._records = read_partition(self._broker, self._tp, start=self._start)
        self._next = next(self._records, None)
        self.foreign = Foreign()

    def decisions(self, step: JournalStep) -> list[tuple[str, Decision]]:
        """Return the decisions of the next step, with their event ids.

        Raises:
            UnrecoverableError: the decisions are missing, or differ from their digest in the journal.
        """
        expected, digest = (0, "") if step.log is None else (step.log.predictions, step.log.sha256)
        found: list[Record] = []
        while self._next is not None and len(found) < expected:
            number = step_of(self._next)
            if number is None:
                self.foreign = self.foreign.including(self._next)
            elif number > step.number:
                break
            elif number == step.number:
                found.append(self._next)
            self._next = next(self._records, None)
        if predictions_digest(record.value or b"" for record in found) == digest:
            with suppress(MalformedError):
                return [(prediction.id, prediction.decision) for prediction, _ in map(decode_prediction, found)]
        if self._start is not None:  # the search for the offset can fail if a mirror has appended a record twice
            self._start = None
            self.close()
            self._read_from_start()
            return self.decisions(step)
        where = f"; the first is at {place_of(found[0])}" if found else ""
        raise UnrecoverableError(
            f"{self._tp}: expected the {expected} predictions of step {step.number} whose digest is in "
            f"{self._journal}; got {len(found)}{where}. They were deleted, or another program wrote records with this "
            "step's number"
        )

    def close(self) -> None:
        """Release the connection."""
        self._records.close()


Given = Collection[str] | None
"""Names of the settings that the user set. Learner parameters are called `parameters.NAME`. None means all settings."""

CHANGEABLE = frozenset((*JOIN_SETTINGS, "on_expiry", "late"))
"""The settings that can change in a running pipeline: windows, limits and policies.

The model depends on all other settings, and could not be reproduced if they changed.
"""

_REMEDY = "use the earlier settings, or start a new pipeline with another topic prefix"
_REMEDY_OF_FIXED = (
    "this cannot change in a running pipeline; use the earlier settings, or move the model to a new pipeline with "
    "`onebit model export` and `onebit model import`"
)


class Difference(NamedTuple):
    """A setting for which the user's value differs from the pipeline's value."""

    name: str
    begun: Any
    given: Any

    @property
    def can_change(self) -> bool:
        """Whether the setting can change in a running pipeline.

        Corrections can be disabled but not enabled, because a task without corrections does not store expired
        decisions.
        """
        return self.name in CHANGEABLE and (self.name, self.given) != ("late", "correct")


class SettingsDifferError(JournalError):
    """Settings of the user differ from the pipeline's settings."""

    def __init__(self, place: str, differences: tuple[Difference, ...], remedy: str) -> None:
        self.differences = differences
        shown = ", ".join(f"{name} = {_shown(begun)}; got {_shown(given)}" for name, begun, given in differences)
        super().__init__(f"{place} has {shown}: {remedy}")

    @property
    def can_change(self) -> bool:
        """Whether all of the settings can change in a running pipeline."""
        return all(difference.can_change for difference in self.differences)


def resolve(
    begun: Mapping[str, Any], wanted: TaskSettings, given: Given = None, *, change: bool = False, place: str
) -> TaskSettings:
    """Determine the settings for the next step.

    Args:
        begun: the pipeline's settings by name. The mapping has all settings, only those of an imported model, or none.
        wanted: the user's settings and the current defaults. A default applies only to a setting that is missing from
            `begun`.
        given: names of the settings that the user set.
        change: whether the user's settings replace those of the pipeline, if they can change.
        place: the topic and partition of the pipeline's settings, for messages.

    Raises:
        SettingsDifferError: a setting of the user differs from the pipeline's setting, and either this setting cannot
            change or `change` is False.
    """
    values = stored_settings(wanted)
    parameters = {name for name in values if name.startswith(PARAMETER)}
    if given is None:
        given = values.keys() - parameters | {PARAMETER + name for name in wanted.parameters}
    elif begun and "learner" not in given:  # keep the pipeline's learner, and drop parameters of other learners
        for name in parameters - {*given, *begun}:
            del values[name]
    chosen = {name: value for name, value in values.items() if name in given}
    differences = tuple(
        Difference(name, begun.get(name), value)
        for name, value in chosen.items()
        if begun and begun.get(name) != value and (name in begun or name in parameters)
    )
    if learner := tuple(difference for difference in differences if difference.name == "learner"):
        differences = learner  # the parameters differ only because they belong to another learner
    if differences and not change:
        raise SettingsDifferError(place, differences, _REMEDY)
    if fixed := tuple(difference for difference in differences if not difference.can_change):
        raise SettingsDifferError(place, fixed, _REMEDY_OF_FIXED)
    return task_settings({**values, **begun, **chosen})


def _shown(value: object) -> str:
    """Format a value for a message. Long values, such as vocabularies, are shortened."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
