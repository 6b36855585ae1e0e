"""Recovers a task's state as of its last commit or an earlier step, from snapshots, the journal and the inputs.

Also reads the settings in force from the journals and snapshots.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any, NamedTuple

from stream.kafka.port import Broker
from stream.kafka.reading import Portions, offset_of_number, read_partition
from stream.learners import ParameterError
from stream.recovery.chunks import MODEL_PARTITION, Stored, reading_snapshots
from stream.recovery.commit import predictions_digest
from stream.recovery.control import read_requests
from stream.recovery.inputs import LOST_RECORDS, check_kept, check_unchanged
from stream.recovery.slices import Parts, at_once
from stream.recovery.state import decode_model, decoding, restoring
from stream.recovery.steps import (
    JournalError,
    JournalStep,
    MissingRecordsError,
    UnrecoverableError,
    last_step,
    read_from_step,
    read_journal,
)
from stream.recovery.torn import REMEDY, check_whole
from stream.task.carry import Models, check_change, no_models, start_members
from stream.task.changes import Changed
from stream.task.models import Recall, RecallError
from stream.task.settings import TaskSettings
from stream.task.stored_settings import Given, resolve, restored_settings, stored_settings
from stream.task.task import Effects, Task, merge
from stream.wire.classes import NewClassesError
from stream.wire.codec import MalformedError, decode_prediction, step_of
from stream.wire.ledger import Ledger
from stream.wire.records import Decision, Foreign, Record, TopicPartition, place_of
from stream.wire.topics import Topics


class Recovered(NamedTuple):
    """A task restored to its state after a step."""

    task: Task
    step: JournalStep  # the last step applied; its number is 0 before the first step
    stored: Stored  # the task's snapshots
    imported: str | None = None  # digest of the imported model with which the task started
    foreign: Foreign = Foreign()  # records from other programs found in the predictions topic


class ReplayProgress(NamedTuple):
    """A recovery's progress."""

    number: int  # number of the last step reapplied so far
    first: int  # number of the first step to reapply
    last: int  # number of the last step to reapply
    records: int  # number of records reapplied so far


Report = Callable[[ReplayProgress], None]
Recovery = Parts[Recovered]
"""A generator that recovers a task. It yields True after each part of the preparation and after each step."""

Observer = Callable[[int, Effects], None]
"""A callback invoked with each step's number and output after the step is reapplied."""

Begin = Callable[[Mapping[str, Any], str], TaskSettings]
"""Returns the settings with which a task begins, from the imported model's settings (empty without one) and the place
of that model, for messages."""

Decides = Callable[[Task, JournalStep], None]
"""A callback invoked before each step is reapplied. It sets the task's model to the version with which the step made
its decisions. It can leave the task's Recall in place for the first steps."""


class Callbacks(NamedTuple):
    """Callbacks of a recovery. By default, they do nothing."""

    progress: Report = lambda progress: None  # called before the first step and after each step
    observe: Observer = lambda number, effects: None
    decides: Decides | None = None  # as long as a shared model's task has no View, it uses the published decisions


NO_CALLBACKS = Callbacks()


def recovery(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings,
    progress: Report = lambda progress: None,
    *,
    given: Given = None,
    begin: Changed | None = None,
    group: str = "",
) -> Recovery:
    """Restore a task to its last commit, step by step, without writing anything.

    Args:
        broker: the broker.
        topics: the topics.
        partition: the task's partition.
        settings: the user's settings; see `resolve`. They are compared with the task's settings after all requests to
            change them, including those that the task has not applied yet.
        progress: called with the recovery's progress, before the first step and after each step.
        given: names of the settings that the user set; None means all settings. A task that has already started keeps
            its own values for all other settings.
        begin: settings with which a task begins, and the requests that they include; None means `settings`, and none.
        group: the learners' consumer group. If retention has deleted the whole journal, the group's committed offsets
            show whether the newest snapshot contains the task's last step.

    Raises:
        SettingsDifferError: the user's settings differ from the task's settings.
        JournalError: required records were deleted.
        MovedError: a move to these topics is incomplete.
        ParameterError: the learner does not support the policies.
    """
    start = Changed(settings, 0) if begin is None else begin

    def begun(stored: Mapping[str, Any], place: str) -> TaskSettings:
        return resolve(stored, start.settings, given, place=place)

    journal = TopicPartition(topics.journal, partition)
    if (last := last_step(broker, journal)) is not None:
        check_unchanged(broker, topics, {partition: last})
    elif broker.beginnings([journal])[journal] == 0:
        read_requests(broker, topics).check_opened(topics)
    recovered = yield from rebuilding(broker, topics, partition, begun, callbacks=Callbacks(progress))
    step, task = recovered.step, recovered.task
    if step.number == 0:
        recovered = recovered._replace(step=step._replace(control=start.control))
    else:
        requests = read_requests(broker, topics)
        requests.check_end(step.control)
        latest = requests.after(task.settings, step.control).settings
        resolve(stored_settings(latest), settings, given, place=f"{topics.journal}/{partition}")
        if last is None:
            check_unchanged(broker, topics, {partition: step})
            _check_nothing_lost(broker, topics, partition, step, group)
        for topic, offset in zip((topics.contexts, topics.feedback), step.read_to, strict=True):
            check_kept(broker, TopicPartition(topic, partition), offset, offset)
    check_whole(broker, topics, partition, step if step.number > 0 else None)
    task.settings.check_policies(task.learner)
    return recovered


def rebuilding(
    broker: Broker,
    topics: Topics,
    partition: int,
    begin: Begin | None = None,
    *,
    until: int | None = None,
    snapshots: bool = True,
    snapshot_max: int | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
) -> Recovery:
    """Restore a task to its last step or an earlier one, without a shared model and without writing anything.

    Args:
        broker: the broker.
        topics: the topics.
        partition: the task's partition.
        begin: returns the settings for a task that has not taken a step. If None, an error is raised for such a task.
        until: number of the last step to apply; None means all steps.
        snapshots: whether to use snapshots. If False, the recovery starts with the journal's first step.
        snapshot_max: only the snapshots of this step and earlier ones are used; None means no limit.
        callbacks: called while steps are reapplied.

    Raises:
        JournalError: the task has not taken a step, or required records were deleted.
    """
    journal = TopicPartition(topics.journal, partition)
    limits = [limit for limit in (until, snapshot_max) if limit is not None]
    stored = yield from reading_snapshots(broker, topics, partition, min(limits, default=None) if snapshots else 0)
    last = last_step(broker, journal)
    yield True
    if stored.newest is None:
        recovered = yield from _from_beginning(broker, journal, topics, stored, begin)
    else:
        recovered = yield from _from_snapshot(topics, stored)
    stored.release()
    yield True
    number = recovered.step.number
    if last is None:
        if number > 0 and broker.beginnings([journal])[journal] == 0:
            raise _lost(broker, journal, number + 1, None)
        return recovered
    if last.number < number:
        raise _lost(broker, journal, number + 1, last)
    final = last.number if until is None else min(until, last.number)
    if number < final:
        recovered = yield from _reapply(broker, topics, journal, recovered, final, last, callbacks)
    return recovered


def _reapply(
    broker: Broker,
    topics: Topics,
    journal: TopicPartition,
    recovered: Recovered,
    final: int,
    last: JournalStep,
    callbacks: Callbacks,
) -> Recovery:
    """Apply the journal's steps again, from the one after the recovered step up to `final`."""
    task, first, records = recovered.task, recovered.step.number + 1, 0
    progress, observe, decides = callbacks
    published: Published | None = None
    with ExitStack() as stack:
        inputs = stack.enter_context(closing(Inputs(broker, topics, journal.partition, recovered.step, last)))
        if isinstance(task.model, Recall):
            published = stack.enter_context(closing(Published(broker, topics, journal.partition, first)))
        progress(ReplayProgress(first - 1, first, final, 0))
        for step in _steps(broker, journal, first, final, last):
            _prepare(task, step, journal, broker, topics)
            if decides is not None:
                decides(task, step)
            if published is not None and isinstance(task.model, Recall):
                task.model.expect(step.updates, published.decisions(step))
            batch = inputs.of(step)
            try:
                adds = () if step.log is None else step.log.adds
                change = 0 if step.log is None else step.log.change
                effects = task.step(batch, step.number, step.partitions, adds, step.clock_shift_ms, change)
            except (RecallError, NewClassesError) as error:
                raise _inputs_changed(step, journal, str(error)) from error
            observe(step.number, effects)
            _check_same(task, step, journal)
            records += len(batch)
            recovered = recovered._replace(step=step)
            progress(ReplayProgress(step.number, first, final, records))
            yield True
    foreign = Foreign() if published is None else published.foreign
    return recovered._replace(foreign=foreign)


def _check_nothing_lost(broker: Broker, topics: Topics, partition: int, step: JournalStep, group: str) -> None:
    """Check that no step after a snapshot's step applied a record, if retention has deleted the whole journal.

    The group's committed offsets are those of the task's last step. Kafka deletes them if the group has no member for a
    week (`offsets.retention.minutes`). Without them, no later step can have applied a record if the inputs end where
    the snapshot's step ended.

    Raises:
        MissingRecordsError: a later step applied records, or may have applied records.
    """
    tps = [TopicPartition(topic, partition) for topic in (topics.contexts, topics.feedback)]
    committed, ends = broker.committed(group, tps), broker.ends(tps)
    applied = {tp: committed.get(tp, ends[tp].high_watermark) for tp in tps}
    expected = dict(zip(tps, step.read_to, strict=True))
    if lost := [tp for tp in tps if applied[tp] > expected[tp]]:
        journal = TopicPartition(topics.journal, partition)
        named = ", ".join(
            f"{tp} from offset {expected[tp]} to {applied[tp]}"
            + ("" if tp in committed else f", its end, because group {group} has no committed offset")
            for tp in lost
        )
        raise MissingRecordsError(
            f"retention has deleted all steps, and the newest snapshot is of step {step.number}. Later steps applied "
            f"records, or may have: {named}. {LOST_RECORDS}",
            journal, step.number + 1, is_deleted=True,
        )  # fmt: skip


def _prepare(task: Task, step: JournalStep, journal: TopicPartition, broker: Broker, topics: Topics) -> None:
    """Apply what a step's record says about the time before the step: changed settings, and other tasks' classes."""
    if step.settings is not None and step.settings != task.settings:
        models = _models_for(step.settings, broker, topics)
        try:
            check_change(task.settings, step.settings, models)
        except ParameterError as error:
            raise JournalError(f"step {step.number}: {error}", str(journal)) from error
        task.change_settings(step.settings, models)
    if step.log is not None and step.log.names:
        task.classes.add(step.log.names)


def _models_for(settings: TaskSettings, broker: Broker, topics: Topics) -> Models:
    """Return the models with which challengers start."""
    return read_requests(broker, topics).model if settings.started_from else no_models


recover = at_once(recovery)
rebuild = at_once(rebuilding)


class InForce(NamedTuple):
    """Stored settings, and the requests that they include."""

    settings: dict[str, Any]  # by name; see `stream.task.stored_settings`
    control: int = 0  # offset in the control topic after the last request


def reading_settings(broker: Broker, topics: Topics, partition: int) -> Parts[InForce]:
    """Return a task's settings after its last step.

    If the task has not taken a step, the result contains the imported model's settings. The result is empty if the
    task has not started. It is also empty if the record with the settings was deleted; recovery then reports the
    missing records.

    Raises:
        JournalError: the journal or the snapshots cannot be read.
    """
    journal = TopicPartition(topics.journal, partition)
    last = last_step(broker, journal)
    if last is not None:
        _, step = next(read_from_step(broker, journal, last.settings_from, last))
        if step.settings is not None and step.number == last.settings_from:
            return InForce(stored_settings(step.settings), last.control)
    stored = yield from reading_snapshots(broker, topics, partition)
    generation = stored.newest or stored.imported
    if generation is None:
        return InForce({})
    snapshot = yield from decoding(generation)
    is_older = last is not None and snapshot.step.settings_from != last.settings_from
    settings = {} if is_older else {"model": "own", **snapshot.settings}
    return InForce(settings, snapshot.step.control if last is None else last.control)


def reading_pipeline_settings(broker: Broker, topics: Topics, partitions: int) -> Parts[InForce]:
    """Return the settings of the first task that has started. Other tasks start with these settings.

    If no task has started, the result contains the first imported model's settings. The result is empty for a new
    pipeline. See `reading_settings`.
    """
    for topic in (topics.journal, topics.snapshots):
        ends = broker.ends([TopicPartition(topic, partition) for partition in range(partitions)])
        for tp, end in ends.items():
            if end.high_watermark and (found := (yield from reading_settings(broker, topics, tp.partition))).settings:
                return found
    imported = (yield from reading_snapshots(broker, topics, None)).imported
    return InForce({} if imported is None else {**decode_model(imported).settings, "model": "shared"})


def log_settings(broker: Broker, topics: Topics, settings: TaskSettings) -> TaskSettings:
    """Return the settings before the first entry in a shared model's log.

    The task of partition 0 writes all changes to the log, so its first step has these settings.

    Args:
        broker: the broker.
        topics: the topics.
        settings: the settings of another task, which are the same if partition 0 has not started.

    Raises:
        MissingRecordsError: the first step was deleted.
    """
    journal = TopicPartition(topics.journal, MODEL_PARTITION)
    _, first = next(read_journal(broker, journal), (None, None))
    if broker.beginnings([journal])[journal] > 0 or (first is not None and first.settings is None):
        raise _lost(broker, journal, 1, first)
    return settings if first is None or first.settings is None else first.settings


settings_in_force = at_once(reading_settings)
pipeline_settings = at_once(reading_pipeline_settings)


def _from_snapshot(topics: Topics, stored: Stored) -> Recovery:
    """Restore a task from its newest snapshot."""
    assert stored.newest is not None
    snapshot = yield from decoding(stored.newest)
    settings = restored_settings(snapshot.settings)
    stored.taken_ms, stored.taken_of = snapshot.stream_ms, snapshot.step.ledger
    task = yield from restoring(snapshot, settings, topics.contexts, stored.newest.place)
    return Recovered(task, snapshot.step, stored)


def _from_beginning(
    broker: Broker, journal: TopicPartition, topics: Topics, stored: Stored, begin: Begin | None
) -> Recovery:
    """Create a task in its initial state, with the journal's settings or, if the journal is empty, with `begin`."""
    partition = journal.partition
    record, first = next(read_journal(broker, journal), (None, None))
    if broker.beginnings([journal])[journal] > 0 if first is None else first.number != 1:
        raise _lost(broker, journal, 1, first)
    own = None if stored.imported is None else (yield from decoding(stored.imported))
    of_model = {} if own is None else {"model": "own", **own.settings}
    place = f"the model imported into {topics.snapshots}/{partition}" if of_model else str(journal)
    if first is not None and first.settings is not None:
        settings = first.settings
    elif begin is not None:
        settings = begin(of_model, place)
    else:
        raise JournalError("the journal is empty: the task has not started", str(journal))
    shared = settings.model == "shared"
    model = (yield from reading_snapshots(broker, topics, None)).imported if shared else stored.imported
    imported = model and model.whole
    if first is None or record is None:
        tps = [TopicPartition(topic, partition) for topic in (topics.contexts, topics.feedback)]
        for tp, beginning in broker.beginnings(tps).items():
            if beginning > 0:
                raise MissingRecordsError(
                    f"the partition begins at offset {beginning}: earlier records were deleted before the task's first "
                    "step. Increase the topic's retention.ms, and create the topics again (onebit topics delete, "
                    "create) or use a different prefix",
                    tp, 0, is_deleted=True,
                )  # fmt: skip
        contexts = feedback = 0
    else:
        if imported != first.imported and (shared or first.imported is not None):
            raise UnrecoverableError(
                f"the task was started with {_named(first.imported)}; {topics.snapshots}/"
                f"{MODEL_PARTITION if shared else partition} contains {_named(imported)}. The snapshots topic has "
                f"changed. {LOST_RECORDS}",
                str(journal),
            )
        imported, contexts, feedback = first.imported, first.contexts[0], first.feedback[0]
        stored.taken_ms = record.append_ms
    stored.taken_of = Ledger()
    step = JournalStep(0, (contexts, contexts), (feedback, feedback), 0, Ledger())
    if shared or imported is None or own is None or stored.imported is None:
        task = Task(settings, topics.contexts)
        if not shared:
            start_members(task.learner, task.settings, _models_for(settings, broker, topics), settings.started_from)
        return Recovered(task, step, stored, imported)
    resolve(of_model, settings, place=place)
    task = yield from restoring(own, settings, topics.contexts, stored.imported.place)
    return Recovered(task, step, stored, imported)


def _named(imported: str | None) -> str:
    return "no imported model" if imported is None else f"the imported model {imported[:16]}"


def _lost(broker: Broker, journal: TopicPartition, number: int, found: JournalStep | None) -> MissingRecordsError:
    """Return the error that reports missing steps in the journal."""
    beginning = broker.beginnings([journal])[journal]
    if beginning > 0:
        return MissingRecordsError(
            f"recovery needs the journal from step {number} on; the journal begins at offset {beginning}. Earlier "
            f"steps were deleted. {LOST_RECORDS}",
            journal, number, is_deleted=True,
        )  # fmt: skip
    return MissingRecordsError(
        f"expected step {number}; got {'no step' if found is None else found.number}. Another program wrote to the "
        f"journal, or the topic was recreated. {LOST_RECORDS}",
        journal, number, is_deleted=False,
    )  # fmt: skip


def _steps(broker: Broker, journal: TopicPartition, first: int, final: int, last: JournalStep) -> Iterator[JournalStep]:
    """Yield the steps numbered `first` to `final` in a journal.

    Raises:
        JournalError: the steps are not consecutive, or some were deleted.
    """
    for expected, (_, step) in enumerate(read_from_step(broker, journal, first, last), first):
        if step.number != expected:
            raise _lost(broker, journal, expected, step)
        if step.number > final:
            return
        yield step


def _check_same(task: Task, step: JournalStep, journal: TopicPartition) -> None:
    """Check that the task's counts after a reapplied step match those in the journal."""
    expected, got = (*step.ledger, step.updates, step.alarms), (*task.join.ledger(), task.version, task.alarms)
    if got != expected:
        counts = zip((*Ledger._fields, "updates", "alarms"), expected, got, strict=True)
        wrong = ", ".join(f"expected {name} {known}; got {found}" for name, known, found in counts if known != found)
        raise _inputs_changed(step, journal, wrong)


def _inputs_changed(step: JournalStep, journal: TopicPartition, difference: str) -> UnrecoverableError:
    return UnrecoverableError(
        f"{difference}. The inputs have changed since this step. {LOST_RECORDS}", f"step {step.number} of {journal}"
    )


class Inputs:
    """One task's contexts and feedback for the steps that follow a given step."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, after: JournalStep, last: JournalStep) -> None:
        contexts, feedback = TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)
        contexts_from, feedback_from = after.read_to
        check_kept(broker, contexts, contexts_from, last.contexts[1])
        check_kept(broker, feedback, feedback_from, last.feedback[1])
        self._contexts = Portions(read_partition(broker, contexts, start=contexts_from))
        self._feedback = Portions(read_partition(broker, feedback, start=feedback_from))

    def of(self, step: JournalStep) -> list[Record]:
        """Return the next step's records, in the order in which the step applied them."""
        contexts = self._contexts.up_to(step.contexts[1])
        feedback = self._feedback.up_to(step.feedback[1])
        return merge(contexts, feedback, contexts_lag=0, feedback_lag=0, records_max=len(contexts) + len(feedback))

    def close(self) -> None:
        """Release the connections."""
        self._contexts.close()
        self._feedback.close()


class Published:
    """A task's predictions, starting with a given step, in step order.

    Records without a step number come from other programs and are skipped. If another program wrote a record with a
    step number, that step's digest differs and the recovery fails.
    """

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: int) -> None:
        """Start with the predictions from step `first`."""
        self._broker, self._journal = broker, f"{topics.journal}/{partition}"
        self._tp = tp = TopicPartition(topics.predictions, partition)
        self._start: int | None = offset_of_number(broker, tp, first, lambda record: step_of(record) or None)
        self._read_from_start()

    def _read_from_start(self) -> None:
        self._records = read_partition(self._broker, self._tp, start=self._start)
        self._next = next(self._records, None)
        self.foreign = Foreign()

    def decisions(self, step: JournalStep) -> list[tuple[str, Decision]]:
        """Return the next step's decisions with their event ids.

        Raises:
            UnrecoverableError: the decisions are missing or do not match their digest in the journal.
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
            f"expected the {expected} predictions of step {step.number}, with the digest in {self._journal}; got "
            f"{len(found)}{where}. Predictions were deleted, another program wrote records with this step's number, or "
            f"the step's transaction was committed in part. {REMEDY}",
            str(self._tp),
        )

    def close(self) -> None:
        """Release the connection."""
        self._records.close()
