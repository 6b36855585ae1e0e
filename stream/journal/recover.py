"""Recovery: a task as its last commit, or any step before, left it, from snapshots, journal and inputs."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from stream.journal.format import JournalError, JournalStep, Opening, SettingsChange, UnrecoverableError
from stream.journal.inputs import Inputs, check_kept
from stream.journal.published import Published
from stream.journal.reading import last_step, read_journal
from stream.journal.resolve import Given, resolve
from stream.journal.settings_reading import settings_by_name, settings_in_force
from stream.journal.stored_settings import by_name, task_settings
from stream.kafka.port import Broker
from stream.shared.view import Recall, RecallError
from stream.snapshots.chunks import Generation, Stored
from stream.snapshots.model import PARTITION, imported_model
from stream.snapshots.reading import decode_snapshot, read_snapshots
from stream.snapshots.state import Pulse, restore
from stream.task.settings import TaskSettings
from stream.task.task import Effects, Task
from stream.wire.ledger import Ledger
from stream.wire.records import Foreign, Record, TopicPartition
from stream.wire.topics import Topics


class Recovered(NamedTuple):
    """A task as its last commit left it, and where it goes on."""

    task: Task
    number: int  # of its last step; 0: it has made none
    contexts_offset: int
    feedback_offset: int
    stored: Stored  # what its snapshots topic holds
    snapshot_ms: int  # the broker's time of its newest snapshot, or else of its first step; -1: there is neither
    snapshot_ledger: Ledger  # as it was then
    imported: str | None  # the model that it began with
    settings: TaskSettings  # those of its next step; the task itself still has those of its last one
    settings_from: int = 0  # the first step under the settings of its last one; 0: they are the opening's
    last_step: JournalStep | None = None  # of the journal; None: it has none
    wrote: int = 0  # its last step that wrote to the log of a shared model; 0: none did
    foreign: Foreign = Foreign()  # records of other programs in the part of the journal that was read
    foreign_predictions: Foreign = Foreign()  # likewise, in the predictions that were read back


class Progress(NamedTuple):
    """How far a recovery has come."""

    number: int  # of the last step applied again
    first: int  # of the first one to be applied again, and of the last
    last: int
    records: int  # applied again so far


Report = Callable[[Progress], None]
Recovery = Generator[Progress, None, Recovered]
"""A recovery that goes on, by a step of the journal, whenever its next progress is asked for."""


def recover(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings,
    progress: Report = lambda progress: None,
    *,
    given: Given = None,
    change_settings: bool = False,
) -> Recovered:
    """Bring a task to its last commit at once; see `recovery`."""
    steps = recovery(broker, topics, partition, settings, given=given, change_settings=change_settings)
    return _finish(steps, progress)


def _finish(steps: Recovery, progress: Report) -> Recovered:
    """Run a recovery to its end."""
    while True:
        try:
            progress(next(steps))
        except StopIteration as end:
            recovered: Recovered = end.value
            return recovered


def recovery(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings,
    *,
    given: Given = None,
    change_settings: bool = False,
    pulse: Pulse = lambda: None,
) -> Recovery:
    """Bring a task to its last commit, from where it can go on, step by step; write nothing.

    Args:
        broker: where the topics are.
        topics: the topics.
        partition: the task.
        settings: what the user wants; see `resolve` for what comes of it.
        given: which of the settings the user gave; None: all. The others are the task's own, if it has begun.
        change_settings: whether given ones that differ hold from the next step on.
        pulse: is called again and again before the first step, while snapshots are read.

    Raises:
        JournalError: given settings differ, or records that are needed are gone.
        ParameterError: the learner cannot follow the policies that are to hold.
    """
    place = f"{topics.journal}/{partition}"
    begun = settings_in_force(broker, topics, partition, pulse)
    if begun and "seed" not in begun:  # a model has only those that it depends on
        place = f"the model imported into {topics.snapshots}/{partition}"
    # First, so that nobody waits for a long recovery to hear that the settings are refused.
    settings = resolve(begun, settings, given, change=change_settings, place=place)
    recovered = yield from _rebuild(broker, topics, partition, settings, pulse=pulse)
    if recovered.number > 0:
        now = by_name(recovered.task.settings)
        settings = resolve(now, settings, given, change=change_settings, place=place)
        for topic, offset in (
            (topics.contexts, recovered.contexts_offset),
            (topics.feedback, recovered.feedback_offset),
        ):
            check_kept(broker, TopicPartition(topic, partition), offset, offset)
    settings.check_policies(recovered.task.learner)
    return recovered._replace(settings=settings)


Observer = Callable[[int, Effects], None]
"""Told the number of a step and what it publishes."""

Decides = Callable[[Task, JournalStep], None]
"""Has a task see the shared model as it was when a step was decided."""


def rebuild(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings | None,
    progress: Report = lambda progress: None,
    *,
    until: int | None = None,
    snapshots: bool = True,
    observe: Observer = lambda number, effects: None,
    decides: Decides | None = None,
) -> Recovered:
    """The state of a task after its last step, or after an earlier one; write nothing.

    That is its newest whole snapshot, and what it had applied after that applied again, in the journal's order. A
    shared model is no part of it.

    Args:
        broker: where the topics are.
        topics: the topics.
        partition: the task.
        settings: the settings that it must have after that step; None for whichever it has.
        progress: receives the progress after each step.
        until: the number of the step after which to stop; None for the last.
        snapshots: False to begin with the journal's first step.
        observe: is told what each step that is applied again would publish.
        decides: is called before each step of a task on a shared model, which then decides again; None: its decisions
            are those that were published.

    Raises:
        JournalError: it has other settings, has made no step, or records that are needed are gone.
    """
    steps = _rebuild(broker, topics, partition, settings, until, snapshots=snapshots, observe=observe, decides=decides)
    recovered = _finish(steps, progress)
    if settings is not None:
        resolve(by_name(recovered.task.settings), settings, place=f"{topics.journal}/{partition}")
    return recovered


def _rebuild(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings | None,  # for a task that has made no step
    until: int | None = None,
    *,
    snapshots: bool = True,
    observe: Observer = lambda number, effects: None,
    decides: Decides | None = None,
    pulse: Pulse = lambda: None,
) -> Recovery:
    journal = TopicPartition(topics.journal, partition)
    stored = read_snapshots(broker, topics, partition, until if snapshots else 0, pulse)
    last = last_step(broker, journal)
    if stored.newest is not None:
        start = _from_snapshot(broker, topics, stored, stored.newest, last, journal, pulse)
    elif last is not None:
        start = _from_opening(broker, topics, stored, journal, pulse)
    else:
        return _untouched(broker, topics, partition, stored, settings, pulse)
    recovered = yield from _apply_again(broker, topics, partition, start, last, until, observe, decides)
    wrote = 0 if last is None or last.log is None else last.log.wrote(last.number)
    return recovered._replace(last_step=last, wrote=wrote)


class _Start(NamedTuple):
    """Where the application of the journal begins."""

    recovered: Recovered
    journal_offset: int
    predictions_offset: int = 0  # those of later steps stand here or later


def _from_snapshot(
    broker: Broker,
    topics: Topics,
    stored: Stored,
    newest: Generation,
    last: JournalStep | None,
    journal: TopicPartition,
    pulse: Pulse,
) -> _Start:
    place = f"the snapshot in {topics.snapshots}/{journal.partition}, generation {newest.number},"
    found = decode_snapshot(newest, pulse)
    settings = task_settings(settings_by_name(found, place))
    at = found.position
    # A journal of which all records were deleted has no last step either. That is refused later, with the step that is
    # missed.
    all_deleted = last is None and broker.beginnings([journal])[journal] > 0
    if not all_deleted and (last is None or last.number < at.number):
        raise UnrecoverableError(
            f"{place} was taken after step {at.number} of {journal.topic}/{journal.partition}, which holds "
            f"{'no step' if last is None else f'steps up to {last.number}'}: the topic was made anew since"
        )
    task = restore(found, settings, topics.contexts, newest.place)
    recovered = Recovered(
        task, at.number, at.contexts_offset, at.feedback_offset, stored, at.taken_ms, found.ledger, None, settings,
        at.settings_from,
    )  # fmt: skip
    return _Start(recovered, at.journal_offset, at.predictions_offset)


def _from_opening(broker: Broker, topics: Topics, stored: Stored, journal: TopicPartition, pulse: Pulse) -> _Start:
    record, opening = next(read_journal(broker, journal))
    if not isinstance(opening, Opening):
        raise UnrecoverableError(
            f"{journal.topic}/{journal.partition} begins with step {opening.number}, without a snapshot of before: "
            "what came before it is gone; set its retention.ms to -1"
        )
    settings, imported = opening
    if settings.model == "shared":
        _check_imported_for_all(broker, topics, imported, journal, pulse)
    if imported is None or settings.model == "shared":
        task = Task(settings, topics.contexts)
    else:
        task = _imported(topics, journal, stored, imported, settings, pulse)
    recovered = Recovered(task, 0, -1, -1, stored, record.append_ms, Ledger(), imported, settings)
    return _Start(recovered, record.offset + 1)


def _check_imported_for_all(
    broker: Broker, topics: Topics, wanted: str | None, journal: TopicPartition, pulse: Pulse
) -> None:
    """See that the shared model begins now as it did when a task began."""
    if (found := imported_model(broker, topics, pulse)) != wanted:
        raise UnrecoverableError(
            f"{journal.topic}/{journal.partition} was begun with {_named(wanted)} for all partitions; "
            f"{topics.snapshots}/{PARTITION} holds {_named(found)}"
        )


def _named(imported: str | None) -> str:
    return "no imported model" if imported is None else f"the imported model {imported[:16]}"


def _imported(
    topics: Topics, journal: TopicPartition, stored: Stored, wanted: str, settings: TaskSettings, pulse: Pulse
) -> Task:
    """The task as an imported model starts it."""
    if stored.imported is None or stored.imported.whole != wanted:
        raise UnrecoverableError(
            f"{journal.topic}/{journal.partition} was begun with the imported model {wanted[:16]}; "
            f"{topics.snapshots}/{journal.partition} does not hold it any more"
        )
    found = decode_snapshot(stored.imported, pulse)
    place = f"the model imported into {topics.snapshots}/{journal.partition}"
    resolve(settings_by_name(found, place), settings, place=place)
    return restore(found, settings, topics.contexts, stored.imported.place)


def _untouched(
    broker: Broker, topics: Topics, partition: int, stored: Stored, settings: TaskSettings | None, pulse: Pulse
) -> Recovered:
    """The task of a journal without records: a new one, if nothing was deleted."""
    journal = TopicPartition(topics.journal, partition)
    beginning = broker.beginnings([journal])[journal]
    if beginning > 0:
        raise UnrecoverableError(
            f"{journal.topic}/{journal.partition} is kept from offset {beginning} on: what came before it is gone; set "
            "its retention.ms to -1"
        )
    _check_not_copied(broker, journal)
    if settings is None:
        raise JournalError(f"{journal.topic}/{journal.partition} is empty: no step has been made")
    starts = broker.beginnings([TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)])
    imported = None if stored.imported is None else stored.imported.whole
    task = Task(settings, topics.contexts)
    if settings.model == "shared":
        imported = imported_model(broker, topics, pulse)
    elif imported is not None:
        task = _imported(topics, journal, stored, imported, settings, pulse)
    contexts_offset, feedback_offset = starts.values()
    return Recovered(task, 0, contexts_offset, feedback_offset, stored, -1, Ledger(), imported, settings)


def _check_not_copied(broker: Broker, journal: TopicPartition) -> None:
    """Refuse to begin in a journal that holds records, none of which is Onebit's.

    A copy by a tool that has changed all records looks like this, too: to begin anew would forget what was learned.
    """
    foreign = Foreign()

    def pass_over(record: Record) -> None:
        nonlocal foreign
        foreign = foreign.and_also(record)

    ours = next(read_journal(broker, journal, pass_over=pass_over), None)
    if ours is None and foreign.records:
        raise UnrecoverableError(
            f"{journal.topic}/{journal.partition}: expected an empty journal, or one that Onebit has written; got "
            f"{foreign.records} records of which none is Onebit's, the first is {foreign.first}"
        )


def _apply_again(
    broker: Broker,
    topics: Topics,
    partition: int,
    start: _Start,
    last: JournalStep | None,
    until: int | None,
    observe: Observer,
    decides: Decides | None,
) -> Recovery:
    """Apply what the journal holds after the start, up to some step."""
    recovered, journal_offset, predictions_offset = start
    journal = TopicPartition(topics.journal, partition)
    task, first = recovered.task, recovered.number + 1
    final = recovered.number if last is None else last.number if until is None else min(until, last.number)
    records = 0
    foreign = Foreign()

    def pass_over(record: Record) -> None:
        nonlocal foreign
        foreign = foreign.and_also(record)

    inputs: Inputs | None = None
    published: Published | None = None
    try:
        for step, change in _steps_after(broker, journal, recovered.number, journal_offset, until, pass_over):
            settings_from = recovered.settings_from
            if change is not None:
                _change_settings(task, change, journal)
                settings_from = change.number
            _check_settings_from(step, settings_from, journal)
            if inputs is None:
                inputs = Inputs(broker, topics, partition, step, last or step)
                yield Progress(recovered.number, first, final, 0)
            batch = inputs.of(step)
            if decides is not None:
                decides(task, step)
            elif isinstance(task.model, Recall):
                published = published or Published(broker, topics, partition, predictions_offset)
                task.model.expect(step.updates, published.decisions(step))
            effects = _step_again(task, step, batch, journal)
            observe(step.number, effects)
            _check_same(task, step, journal)
            records += len(batch)
            recovered = recovered._replace(
                number=step.number,
                contexts_offset=step.contexts[1],
                feedback_offset=step.feedback[1],
                settings=task.settings,
                settings_from=settings_from,
            )
            yield Progress(step.number, first, final, records)
    finally:
        if inputs is not None:
            inputs.close()
        if published is not None:
            published.close()
    read_back = Foreign() if published is None else published.foreign
    return recovered._replace(foreign=foreign, foreign_predictions=read_back)


def _step_again(task: Task, step: JournalStep, batch: Sequence[Record], journal: TopicPartition) -> Effects:
    try:
        return task.step(batch, step.number, step.partitions)
    except RecallError as error:
        raise UnrecoverableError(
            f"step {step.number} of {journal.topic}/{journal.partition}: {error}: the inputs have changed since they "
            "were applied"
        ) from error


def _steps_after(
    broker: Broker,
    journal: TopicPartition,
    number: int,
    journal_offset: int,
    until: int | None,
    pass_over: Callable[[Record], None],
) -> Iterator[tuple[JournalStep, SettingsChange | None]]:
    """The steps after one of them, each with the settings that changed before it; see `read_journal`.

    Raises:
        JournalError: they do not follow on each other, or some are gone.
    """
    beginning = broker.beginnings([journal])[journal]
    first = number + 1
    change: SettingsChange | None = None
    for _, entry in read_journal(broker, journal, max(beginning, journal_offset), pass_over=pass_over):
        if isinstance(entry, Opening) or entry.number < first:
            continue  # a snapshot is taken before its own step stands in the journal
        if entry.number != number + 1:
            raise _wrong_step(journal, number + 1, entry.number, journal_offset, beginning)
        if until is not None and entry.number > until:
            return
        if isinstance(entry, SettingsChange):
            change = entry
            continue
        yield entry, change
        number, change = entry.number, None
    if change is not None:
        raise UnrecoverableError(
            f"{journal.topic}/{journal.partition} holds settings for step {change.number}, and not that step: another "
            "program has written to it"
        )
    if number < first and beginning > journal_offset:
        raise _wrong_step(journal, first, None, journal_offset, beginning)


def _wrong_step(
    journal: TopicPartition, expected: int, got: int | None, journal_offset: int, beginning: int
) -> JournalError:
    """The journal was written by two learners at once, or has lost steps."""
    place = f"{journal.topic}/{journal.partition}"
    if beginning > journal_offset:
        return UnrecoverableError(
            f"recovery needs {place} from offset {journal_offset} on, where step {expected} stands; it is kept from "
            f"{beginning} on: set its retention.ms to -1"
        )
    return UnrecoverableError(f"{place}: expected step {expected}; got {got}: another program has written to it")


def _change_settings(task: Task, change: SettingsChange, journal: TopicPartition) -> None:
    """Let the next step be made under other settings; those that cannot change must be the same."""
    before = f"{journal.topic}/{journal.partition}, before step {change.number},"
    task.change_settings(resolve(by_name(task.settings), change.settings, change=True, place=before))


def _check_settings_from(step: JournalStep, settings_from: int, journal: TopicPartition) -> None:
    """A step must have been made under the settings that the journal holds before it."""
    if step.settings_from != settings_from:
        raise UnrecoverableError(
            f"step {step.number} of {journal.topic}/{journal.partition}: expected the settings of step "
            f"{settings_from}, 0 being the opening's; got those of step {step.settings_from}: the record of a change "
            "is missing"
        )


def _check_same(task: Task, last: JournalStep, journal: TopicPartition) -> None:
    """A step that is applied again must leave the task where the journal says that it stood."""
    if last.alarms != task.alarms:
        raise UnrecoverableError(
            f"step {last.number} of {journal.topic}/{journal.partition}: expected {last.alarms} drift alarms; got "
            f"{task.alarms}: the inputs have changed since they were applied"
        )
    if (task.join.ledger(), task.updates) != (last.ledger, last.updates):
        raise UnrecoverableError(
            f"step {last.number} of {journal.topic}/{journal.partition}: expected {last.ledger} after {last.updates} "
            f"updates; got {task.join.ledger()} after {task.updates}: the inputs have changed since they were applied"
        )
