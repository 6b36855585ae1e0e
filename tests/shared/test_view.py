"""Decisions by tasks that share a model, compared with the reference implementation `tests.oracles.shared_model`."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from stream.learners import registered
from stream.learners.base import KernelLearner
from stream.recovery.state import state_digest
from stream.shared.replica import Replica
from stream.shared.view import View
from stream.task.settings import TaskSettings
from stream.wire.records import Decision, Features, Record
from stream.wire.updates import HEADERS, encode_updates
from tests.oracles.shared_model import LogEntry, SharedModel

K, D = 4, 9


class Case(NamedTuple):
    """A learner with its wrappers. If `corrects` is True, the test corrects some updates."""

    name: str
    parameters: Mapping[str, Any] = {}
    corrects: bool = False
    is_scaled: bool = False
    floor: float = 0.0

    def settings(self) -> TaskSettings:
        scale: Literal["none", "standard"] = "standard" if self.is_scaled else "none"
        actions = {"context": 1, "features": None} if registered()[self.name].for_actions else None
        return TaskSettings(
            self.name, K, D, dict(self.parameters), scale=scale, floor=self.floor, model="shared", actions=actions
        )

    def fresh(self) -> KernelLearner:
        return self.settings().make_shareable_learner()


CASES = {
    "soba-diag": Case("soba-diag"),
    "soba-diag, corrected": Case("soba-diag", corrects=True),
    "soba-adaptive": Case("soba-adaptive"),
    "late-ucb": Case("late-ucb"),
    "late-ucb, corrected": Case("late-ucb", {"drift": "off"}, corrects=True),
    "late-ucb, projected": Case("late-ucb", {"drift": "off", "project": 5}, corrects=True),
    "stack-igw": Case("stack-igw"),
    "confidit, projected": Case("confidit", {"projection": True}),
    "perceptron": Case("perceptron"),
    "soba-diag, corrected, scaled": Case("soba-diag", corrects=True, is_scaled=True),
    "late-ucb, corrected, scaled": Case("late-ucb", {"drift": "off"}, corrects=True, is_scaled=True),
    "late-ucb, corrected, floor": Case("late-ucb", {"drift": "off"}, corrects=True, floor=0.4),
    "confidit, projected, floor": Case("confidit", {"projection": True}, floor=0.4),
    "igw-logistic, scaled, floor": Case("igw-logistic", is_scaled=True, floor=0.4),
}


class Event(NamedTuple):
    x: Features
    u: float
    v: float
    label: int


def events(count: int) -> list[Event]:
    rng = np.random.default_rng(5)
    made = []
    for _ in range(count):
        indices = np.flatnonzero(rng.random(D) < 0.6).astype(np.int32)
        x = Features(indices, rng.normal(size=indices.size))
        made.append(Event(x, float(rng.random()), float(rng.random()), int(rng.integers(K))))
    return made


class Process:
    """A learner process. All its tasks use one replica; each task has a view."""

    def __init__(self, case: Case, tasks: range) -> None:
        self.replica = Replica(case.settings())
        self.views = {task: View(self.replica, task) for task in tasks}


def play(case: Case, processes: list[Process], oracle: SharedModel, steps: int) -> tuple[list[Record], list[str]]:
    """Run steps for random tasks and let replicas read random parts of the log.

    Returns the log, and the steps in which a decision differs from the oracle's decision.
    """
    rng = np.random.default_rng(7)
    coming = iter(events(8 * steps))
    log: list[Record] = []
    last: dict[int, int] = {}
    waiting: dict[int, list[tuple[Event, Decision]]] = {}
    expired: dict[int, list[tuple[Event, Decision]]] = {}
    differing = []
    for number in range(1, steps + 1):
        process = processes[rng.integers(len(processes))]
        if rng.random() < 0.5:
            process.replica.read(log[: rng.integers(len(log) + 1)])
        task = int(rng.choice(list(process.views)))
        view, own_entries = process.views[task], list[LogEntry]()
        with view.step() as entries:
            for _ in range(rng.integers(4)):
                event = next(coming)
                decision = view.learner.predict(event.x, event.u)
                if not same(decision, oracle.decide(task, view.version, own_entries, event.x, event.u)):
                    differing.append(f"step {number} of task {task}, version {view.version}")
                view.observe(event.x, decision)
                waiting.setdefault(task, []).append((event, decision))
                if process.replica.learner.observed:
                    own_entries.append(LogEntry(task, "decided", event.x, decision))
            while waiting.get(task) and rng.random() < 0.6:
                event, decision = waiting[task].pop(rng.integers(len(waiting[task])))
                reward, label = int(decision.action == event.label), event.label
                if case.corrects and rng.random() < 0.5:
                    expired.setdefault(task, []).append((event, decision))
                    reward = 0
                given_label = label if view.learner.needs_label else None
                view.settle(event.x, decision, reward, event.v, given_label)
                own_entries.append(LogEntry(task, "settled", event.x, decision, reward, v=event.v, label=given_label))
            while expired.get(task) and rng.random() < 0.5:
                event, decision = expired[task].pop()
                reward = int(decision.action == event.label)
                view.correct(event.x, decision, 0, reward, event.v)
                own_entries.append(LogEntry(task, "corrected", event.x, decision, reward, 0, event.v))
        if entries:
            for value in encode_updates(task, number, last.get(task, 0), entries, bytes_max=600):
                log.append(Record("u", 0, 2 * len(log), 0, None, value, HEADERS))
            last[task] = number
        oracle.log += own_entries
    return log, differing


def same(one: Decision, other: Decision) -> bool:
    arrays = ((one.scores, other.scores), (one.logged, other.logged))
    return one[:3] == other[:3] and all(np.array_equal(*pair) for pair in arrays)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_decisions_and_replicas_agree_with_models_rebuilt_from_the_log(case: Case) -> None:
    oracle = SharedModel(case.fresh)
    processes = [Process(case, range(2)), Process(case, range(2, 3))]
    log, differing = play(case, processes, oracle, steps=60)
    assert differing == []
    assert len(oracle.log) > 40
    late = Replica(case.settings())
    replicas = [late, *(process.replica for process in processes)]
    for replica in replicas:
        replica.read(log)
    assert [replica.version for replica in replicas] == [len(oracle.log)] * 3
    expected = state_digest([oracle.model(len(oracle.log)).state()])
    assert [state_digest([replica.learner.state()]) for replica in replicas] == [expected] * 3


MOVED_BY_DECISIONS = [
    *(Case(name) for name, learner in registered().items() if learner.observed),
    Case("confidit", {"projection": True}),
    Case("late-ucb", {"project": 5}),
    Case("late-ucb", is_scaled=True),
    Case("stack-igw", is_scaled=True),
]


@pytest.mark.parametrize("case", MOVED_BY_DECISIONS, ids=str)
def test_model_is_restored_bit_for_bit_after_a_step(case: Case) -> None:
    replica = Replica(case.settings())
    view = View(replica, 0)
    before = state_digest([replica.learner.state()])
    with view.step():
        for event in events(5):
            view.observe(event.x, view.learner.predict(event.x, event.u))
        assert state_digest([replica.learner.state()]) != before
    assert state_digest([replica.learner.state()]) == before


def test_model_is_restored_after_a_failed_step() -> None:
    replica = Replica(Case("late-ucb").settings())
    view = View(replica, 0)
    before = state_digest([replica.learner.state()])
    event = events(1)[0]
    decision = view.learner.predict(event.x, event.u)
    with pytest.raises(ValueError, match="logged"), view.step():
        view.observe(event.x, decision._replace(logged=np.zeros(7)))
    assert state_digest([replica.learner.state()]) == before
    assert replica.read([]) == 0


def test_view_remains_usable_after_another_process_continues_the_task() -> None:
    replica = Replica(Case("late-ucb").settings())
    zombie, successor = View(replica, 0), View(replica, 0)
    event = events(1)[0]
    with successor.step() as entries:
        successor.observe(event.x, successor.learner.predict(event.x, event.u))
    (value,) = encode_updates(0, 1, 0, entries)
    replica.read([Record("u", 0, 0, 0, None, value, HEADERS)])
    before = state_digest([replica.learner.state()])
    for view in (zombie, successor):
        with view.step():
            assert state_digest([replica.learner.state()]) == before


def test_replica_cannot_read_during_a_step() -> None:
    replica = Replica(Case("late-ucb").settings())
    with View(replica, 0).step(), pytest.raises(AssertionError):
        replica.read([])


def test_no_log_entry_is_written_for_a_decision_that_does_not_change_the_model() -> None:
    view = View(Replica(Case("soba-diag").settings()), 0)
    event = events(1)[0]
    with view.step() as entries:
        view.observe(event.x, view.learner.predict(event.x, event.u))
    assert entries == []
