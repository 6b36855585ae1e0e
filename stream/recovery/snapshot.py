"""Taking a snapshot of a task, and restoring a task from one."""

from collections.abc import Mapping
from typing import Any

from stream.joining.task import Task
from stream.joining.task_settings import TaskSettings
from stream.learners import State
from stream.recovery.snapshot_format import Position, Snapshot, SnapshotError
from stream.recovery.stored_settings import stored_settings


def take(task: Task, position: Position, spare: State | None = None) -> Snapshot:
    """The state of a task, with no part that a later step changes.

    Args:
        task: the task, between two steps.
        position: where it stands.
        spare: a state of a learner with the same settings, whose arrays are overwritten. Memory that a process has not
            touched yet can cost ten times as much as the copy itself: 250 ms against 10 ms for 100 MB, measured.
    """
    join = task.join
    return Snapshot(
        stored_settings(task.settings),
        position,
        task.updates,
        task.decided_at_ms,
        join.watermark_ms,
        join.ledger(),
        join.overflows(),
        _model(task, spare),
        _entries(join.pending),
        _entries(join.orphans),
        _entries(join.retained),
    )


def restore(snapshot: Snapshot, settings: TaskSettings, contexts_topic: str) -> Task:
    """The task that a snapshot was taken of.

    Raises:
        SnapshotError: the learner's state does not fit the settings.
    """
    task = Task(settings, contexts_topic)
    try:
        if task.view is None:
            task.learner.load(snapshot.learner)
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"the state in the snapshot does not fit {settings.learner}: {error}") from error
    task.updates = snapshot.updates
    task.decided_at_ms = snapshot.decided_at_ms
    join = task.join
    join.watermark_ms = snapshot.watermark_ms
    join.pending.update(zip(*snapshot.pending, strict=True))
    join.orphans.update(zip(*snapshot.orphans, strict=True))
    join.retained.update(zip(*snapshot.retained, strict=True))
    join.restore_counts(snapshot.ledger, snapshot.overflows)
    return task


def _model(task: Task, spare: State | None) -> State:
    """The state of a task's own model; a shared one is no part of it."""
    if task.view is not None:
        return {}
    return task.learner.state() if spare is None else task.learner.state_into(spare)


def _entries(kept: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """Keys and values of one of the join's maps, oldest first.

    By the methods of dict, which are four times as fast as OrderedDict's own; the order is the same, because the join
    moves no entry that it has.
    """
    assert isinstance(kept, dict)
    return list(dict.keys(kept)), list(dict.values(kept))
