"""Recovery: a task as its last commit, or an earlier step, left it, from snapshots, journal and inputs."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple

from stream.journal.format import JournalError, JournalStep, UnrecoverableError
from stream.journal.inputs import Inputs, check_kept
from stream.journal.published import Published
from stream.journal.reading import last_step, read_from_step, read_journal, settings_in_force, settings_of
from stream.journal.resolve import Given, resolve
from stream.journal.stored_settings import stored_settings, task_settings
from stream.kafka.port import Broker
from stream.shared.view import Recall, RecallError
from stream.snapshots.chunks import MODEL_PARTITION, Pulse, Stored, imported_model, read_snapshots
from stream.snapshots.state import decode, restore
from stream.task.settings import TaskSettings
from stream.task.task import Effects, Task
from stream.wire.ledger import Ledger
from stream.wire.records import Foreign, TopicPartition
from stream.wire.topics import Topics


class Recovered(NamedTuple):
    """A task as a step left it."""

    task: Task
    step: JournalStep  # the last one applied; its number is 0 if the task has made none
    settings: TaskSettings  # of the task's next step; the task still has those of its last one
    stored: Stored  # its snapshots
    imported: str | None = None  # the model that it began with
    foreign: Foreign = Foreign()  # records of other programs in the predictions that were read back


class Progress(NamedTuple):
    """The progress of a recovery."""

    number: int  # of the last step applied again
    first: int  # of the first step to apply again, and of the last
    last: int
    records: int  # applied again so far


Report = Callable[[Progress], None]
Recovery = Generator[Progress, None, Recovered]
"""A recovery that applies one step of the journal for each progress that it yields."""


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
    """Recover a task without interruption; see `recovery`."""
    steps = recovery(broker, topics, partition, settings, given=given, change_settings=change_settings)
    return _finish(steps, progress)


def _finish(steps: Recovery, progress: Report) -> Recovered:
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
    """Bring a task to its last commit step by step; write nothing.

    Args:
        broker: where the topics are.
        topics: the topics.
        partition: the task.
        settings: the user's; see `resolve`.
        given: which of the settings the user gave; None: all. The others are the task's own, if it has started.
        change_settings: whether given settings that differ apply from the next step on.
        pulse: called while snapshots are read, before the first step.

    Raises:
        JournalError: given settings differ, or records that are needed are gone.
        ParameterError: the learner does not support the policies.
    """
    place = f"{topics.journal}/{partition}"
    begun = settings_in_force(broker, topics, partition, pulse)
    if begun and "seed" not in begun:  # a model has only those that it depends on
        place = f"the model imported into {topics.snapshots}/{partition}"
    # Before the recovery, which may take long: settings that are refused are refused at once.
    settings = resolve(begun, settings, given, change=change_settings, place=place)
    recovered = yield from _rebuild(broker, topics, partition, settings, pulse=pulse)
    if recovered.step.number > 0:
        now = stored_settings(recovered.task.settings)
        settings = resolve(now, settings, given, change=change_settings, place=place)
        for topic, (_, offset) in (
            (topics.contexts, recovered.step.contexts),
            (topics.feedback, recovered.step.feedback),
        ):
            check_kept(broker, TopicPartition(topic, partition), offset, offset)
    settings.check_policies(recovered.task.learner)
    return recovered._replace(settings=settings)


Observer = Callable[[int, Effects], None]
"""Receives the number of a step and its output."""

Decides = Callable[[Task, JournalStep], None]
"""Gives a task the shared model on which a step was decided."""


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
    """The state of a task after its last step or an earlier one, without a shared model; write nothing.

    Args:
        broker: where the topics are.
        topics: the topics.
        partition: the task.
        settings: settings that it must have after that step; None: any.
        progress: receives the progress after each step.
        until: number of the last step to apply; None: all.
        snapshots: False to begin with the journal's first step.
        observe: receives the output of each step that is applied again.
        decides: called before each step of a task on a shared model, which then decides again; None: its decisions
            are those that were published.

    Raises:
        JournalError: it has other settings, has made no step, or records that are needed are gone.
    """
    steps = _rebuild(broker, topics, partition, settings, until, snapshots=snapshots, observe=observe, decides=decides)
    recovered = _finish(steps, progress)
    if settings is not None:
        resolve(stored_settings(recovered.task.settings), settings, place=f"{topics.journal}/{partition}")
    return recovered


def _rebuild(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings | None,  # of a task that has made no step
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
        recovered = _from_snapshot(broker, topics, stored, last, journal, pulse)
    else:
        recovered = _from_beginning(broker, topics, stored, settings, journal, pulse)
    stored.release()
    if last is None:
        return recovered
    task, number = recovered.task, recovered.step.number
    final = last.number if until is None else min(until, last.number)
    first, records = number + 1, 0
    inputs: Inputs | None = None
    published: Published | None = None
    with ExitStack() as stack:
        for step in _steps_after(broker, journal, number, until):
            if inputs is None:
                inputs = stack.enter_context(closing(Inputs(broker, topics, partition, step, last)))
                if decides is None and isinstance(task.model, Recall):
                    published = stack.enter_context(closing(Published(broker, topics, partition, first)))
                yield Progress(number, first, final, 0)
            if step.settings not in (None, task.settings):
                _change_settings(task, step, journal)
            if decides is not None:
                decides(task, step)
            elif published is not None and isinstance(task.model, Recall):
                task.model.expect(step.updates, published.decisions(step))
            batch = inputs.of(step)
            try:
                observe(step.number, task.step(batch, step.number, step.partitions))
            except RecallError as error:
                raise _inputs_changed(step, journal, str(error)) from error
            _check_same(task, step, journal)
            records += len(batch)
            recovered = recovered._replace(step=step)
            yield Progress(step.number, first, final, records)
    foreign = Foreign() if published is None else published.foreign
    return recovered._replace(settings=task.settings, foreign=foreign)


def _from_snapshot(
    broker: Broker, topics: Topics, stored: Stored, last: JournalStep | None, journal: TopicPartition, pulse: Pulse
) -> Recovered:
    assert stored.newest is not None
    place = f"the snapshot in {topics.snapshots}/{journal.partition}, generation {stored.newest.number},"
    found = decode(stored.newest, pulse)
    settings, step = task_settings(settings_of(found, place)), found.step
    if last is None or last.number < step.number:
        beginning = broker.beginnings([journal])[journal]
        if last is None and beginning > 0:
            raise _kept_from(journal, step.number + 1, beginning)
        raise UnrecoverableError(
            f"{place} was taken after step {step.number} of {journal.topic}/{journal.partition}, which holds "
            f"{'no step' if last is None else f'steps up to {last.number}'}: the topic was made anew since"
        )
    task = restore(found, settings, topics.contexts, stored.newest.place)
    stored.taken_ms, stored.taken_of = found.stream_ms, step.ledger
    return Recovered(task, step, settings, stored)


def _from_beginning(
    broker: Broker, topics: Topics, stored: Stored, wanted: TaskSettings | None, journal: TopicPartition, pulse: Pulse
) -> Recovered:
    """The task before its first step: with the settings of the journal, or else the wanted ones."""
    place, partition = f"{journal.topic}/{journal.partition}", journal.partition
    record, first = next(read_journal(broker, journal), (None, None))
    beginning = broker.beginnings([journal])[journal]
    if beginning > 0 if first is None else first.number != 1:
        raise _kept_from(journal, 1, beginning)
    settings = wanted if first is None else first.settings
    if settings is None:
        raise JournalError(f"{place} is empty: no step has been made")
    shared = settings.model == "shared"
    imported = imported_model(broker, topics, pulse) if shared else stored.imported and stored.imported.whole
    where = f"{topics.snapshots}/{MODEL_PARTITION if shared else partition}"
    if first is None or record is None:
        tps = [TopicPartition(topic, partition) for topic in (topics.contexts, topics.feedback)]
        contexts, feedback = broker.beginnings(tps).values()
    else:
        if imported != first.imported and (shared or first.imported is not None):
            raise UnrecoverableError(
                f"{place} was begun with {_named(first.imported)}; {where} holds {_named(imported)}: the topic has "
                "changed since"
            )
        imported, contexts, feedback = first.imported, first.contexts[0], first.feedback[0]
        stored.taken_ms = record.append_ms
    stored.taken_of = Ledger()
    step = JournalStep(0, (contexts, contexts), (feedback, feedback), 0, Ledger())
    if shared or imported is None or stored.imported is None:
        return Recovered(Task(settings, topics.contexts), step, settings, stored, imported)
    found = decode(stored.imported, pulse)
    where = f"the model imported into {where}"
    resolve(settings_of(found, where), settings, place=where)
    return Recovered(restore(found, settings, topics.contexts, stored.imported.place), step, settings, stored, imported)


def _named(imported: str | None) -> str:
    return "no imported model" if imported is None else f"the imported model {imported[:16]}"


def _kept_from(journal: TopicPartition, number: int, beginning: int) -> UnrecoverableError:
    """The journal has lost steps that are needed."""
    return UnrecoverableError(
        f"recovery needs {journal.topic}/{journal.partition} from step {number} on; it is kept from offset "
        f"{beginning} on: what came before it is gone; set its retention.ms to -1"
    )


def _steps_after(broker: Broker, journal: TopicPartition, number: int, until: int | None) -> Iterator[JournalStep]:
    """The steps of a journal after a number.

    Raises:
        JournalError: they are not consecutive, or some are gone.
    """
    for expected, (_, step) in enumerate(read_from_step(broker, journal, number + 1), number + 1):
        if step.number != expected:
            beginning = broker.beginnings([journal])[journal]
            if expected == number + 1 and beginning > 0:
                raise _kept_from(journal, expected, beginning)
            raise UnrecoverableError(
                f"{journal.topic}/{journal.partition}: expected step {expected}; got {step.number}: another program "
                "has written to it"
            )
        if until is not None and step.number > until:
            return
        yield step


def _change_settings(task: Task, step: JournalStep, journal: TopicPartition) -> None:
    """Change to the settings of a step; those that cannot change must be the same."""
    assert step.settings is not None
    before = f"{journal.topic}/{journal.partition}, before step {step.number},"
    task.change_settings(resolve(stored_settings(task.settings), step.settings, change=True, place=before))


def _check_same(task: Task, step: JournalStep, journal: TopicPartition) -> None:
    """Compare the counts after a step that was applied again with those of the journal."""
    expected, got = (*step.ledger, step.updates, step.alarms), (*task.join.ledger(), task.updates, task.alarms)
    if got != expected:
        counts = zip((*Ledger._fields, "updates", "alarms"), expected, got, strict=True)
        wrong = ", ".join(f"expected {name} {known}; got {found}" for name, known, found in counts if known != found)
        raise _inputs_changed(step, journal, wrong)


def _inputs_changed(step: JournalStep, journal: TopicPartition, difference: str) -> UnrecoverableError:
    return UnrecoverableError(
        f"step {step.number} of {journal.topic}/{journal.partition}: {difference}: the inputs have changed since they "
        "were applied"
    )
