"""Places the state of a stopped pipeline in the tasks of a new one. The functions depend only on their arguments.

Each pending or deferred decision, orphan and settled id is placed in exactly one new task. With the same number of
partitions, it stays in its partition; otherwise, it moves to the partition that Kafka's default partitioner chooses for
its id. Entries from several tasks are ordered by time, as if one task had received them.

Each new task begins with its *opening*: a snapshot, and a journal record of step 1 without records. The ledger after
step 1 is the opening balance, which counts the unsettled decisions and the orphans; all other counts begin at 0.

Times are carried over as they are, except that a shift of the old broker's clock (`JournalStep.clock_shift_ms`) is
added, because it does not apply to the new topics. Stream time begins at the largest of the old tasks.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from stream.errors import OnebitError
from stream.learners import Learner, State
from stream.recovery.commit import predictions_digest
from stream.recovery.state import ModelSnapshot, Snapshot
from stream.recovery.steps import JournalStep, LogStep
from stream.task.answers import Answer
from stream.task.join import Orphan, Pending, Retained
from stream.task.placement import partitions_of
from stream.task.play import floored
from stream.task.settings import Sharing, TaskSettings
from stream.task.stored_settings import stored_settings
from stream.wire.control import Balance
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import DecisionTime


class MoveError(OnebitError):
    """A pipeline cannot be moved. The message contains the remedy."""


class NoStateError(MoveError):
    """The pipeline has not taken a step, so it has no state."""


class LimitError(MoveError):
    """A new task would have more entries than its settings allow."""


class Stopped(NamedTuple):
    """A stopped pipeline's state. All decision times are known, and all requests are applied."""

    settings: TaskSettings
    tasks: Sequence[Snapshot]  # by partition
    model: ModelSnapshot | None = None  # the shared model, with all entries of the log; None if each task has its own

    @property
    def stream_ms(self) -> int:
        """The largest stream time of all tasks, in the time of their brokers."""
        return max(task.stream_ms + task.step.clock_shift_ms for task in self.tasks)

    @property
    def balance(self) -> Balance:
        """The number of unsettled entries in all tasks."""
        return balance_of(task.step.ledger for task in self.tasks)


class Plan(NamedTuple):
    """A new pipeline."""

    partitions: int
    model: Sharing
    seed: int
    model_from: int | None = None  # the partition whose model all new tasks get


class Opening(NamedTuple):
    """What the openings contain in addition to the old state."""

    feedback: str  # the new feedback topic
    offsets: Sequence[tuple[int, int]]  # the first offsets in the new contexts and feedback topics, by partition
    control: int = 0  # offset in the new control topic after all requests
    clock_shift_ms: int = 0  # see `JournalStep`
    # Latest stream time with which each task can begin, because an earlier record waits in its feedback topic; None if
    # there is no such record.
    stream_ms: Mapping[int, int] = {}


ORPHAN_OFFSET = -1
"""The offset of a record that is not in the new feedback topic."""

UNSETTLED = ("pending", "deferred", "shown")
_WITH_OTHERS = ("more", "answers")
"""Entries that are in the same task as the orphan or the decision with their id."""

_LIMITS = {"pending": "pending_max", "orphans": "orphans_max", "retained": "retained_max"}

_Row = tuple[Any, ...]
"""An id, its entry and, for a settled id, the time at which it was settled; see `Snapshot`."""


class Placement:
    """A stopped pipeline's state, placed in the tasks of a new pipeline."""

    def __init__(self, old: Stopped, plan: Plan) -> None:
        """Place all entries.

        Raises:
            MoveError: the models or the entries do not fit the new pipeline.
            ParameterError: the learner does not support the kind of model.
        """
        self._old = old
        self._partitions = plan.partitions
        self.settings = replace(old.settings, model=plan.model, seed=plan.seed).resolved()
        self.settings.make_learner()
        self._keeps = plan.model == "own" == old.settings.model and plan.model_from is None
        self._keeps = self._keeps and plan.partitions == len(old.tasks)
        self._model_from = _model_from(old, plan) if not self._keeps else None
        self._names = self._checked_names()
        # By new partition and kind of entry: the rows with their times and their old partitions.
        self._rows: dict[int, dict[str, list[tuple[int, int, _Row]]]] = defaultdict(lambda: defaultdict(list))
        for source, task in enumerate(old.tasks):
            self._place(source, task)
        for partition in range(plan.partitions):
            self._arrange(partition)

    def task(self, partition: int, opening: Opening) -> Snapshot:
        """Return a new task's opening snapshot, with its own copy of the model."""
        rows = self._rows[partition]
        columns = {name: _columns([row for _, _, row in rows[name]]) for name in (*UNSETTLED, "retained")}
        orphans, more = (
            [_moved_orphan(row, opening.feedback, partition) for _, _, row in rows[name]]
            for name in ("orphans", "more")
        )
        answers = [_moved_answer(row) for _, _, row in rows["answers"]]
        counts = {name: len(rows[name]) for name in (*UNSETTLED, "orphans", *_WITH_OTHERS)}
        waiting = counts["orphans"] + counts["more"]
        decided = sum(counts[name] for name in UNSETTLED)
        ledger = Ledger(
            contexts=decided, decided=decided, pending=counts["pending"] + counts["shown"], deferred=counts["deferred"],
            feedback=waiting + counts["answers"], orphans_waiting=waiting, answered=counts["answers"],
        )  # fmt: skip
        state, updates, alarms, names = self._model_of(partition)
        is_shared = self.settings.model == "shared"
        contexts, feedback = opening.offsets[partition]
        step = JournalStep(
            1, (contexts, contexts), (feedback, feedback), updates, ledger,
            partitions=self._partitions,
            alarms=alarms,
            log=LogStep(0, 0, 0, 0, predictions_digest(()), tuple(names)) if is_shared else None,
            settings=self.settings,
            clock_shift_ms=opening.clock_shift_ms,
            control=opening.control,
            opens=True,
        )  # fmt: skip
        dated_ms = max(task.dated_ms + task.step.clock_shift_ms for task in self._old.tasks)
        stream_ms = min(self._old.stream_ms, opening.stream_ms.get(partition, self._old.stream_ms))
        return Snapshot(
            stored_settings(self.settings), step, dated_ms, undated={}, stream_ms=stream_ms, classes=names,
            learner=state, pending=columns["pending"], orphans=_columns(orphans), retained=columns["retained"],
            deferred=columns["deferred"], shown=columns["shown"], more=_columns(more), answers=_columns(answers),
        )  # fmt: skip

    def shared_model(self, opening: Opening) -> ModelSnapshot:
        """Return the new shared model at version 0."""
        learner, updates, names = self._common
        for partition in range(self._partitions):
            self._observe(learner, partition)
        return ModelSnapshot(
            stored_settings(self.settings), 0, updates, 0, opening.control, {}, names, learner.state()
        )  # fmt: skip

    def _place(self, source: int, task: Snapshot) -> None:
        """Place a task's entries."""
        assert not task.undated, "all decision times are known"
        shift_ms, times = task.step.clock_shift_ms, dict[int, DecisionTime]()
        for name in (*UNSETTLED, "orphans", "retained", *_WITH_OTHERS):
            rows = list(zip(*getattr(task, name), strict=True))
            targets = [source] * len(rows)
            if self._partitions != len(self._old.tasks) and rows:
                targets = partitions_of([row[0].encode() for row in rows], self._partitions).tolist()
            for row, target in zip(rows, targets, strict=True):
                shifted = _shifted(row, shift_ms, times) if shift_ms else row
                self._rows[target][name].append((_time_of(shifted), source, self._correctable(shifted, source)))

    def _correctable(self, row: _Row, source: int) -> _Row:
        """Return a settled id without its decision if the new model has not learned the decision's first bit."""
        event_id, entry, *settled_ms = row
        is_kept = isinstance(entry, Retained) and entry.pending is not None
        if not is_kept or not (self._is_foreign(source) or self._redraws):
            return row
        return event_id, entry._replace(pending=None), *settled_ms

    @cached_property
    def _redraws(self) -> bool:
        """Whether a correction would use a different draw than the update that it reverses."""
        return self.settings.seed != self._old.settings.seed and self.settings.make_learner().randomised_update

    def _is_foreign(self, source: int) -> bool:
        """Return whether the new model comes from another task, and has not observed this task's decisions."""
        return self._model_from not in (None, source)

    def _arrange(self, partition: int) -> None:
        """Order a new task's entries by time, and check them."""
        rows = self._rows[partition]
        for name in rows:
            rows[name].sort(key=itemgetter(0))
        found = dict[str, int]()
        for name in UNSETTLED:
            for _, source, row in rows[name]:
                if (other := found.setdefault(row[0], source)) != source:
                    raise MoveError(
                        f"event {row[0]!r}: expected one unsettled decision; got one in partition {other} and one in "
                        f"partition {source}, which would be in the same task. Start a learner, and stop it when one "
                        "of them has expired"
                    )
        latest = {row[0]: place for place, (*_, row) in enumerate(rows["retained"])}
        rows["retained"] = [
            each
            for place, each in enumerate(rows["retained"])
            if latest[each[2][0]] == place and each[2][0] not in found
        ]
        orphans = {each[2][0]: each for each in rows["orphans"]}
        if len(orphans) < len(rows["orphans"]):
            raise MoveError(
                f"partition {partition} would have two orphans with the same id. Start a learner, and stop it when "
                "they are dropped, after the orphan window"
            )
        counts = {"orphans": len(rows["orphans"]) + len(rows["more"]), "retained": len(rows["retained"])}
        counts["pending"] = sum(len(rows[name]) for name in UNSETTLED)
        for name, count in counts.items():
            if count > (limit := getattr(self.settings.join, _LIMITS[name])):
                raise LimitError(
                    f"partition {partition}: expected at most {limit:,} entries ({_LIMITS[name]}); got {count:,}. Use "
                    f"more partitions, or raise {_LIMITS[name]} before the move (onebit change)"
                )

    def _model_of(self, partition: int) -> tuple[State, int, int, list[str]]:
        """Return a new task's model, its number of updates and alarms, and the names of open classes."""
        if self.settings.model == "shared":
            return {}, 0, 0, list(self._names)
        if self._keeps:
            task = self._old.tasks[partition]
            return task.learner, task.step.updates, task.step.alarms, task.classes
        learner, updates, names = self._common
        self._observe(learner, partition)
        return learner.state(), updates, int(learner.alarms.sum()), names

    @property
    def _common(self) -> tuple[Learner, int, list[str]]:
        """A new copy of the model that all new tasks get, its number of updates, and the names of open classes."""
        learner = self.settings.make_learner()
        if self._old.model is not None:
            learner.load(self._old.model.learner)
            return learner, self._old.model.updates, list(self._names)
        assert self._model_from is not None
        task = self._old.tasks[self._model_from]
        learner.load(task.learner)
        return learner, task.step.updates, list(self._names)

    def _observe(self, learner: Learner, partition: int) -> None:
        """Observe a new task's unsettled decisions that the model has not observed, in the order of their times."""
        rows = (each for name in UNSETTLED for each in self._rows[partition][name] if self._is_foreign(each[1]))
        for _, _, (_, pending, *_) in sorted(rows, key=itemgetter(0)):
            if pending.decision.can_teach:
                decision = pending.decision
                if self.settings.log_reading is not None:
                    decision = floored(decision, self.settings.learned_propensity_min)
                learner.observe(pending.x, decision)

    def _checked_names(self) -> list[str]:
        """Return the names of the model's open classes, after checking that all tasks have the same order."""
        if self._keeps:
            return []
        if self._old.model is not None:
            return self._old.model.classes
        names = self._old.tasks[self._model_from or 0].classes
        for partition, task in enumerate(self._old.tasks):
            if task.classes != names[: len(task.classes)]:
                raise MoveError(
                    f"partition {partition}: expected the classes {names} in the same order as in partition "
                    f"{self._model_from}; got {task.classes}. Move the pipeline with {len(self._old.tasks)} partitions "
                    "and a model per partition"
                )
        return names


def _model_from(old: Stopped, plan: Plan) -> int | None:
    """Return the partition whose model all new tasks get; None if the tasks share a model.

    Raises:
        MoveError: there are several models, or no such partition.
    """
    if old.model is not None:
        if plan.model_from is not None:
            raise MoveError(f"model_from {plan.model_from}: expected a model per partition; got a shared model")
        return None
    if plan.model_from is None and len(old.tasks) > 1:
        raise MoveError(
            f"partitions {plan.partitions}, model {plan.model}: expected {len(old.tasks)} partitions with a model "
            "each, because models cannot be merged or divided. To use one partition's model everywhere, set model_from"
        )
    found = plan.model_from or 0
    if found >= len(old.tasks):
        raise MoveError(f"model_from: expected 0 to {len(old.tasks) - 1}; got {found}")
    return found


def _columns(rows: Sequence[_Row]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*rows, strict=True)))


def _time_of(row: _Row) -> int:
    """Return the time that determines an entry's deadline."""
    entry = row[1]
    if isinstance(entry, Pending):
        assert entry.time.ms is not None
        return entry.time.ms
    if isinstance(entry, Answer):
        return entry.record.append_ms
    return int(entry.since_ms if isinstance(entry, Orphan) else row[2])


def _shifted(row: _Row, shift_ms: int, times: dict[int, DecisionTime]) -> _Row:
    """Return an entry with all times in the broker's time."""

    def dated(pending: Pending) -> Pending:
        assert pending.time.ms is not None
        ms = pending.time.ms + shift_ms
        return pending._replace(time=times.setdefault(ms, DecisionTime(0, ms)))

    event_id, entry, *settled_ms = row
    if isinstance(entry, Pending):
        entry = dated(entry)
    elif isinstance(entry, Orphan):
        entry = entry._replace(since_ms=entry.since_ms + shift_ms)
    elif isinstance(entry, Answer):
        entry = entry._replace(record=entry.record._replace(append_ms=entry.record.append_ms + shift_ms))
    elif entry.pending is not None:
        entry = entry._replace(pending=dated(entry.pending))
    return event_id, entry, *(ms + shift_ms for ms in settled_ms)


def _moved_orphan(row: _Row, feedback: str, partition: int) -> _Row:
    """Return an orphan whose record belongs to the new feedback topic, so that its dead letter can be requeued."""
    event_id, orphan = row
    record = orphan.record._replace(topic=feedback, partition=partition, offset=ORPHAN_OFFSET)
    return event_id, orphan._replace(record=record)


def _moved_answer(row: _Row) -> _Row:
    """Return feedback whose record is not in the new feedback topic."""
    event_id, answer = row
    return event_id, answer._replace(record=answer.record._replace(offset=ORPHAN_OFFSET))


def balance_of(ledgers: Iterable[Ledger]) -> Balance:
    """Return the number of unsettled entries in the tasks with these ledgers."""
    total = total_ledger(ledgers)
    return Balance(total.pending, total.deferred, total.orphans_waiting)
