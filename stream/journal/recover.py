"""Recovers a task's state after its last commit or after an earlier step, from snapshots, journal and inputs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple, ParamSpec

from stream.journal.format import JournalError, JournalStep, UnrecoverableError, stored_settings, task_settings
from stream.journal.reading import (
    Given,
    Inputs,
    Published,
    check_kept,
    last_step,
    read_from_step,
    read_journal,
    resolve,
    settings_in_force,
)
from stream.kafka.port import Broker
from stream.shared.view import Recall, RecallError
from stream.snapshots.chunks import MODEL_PARTITION, Parts, Pulse, Stored, finish, imported_model, reading_snapshots
from stream.snapshots.state import decode, decoding, restore, restoring
from stream.task.settings import TaskSettings
from stream.task.task import Effects, Task
from stream.wire.classes import NewClassesError
from stream.wire.ledger import Ledger
from stream.wire.records import Foreign, TopicPartition
from stream.wire.topics import Topics


class Recovered(NamedTuple):
    """A task restored to its state after a step."""

    task: Task
    step: JournalStep  # the last step applied; its number is 0 before the first step
    settings: TaskSettings  # settings for the next step; `task.settings` are still those of the last step
    stored: Stored  # the task's snapshots
    imported: str | None = None  # digest of the imported model with which the task started
    foreign: Foreign = Foreign()  # records from other programs found in the predictions topic


class Progress(NamedTuple):
    """The progress of a recovery."""

    number: int  # number of the last step applied again
    first: int  # number of the first step to apply again
    last: int  # number of the last step to apply again
    records: int  # records applied again so far


Report = Callable[[Progress], None]
Recovery = Parts[Recovered]
"""A generator that recovers a task. It yields True after each part of the preparations and after each step."""

Observer = Callable[[int, Effects], None]
"""A callback that is called after a step was applied again, with the step's number and output."""

Decides = Callable[[Task, JournalStep], None]
"""A callback that is called before a step is applied again. It sets the task's model to the version with which the step
made its decisions."""

P = ParamSpec("P")


def at_once(recovery: Callable[P, Recovery]) -> Callable[P, Recovered]:
    """Return a function that runs a recovery to its end and returns the result."""

    def recover(*args: P.args, **kwargs: P.kwargs) -> Recovered:
        return finish(recovery(*args, **kwargs))

    return recover


def recovery(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings,
    progress: Report = lambda progress: None,
    *,
    given: Given = None,
    change_settings: bool = False,
    pulse: Pulse = lambda: None,
) -> Recovery:
    """Restore a task to its last commit, step by step, without writing anything.

    Args:
        broker: the broker.
        topics: the topics.
        partition: the task.
        settings: the user's settings; see `resolve`.
        progress: called with the progress before the first step and after each step.
        given: names of the settings that the user set, or None for all. For all other settings, a task that has started
            keeps its own values.
        change_settings: whether the user's settings replace the task's settings from the next step on.
        pulse: called repeatedly while snapshots are read, before the first step.

    Raises:
        JournalError: the user's settings differ from those of the task, or required records are deleted.
        ParameterError: the learner does not support the policies.
    """
    place = f"{topics.journal}/{partition}"
    current = settings_in_force(broker, topics, partition, pulse)
    yield True
    if current and "seed" not in current:  # an imported model has only the settings that its state depends on
        place = f"the model imported into {topics.snapshots}/{partition}"
    # A recovery can take a long time. The settings are checked first, so that wrong settings are rejected at once.
    settings = resolve(current, settings, given, change=change_settings, place=place)
    recovered = yield from rebuilding(broker, topics, partition, settings, progress, pulse=pulse)
    step = recovered.step
    if step.number > 0:
        now = stored_settings(recovered.task.settings)
        settings = resolve(now, settings, given, change=change_settings, place=place)
        for topic, (_, offset) in ((topics.contexts, step.contexts), (topics.feedback, step.feedback)):
            check_kept(broker, TopicPartition(topic, partition), offset, offset)
    settings.check_policies(recovered.task.learner)
    return recovered._replace(settings=settings)


def rebuilding(
    broker: Broker,
    topics: Topics,
    partition: int,
    settings: TaskSettings | None = None,
    progress: Report = lambda progress: None,
    *,
    until: int | None = None,
    snapshots: bool = True,
    observe: Observer = lambda number, effects: None,
    decides: Decides | None = None,
    pulse: Pulse = lambda: None,
) -> Recovery:
    """Restore a task to its last step or an earlier one, without a shared model and without writing anything.

    Args:
        broker: the broker.
        topics: the topics.
        partition: the task.
        settings: settings for a task that has made no step. With None, a task that has made no step is an error.
        progress: called with the progress before the first step and after each step.
        until: number of the last step to apply; None means all steps.
        snapshots: whether to use snapshots. If False, the recovery starts with the journal's first step.
        observe: called with the output of each step that is applied again.
        decides: called before each step of a task with a shared model, so that the step makes the same decisions again.
            With None, the published decisions are used.
        pulse: called repeatedly while snapshots are read, before the first step.

    Raises:
        JournalError: the task has made no step, or required records are deleted.
    """
    journal = TopicPartition(topics.journal, partition)
    stored = yield from reading_snapshots(broker, topics, partition, until if snapshots else 0)
    last = last_step(broker, journal)
    yield True
    if stored.newest is None:
        recovered = _from_beginning(broker, journal, topics, stored, settings, pulse)
    else:
        recovered = yield from _from_snapshot(topics, stored)
    stored.release()
    yield True
    if last is None or last.number < recovered.step.number:
        if recovered.step.number > 0:
            raise _lost(broker, journal, recovered.step.number + 1, last)
        return recovered
    task, first = recovered.task, recovered.step.number + 1
    final, records = last.number if until is None else min(until, last.number), 0
    inputs: Inputs | None = None
    published: Published | None = None
    with ExitStack() as stack:
        for step in _steps(broker, journal, first, final, last):
            if inputs is None:
                inputs = stack.enter_context(closing(Inputs(broker, topics, partition, step, last)))
                if decides is None and isinstance(task.model, Recall):
                    published = stack.enter_context(closing(Published(broker, topics, partition, first)))
                progress(Progress(first - 1, first, final, 0))
            if step.settings is not None and step.settings != task.settings:
                before = f"{journal.topic}/{partition}, before step {step.number},"
                known = stored_settings(task.settings)
                task.change_settings(resolve(known, step.settings, change=True, place=before))
            names, adds = ((), ()) if step.log is None else (step.log.names, step.log.adds)
            if names:
                task.classes.add(names)
            if decides is not None:
                decides(task, step)
            elif published is not None and isinstance(task.model, Recall):
                task.model.expect(step.updates, published.decisions(step))
            batch = inputs.of(step)
            try:
                observe(step.number, task.step(batch, step.number, step.partitions, adds))
            except (RecallError, NewClassesError) as error:
                raise _inputs_changed(step, journal, str(error)) from error
            _check_same(task, step, journal)
            records += len(batch)
            recovered = recovered._replace(step=step)
            progress(Progress(step.number, first, final, records))
            yield True
    foreign = Foreign() if published is None else published.foreign
    return recovered._replace(settings=task.settings, foreign=foreign)


recover = at_once(recovery)
rebuild = at_once(rebuilding)


def _from_snapshot(topics: Topics, stored: Stored) -> Recovery:
    """Return the task restored from its newest snapshot."""
    assert stored.newest is not None
    snapshot = yield from decoding(stored.newest)
    settings = task_settings(snapshot.settings)
    stored.taken_ms, stored.taken_of = snapshot.stream_ms, snapshot.step.ledger
    task = yield from restoring(snapshot, settings, topics.contexts, stored.newest.place)
    return Recovered(task, snapshot.step, settings, stored)


def _from_beginning(
    broker: Broker, journal: TopicPartition, topics: Topics, stored: Stored, wanted: TaskSettings | None, pulse: Pulse
) -> Recovered:
    """Return the task before its first step, with the journal's settings or, if it is empty, the user's settings."""
    place, partition = f"{journal.topic}/{journal.partition}", journal.partition
    record, first = next(read_journal(broker, journal), (None, None))
    if broker.beginnings([journal])[journal] > 0 if first is None else first.number != 1:
        raise _lost(broker, journal, 1, first)
    settings = wanted if first is None else first.settings
    if settings is None:
        raise JournalError(f"{place} is empty: the task has not started")
    shared = settings.model == "shared"
    imported = imported_model(broker, topics, pulse) if shared else stored.imported and stored.imported.whole
    where = f"{topics.snapshots}/{MODEL_PARTITION if shared else partition}"
    if first is None or record is None:
        tps = [TopicPartition(topic, partition) for topic in (topics.contexts, topics.feedback)]
        contexts, feedback = broker.beginnings(tps).values()
    else:
        if imported != first.imported and (shared or first.imported is not None):
            raise UnrecoverableError(
                f"{place} was started with {_named(first.imported)}; {where} contains {_named(imported)}. The "
                "snapshots topic has changed"
            )
        imported, contexts, feedback = first.imported, first.contexts[0], first.feedback[0]
        stored.taken_ms = record.append_ms
    stored.taken_of = Ledger()
    step = JournalStep(0, (contexts, contexts), (feedback, feedback), 0, Ledger())
    if shared or imported is None or stored.imported is None:
        return Recovered(Task(settings, topics.contexts), step, settings, stored, imported)
    snapshot = decode(stored.imported, pulse)
    where = f"the model imported into {where}"
    resolve({"model": "own", **snapshot.settings}, settings, place=where)
    return Recovered(
        restore(snapshot, settings, topics.contexts, stored.imported.place), step, settings, stored, imported
    )


def _named(imported: str | None) -> str:
    return "no imported model" if imported is None else f"the imported model {imported[:16]}"


def _lost(broker: Broker, journal: TopicPartition, number: int, found: JournalStep | None) -> UnrecoverableError:
    """Return the error that reports missing steps in the journal."""
    place, beginning = f"{journal.topic}/{journal.partition}", broker.beginnings([journal])[journal]
    if beginning > 0:
        return UnrecoverableError(
            f"recovery needs {place} from step {number} on; the journal begins at offset {beginning}. Earlier steps "
            "were deleted. Set its retention.ms to -1"
        )
    return UnrecoverableError(
        f"{place}: expected step {number}; got {'no step' if found is None else found.number}. Another program wrote "
        "to the journal, or the topic was recreated"
    )


def _steps(broker: Broker, journal: TopicPartition, first: int, final: int, last: JournalStep) -> Iterator[JournalStep]:
    """Yield the steps of a journal with numbers from `first` to `final`.

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
    """After a step was applied again, check that the task's counts equal the counts in the journal."""
    expected, got = (*step.ledger, step.updates, step.alarms), (*task.join.ledger(), task.version, task.alarms)
    if got != expected:
        counts = zip((*Ledger._fields, "updates", "alarms"), expected, got, strict=True)
        wrong = ", ".join(f"expected {name} {known}; got {found}" for name, known, found in counts if known != found)
        raise _inputs_changed(step, journal, wrong)


def _inputs_changed(step: JournalStep, journal: TopicPartition, difference: str) -> UnrecoverableError:
    return UnrecoverableError(
        f"step {step.number} of {journal.topic}/{journal.partition}: {difference}. The inputs have changed since the "
        "step"
    )
