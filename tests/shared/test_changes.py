"""Changes of the settings at an entry of a shared model's log.

The log of each test has a change at the entry of task 0's third step. Task 1 reads it one step later:

    task 0   1  2  3 changed     5      7
    task 1   1  2             4     6
    control  0  0  0          0  1  1  1
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from stream.learners import Learner, State
from stream.recovery.state import decode_model, restored_replica, state_digest, take_model
from stream.shared.history import CHANGES_MAX, History
from stream.shared.replica import Replica
from stream.shared.view import View
from stream.task.carry import Carry, Stage, StartModel, carries
from stream.task.settings import TaskSettings
from stream.wire.records import Decision, Features, IndexArray, Record
from stream.wire.updates import (
    CHANGED,
    CORRECTED,
    DECIDED,
    HEADERS,
    SETTLED,
    Entry,
    UpdatesError,
    decode_update,
    encode_updates,
    entry_at,
)
from tests.recovery.test_model_snapshot import model_writer, read_back

K, D = 3, 5
LATE: dict[str, Any] = {"m": 2, "drift": "off"}
ALONE = TaskSettings(
    "banditron", K, D, parameters={"gamma": 0.4}, on_expiry="negative", late="correct", model="shared"
)  # fmt: skip
PAIR = replace(ALONE, challengers={"late-ucb:m=2": LATE})
PROMOTED = replace(PAIR, champion="late-ucb:m=2")
LABELLED = TaskSettings("perceptron", K, D, model="shared")

CHANGES = {
    "window": (ALONE, replace(ALONE, join=replace(ALONE.join, window_ms=5))),
    "challenger added": (ALONE, PAIR),
    "challenger with a model": (ALONE, replace(PAIR, started_from={"late-ucb:m=2": "5f"})),
    "challenger removed": (PAIR, ALONE),
    "champion": (PAIR, PROMOTED),
    "learner replaced": (PROMOTED, replace(ALONE, learner="late-ucb", parameters=LATE)),
    "parameters": (ALONE, replace(ALONE, parameters={"gamma": 0.1})),
    "floor": (ALONE, replace(ALONE, floor=0.3)),
    "holdout": (ALONE, replace(ALONE, holdout=0.3, holdout_policy="constant:1")),
    "own propensities": (LABELLED, replace(LABELLED, floor=0.3)),
    "classes": (PAIR, replace(PAIR, n_classes=K + 2)),
    "features": (PAIR, replace(PAIR, n_features=D + 3)),
}


def trained() -> StartModel:
    """Return a model for the challenger."""
    task = TaskSettings("late-ucb", K, D, parameters=LATE).resolved()
    learner = task.make_learner()
    for x, u, label in contexts(50, seed=7):
        decision = learner.predict(x, u)
        learner.update(x, decision, int(decision.action == label), 0.3, None)
    return StartModel(task, learner.state())


class Pending(NamedTuple):
    x: Features
    decision: Decision
    label: int


class Task:
    """A task with pending decisions. Each step settles the oldest ones and corrects an assumed bit."""

    def __init__(self, log: list[Record], settings: TaskSettings, partition: int, after: TaskSettings) -> None:
        self.replica = Replica(settings, lambda *_: after, models=MODELS.__getitem__)
        self.view = View(self.replica, partition)
        self.settings = settings
        self.log, self.partition = log, partition
        self.control = self.wrote = 0
        self.pending: list[Pending] = []
        self.settled: list[Pending] = []
        self.made: list[list[Decision]] = []

    def read(self) -> None:
        """Read the log, and change the settings as the log does."""
        self.replica.read(self.log)
        if self.replica.control > self.control:
            before, self.settings, self.control = self.settings, self.replica.settings, self.replica.control
            if carries(before, self.settings):
                convert = self.view.change(before, self.settings, MODELS.__getitem__).decision
                self.pending = [one._replace(decision=convert(one.x, one.decision)) for one in self.pending]
                self.settled = [
                    one._replace(decision=convert(one.x, one.decision, Stage.SETTLED)) for one in self.settled
                ]

    def step(self, number: int, *, change: int = 0) -> None:
        needs_label = self.view.learner.needs_label
        with self.view.step() as entries:
            for x, u, label in contexts(4, seed=10 * number + self.partition):
                decision = self.view.learner.predict(x, u, EXISTING if self.settings.n_classes > K else None)
                self.view.observe(x, decision)
                self.pending.append(Pending(x, decision, label))
            for one in self.settled[-1:]:
                if one.decision.can_teach and self.view.learner.retractable:
                    self.view.correct(one.x, one.decision, 0, int(one.decision.action == one.label), 0.3)
            self.settled.clear()
            for one in self.pending[:3]:
                if one.decision.can_teach:
                    self.view.settle(one.x, one.decision, 0, 0.3, one.label if needs_label else None)
                    self.settled.append(one)
            del self.pending[:3]
            if change:
                self.view.add_change(change)
        for value in encode_updates(self.partition, number, self.wrote, entries, control=self.control):
            self.log.append(Record("u", 0, len(self.log), 0, None, value, HEADERS))
        self.wrote = number


EXISTING: IndexArray = np.arange(K, dtype=np.int32)


def contexts(size: int, seed: int) -> Iterator[tuple[Features, float, int]]:
    rng = np.random.default_rng(seed)
    for _ in range(size):
        x = rng.normal(size=D)
        indices = np.flatnonzero(rng.random(D) < 0.8).astype(np.int32)
        yield Features(indices, x[indices]), float(rng.random()), int(rng.integers(K))


MODELS = {"5f": trained()}


def log_of(name: str, *, is_late: bool = True) -> list[Record]:
    """Return the log of two tasks. Without `is_late`, task 1 also reads the change at once."""
    before, after = CHANGES[name]
    log: list[Record] = []
    first, second = (Task(log, before, partition, after) for partition in (0, 1))
    for number in (1, 2):
        for task in (first, second):
            task.read()
            task.step(number)
    first.step(3, change=1)
    if not is_late:
        second.read()
    second.step(4)
    for number in (5, 7):
        first.read()
        first.step(number)
        second.read()
        second.step(number + 1)
    return log


def replica_of(name: str) -> Replica:
    before, after = CHANGES[name]
    return Replica(before, lambda *_: after, models=MODELS.__getitem__)


def digest(replica: Replica) -> tuple[int, int, str, TaskSettings]:
    return replica.version, replica.updates, state_digest([replica.learner.state()]), replica.settings


@pytest.mark.parametrize("name", CHANGES)
def test_replicas_are_equal_with_any_number_of_records_per_read_and_from_any_snapshot(name: str) -> None:
    log = log_of(name)
    assert {update.control for record in log if (update := decode_update(record))} == {0, 1}
    whole, single = replica_of(name), replica_of(name)
    whole.read(log)
    before, after = CHANGES[name]
    for record in log:
        single.read([record])
        newest = read_back(model_writer(take_model(single), "a")).newest
        assert newest is not None
        restored = restored_replica(before, decode_model(newest), lambda *_: after, models=MODELS.__getitem__)
        restored.read(log)
        assert digest(restored) == digest(whole)
    assert digest(single) == digest(whole)
    assert whole.settings == after.resolved()


@pytest.mark.parametrize("name", CHANGES)
def test_shared_model_equals_an_own_model_that_changes_at_the_same_entry(name: str) -> None:
    log, (before, after) = log_of(name, is_late=False), CHANGES[name]
    replica, own = replica_of(name), before.make_learner()
    replica.read(log)
    for record in log:
        own = applied(own, record, before, after)
    assert state_digest([replica.learner.state()]) == state_digest([own.state()])


def applied(learner: Learner, record: Record, before: TaskSettings, after: TaskSettings) -> Learner:
    """Apply a record's entries to a model that belongs to one task."""
    update = decode_update(record)
    assert update is not None
    ends = np.cumsum(update.entries.sizes).tolist()
    for place, end in enumerate(ends):
        kind, x, decision, reward, assumed, v, label, _ = entry_at(update.entries, place, end, learner.n_classes)
        if kind == DECIDED:
            learner.observe(x, decision)
        elif kind == SETTLED:
            learner.update(x, decision, reward, v, None if label < 0 else label)
        elif kind == CORRECTED:
            learner.retract(x, decision, assumed, reward, v)
        elif kind == CHANGED:
            if carries(before, after):
                learner = Carry(before.resolved(), after.resolved(), learner, MODELS.__getitem__).learner
            if before.resolved().champion != after.resolved().champion:
                learner.promote(after.decides)
    return learner


def test_new_learner_learns_nothing_from_a_step_with_the_earlier_settings() -> None:
    log = log_of("challenger added")
    late = next(place for place, record in enumerate(log) if is_late(record))
    replica = replica_of("challenger added")
    replica.read(log[:late])
    before = replica.learner.state()
    replica.read(log[: late + 1])
    changed = changes_of(replica.learner, before)
    assert changed
    assert not any(name.startswith("challenger") for name in changed)
    replica.read(log)
    assert any(name.startswith("challenger") for name in changes_of(replica.learner, before))


def changes_of(learner: Learner, before: State) -> set[str]:
    return {name for name, value in learner.state().items() if not np.array_equal(value, before[name])}


def is_late(record: Record) -> bool:
    update = decode_update(record)
    assert update is not None
    return (update.partition, update.step) == (1, 4)


def test_replica_stops_before_a_change_that_cannot_be_applied_yet() -> None:
    log, (before, after) = log_of("challenger added"), CHANGES["challenger added"]
    ready = False
    replica, other = Replica(before, lambda *_: after if ready else None), replica_of("challenger added")
    replica.read(log)
    change = next(record for record in log if (update := decode_update(record)) and update.change)
    assert (replica.offset, replica.control) == (change.offset, 0)
    ready = True
    replica.read(log)
    other.read(log)
    assert digest(replica) == digest(other)


@pytest.mark.parametrize("control", [1, 7])
def test_record_with_settings_that_the_log_does_not_contain_is_rejected(control: int) -> None:
    view = View(Replica(ALONE), 0)
    with view.step() as entries:
        view.add_class("news")
    (value,) = encode_updates(0, 1, 0, entries, control=control)
    with pytest.raises(UpdatesError) as raised:
        Replica(ALONE).read([Record("u", 0, 0, 0, None, value, HEADERS)])
    assert raised.value.place == "u/0 offset 0"


def test_decision_is_converted_by_one_change_after_another() -> None:
    history = History(ALONE)
    history.change(PAIR, 2)
    history.change(replace(PAIR, n_classes=K + 2).resolved(), 5)
    learner = replace(PAIR, n_classes=K + 2).make_shareable_learner()
    x, u, _ = next(contexts(1, seed=1))
    decision = history.decision(x, ALONE.make_learner().predict(x, u), 0, Stage.PENDING)
    assert (decision.scores.size, decision.logged.size) == (learner.n_classes, learner.logged_size)
    assert history.entry(Entry(SETTLED, x, decision, 1), 5) == Entry(SETTLED, x, decision, 1)


def test_history_names_the_next_change_and_keeps_a_limited_number_of_settings() -> None:
    history = History(ALONE)
    for control in range(1, CHANGES_MAX + 2):
        history.change(replace(ALONE, seed=control), 2 * control)
    assert history.settings_at(0) is None
    assert history.settings_at(2) == replace(ALONE, seed=1)
    assert (history.settings_at(3), history.next_control(3)) == (None, 4)
    assert history.next_control(history.control) == history.control
