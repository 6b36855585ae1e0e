"""Placement of a stopped pipeline's state in new tasks."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stream.recovery.chunks import OPENING_SLOT, RENEWALS_PER_RETENTION, ChunkWriter, Stored
from stream.recovery.moving import LimitError, MoveError, Opening, Placement, Plan, Stopped
from stream.recovery.state import ModelSnapshot, Snapshot, encode, state_digest, take
from stream.recovery.steps import JournalStep
from stream.settings.task_fields import JoinSettings
from stream.task.join import Orphan, Pending, Retained
from stream.task.settings import Sharing, TaskSettings
from stream.task.stored_settings import model_settings
from stream.task.task import Task
from stream.wire.control import Balance
from stream.wire.ledger import Ledger
from stream.wire.records import Decision, DecisionTime, Features, Feedback, Outcome, Record
from stream.wire.topics import partition_for
from tests.pipeline import N_CLASSES, TOPICS, small_task

FEEDBACK = "next.feedback"
KEEP_MS = 400
KINDS = ("pending", "deferred", "shown", "orphans", "retained")
X = Features(np.array([0, 2], np.int32), np.ones(2))


def pending(ms: int) -> Pending:
    return Pending(X, Decision(1, 1, 0.5, np.arange(float(N_CLASSES))), DecisionTime(0, ms))


def entry(kind: str, event_id: str, ms: int) -> tuple[Any, ...]:
    """A row of a snapshot; see `Snapshot`."""
    if kind == "orphans":
        record = Record(TOPICS.feedback, 0, ms, ms, event_id.encode(), b"{}", ())
        return event_id, Orphan(Feedback(event_id, 1), record, ms)
    if kind == "retained":
        return event_id, Retained(Outcome.EXPIRED, 0, 1, pending(ms)), ms
    return event_id, pending(ms)


Entries = dict[tuple[int, str], list[tuple[str, int]]]
"""By partition and kind: ids and times."""


def entries(partitions: int, events: int = 60) -> Entries:
    found: Entries = {}
    for number in range(events):
        place = partition_for(f"e{number}".encode(), partitions), KINDS[number % len(KINDS)]
        found.setdefault(place, []).append((f"e{number}", 100 + number))
    return found


def stopped(settings: TaskSettings, partitions: int, placed: Entries, shift_ms: int = 0) -> Stopped:
    """A stopped pipeline whose models differ. Learner n has learned n + 1 bits."""
    tasks: list[Snapshot] = []
    for partition in range(partitions):
        task = Task(replace(settings, model="own"), TOPICS.contexts)
        for _ in range(partition + 1):
            task.learner.update(X, task.learner.predict(X, 0.5), 0)
        columns = {kind: [entry(kind, *each) for each in placed.get((partition, kind), [])] for kind in KINDS}
        counts = {kind: len(rows) for kind, rows in columns.items()}
        waiting = counts["pending"] + counts["shown"]
        ledger = Ledger(
            contexts=500 + waiting + counts["deferred"], decided=500 + waiting + counts["deferred"], matched=500,
            pending=waiting, deferred=counts["deferred"], feedback=500 + counts["orphans"],
            orphans_waiting=counts["orphans"],
        )  # fmt: skip
        step = JournalStep(7, (0, 9), (0, 9), partition + 1, ledger, partitions=partitions, clock_shift_ms=shift_ms)
        own = take(task, step)._replace(stream_ms=1_000 + partition, dated_ms=900)
        filled: Any = {kind: tuple(map(list, zip(*rows, strict=True))) for kind, rows in columns.items()}
        tasks.append(own._replace(**filled))
    if settings.model == "own":
        return Stopped(settings.resolved(), tasks)
    model = ModelSnapshot(model_settings(settings), 40, 9, 50, 0, {}, [], tasks[0].learner)
    return Stopped(settings.resolved(), [task._replace(learner={}) for task in tasks], model)


def opening(partitions: int, **fields: Any) -> Opening:
    return Opening(FEEDBACK, [(0, 0)] * partitions, **fields)


def ids(snapshot: Snapshot) -> dict[str, list[str]]:
    return {kind: list(getattr(snapshot, kind)[0]) if getattr(snapshot, kind) else [] for kind in KINDS}


@pytest.mark.parametrize(
    ("before", "partitions", "after", "number", "model_from"),
    [
        ("own", 3, "own", 3, None),
        ("own", 3, "own", 5, 1),
        ("own", 3, "shared", 2, 2),
        ("own", 1, "own", 4, None),
        ("shared", 2, "shared", 7, None),
        ("shared", 4, "own", 1, None),
    ],
)
def test_each_entry_is_in_the_partition_of_its_id_exactly_once(
    before: Sharing, partitions: int, after: Sharing, number: int, model_from: int | None
) -> None:
    placed = entries(partitions)
    old = stopped(small_task(model=before), partitions, placed)
    placement = Placement(old, Plan(number, after, 1, model_from))
    found = [placement.task(partition, opening(number)) for partition in range(number)]
    for kind in KINDS:
        expected = Counter(event for (_, of), rows in placed.items() if of == kind for event, _ in rows)
        homes = [(event, home) for home, snapshot in enumerate(found) for event in ids(snapshot)[kind]]
        assert Counter(event for event, _ in homes) == expected
        assert all(partition_for(event.encode(), number) == home for event, home in homes)
    for snapshot in found:
        times = [each.time.ms for each in (*snapshot.pending, [], [])[1]]
        assert times == sorted(times)
        assert snapshot.step.ledger.balances
        assert (snapshot.stream_ms, snapshot.dated_ms) == (1_000 + partitions - 1, 900)
    ledger = [snapshot.step.ledger for snapshot in found]
    balance = Balance(*(sum(getattr(one, name) for one in ledger) for name in Balance.__struct_fields__))
    assert balance == old.balance == Balance(24, 12, 12)
    assert sum(one.matched for one in ledger) == 0


def test_each_task_keeps_its_model_and_misplaced_ids_if_the_partitions_stay_the_same() -> None:
    placed: Entries = {(0, "pending"): [("e1", 100), ("e2", 101), ("e3", 102)], (1, "retained"): [("e4", 50)]}
    old = stopped(small_task(), 2, placed)
    placement = Placement(old, Plan(2, "own", 1))
    for partition, task in enumerate(old.tasks):
        found = placement.task(partition, opening(2))
        assert found.learner == task.learner
        assert (found.step.updates, ids(found)) == (partition + 1, ids(task))


def test_models_of_several_partitions_are_not_merged() -> None:
    for plan in (Plan(3, "own", 1), Plan(2, "shared", 1), Plan(3, "own", 1, 5)):
        with pytest.raises(MoveError):
            Placement(stopped(small_task(), 2, {}), plan)
    with pytest.raises(MoveError):
        Placement(stopped(small_task(model="shared"), 2, {}), Plan(3, "own", 1, 0))


def test_model_of_one_partition_observes_the_decisions_of_the_others() -> None:
    placed: Entries = {(0, "pending"): [("e0", 100)], (1, "pending"): [("e1", 101), ("e2", 102)]}
    settings = small_task("late-ucb", parameters={"m": 2})
    old = stopped(settings, 2, {})
    with_decisions = []
    for partition, task in enumerate(old.tasks):
        learner = settings.make_learner()
        learner.load(task.learner)
        decided = [(event, learner.predict(X, 0.5), ms) for event, ms in placed[partition, "pending"]]
        for _, decision, _ in decided:
            learner.observe(X, decision)
        rows = [(event, Pending(X, decision, DecisionTime(0, ms))) for event, decision, ms in decided]
        with_decisions.append(task._replace(learner=learner.state(), pending=tuple(map(list, zip(*rows, strict=True)))))
    old = old._replace(tasks=with_decisions)
    placement = Placement(old, Plan(1, "shared", 1, 0))
    expected = settings.make_learner()
    expected.load(with_decisions[0].learner)
    for pending_decision in with_decisions[1].pending[1]:
        expected.observe(X, pending_decision.decision)
    assert state_digest([placement.shared_model(opening(1)).learner]) == state_digest([expected.state()])


def test_only_bits_that_the_model_has_learned_can_be_corrected() -> None:
    placed: Entries = {(0, "retained"): [("e0", 100)], (1, "retained"): [("e1", 101)]}
    old = stopped(small_task(on_expiry="negative", late="correct"), 2, placed)
    found = Placement(old, Plan(1, "own", 1, 0)).task(0, opening(1))
    assert [(event, entry.pending is not None) for event, entry, _ in zip(*found.retained, strict=True)] == [
        ("e0", True), ("e1", False),
    ]  # fmt: skip


@pytest.mark.parametrize(("limit", "kind"), [("pending_max", "pending"), ("orphans_max", "orphans")])
def test_state_that_exceeds_a_limit_is_not_placed(limit: str, kind: str) -> None:
    limits = JoinSettings(**{limit: 2})
    placed: Entries = {(0, kind): [("e0", 1), ("e1", 2)], (1, kind): [("e2", 1)]}
    old = stopped(small_task(join=limits, model="shared"), 2, placed)
    with pytest.raises(LimitError):
        Placement(old, Plan(1, "shared", 1))
    Placement(old, Plan(2, "shared", 1))


def test_two_unsettled_decisions_for_one_id_are_not_placed_in_one_task() -> None:
    placed: Entries = {(0, "pending"): [("e0", 1)], (1, "pending"): [("e0", 2)]}
    with pytest.raises(MoveError):
        Placement(stopped(small_task(model="shared"), 2, placed), Plan(1, "shared", 1))


def test_newer_entry_of_a_settled_id_is_kept() -> None:
    placed: Entries = {
        (0, "pending"): [("e0", 9)],
        (0, "retained"): [("e1", 9)],
        (1, "retained"): [("e0", 1), ("e1", 2)],
    }
    found = Placement(stopped(small_task(model="shared"), 2, placed), Plan(1, "shared", 1)).task(0, opening(1))
    assert (ids(found)["pending"], ids(found)["retained"], found.retained[2]) == (["e0"], ["e1"], [9])


def test_shift_of_the_old_clock_ends_and_the_shift_of_the_new_clock_begins() -> None:
    placed: Entries = {(0, "pending"): [("e0", 100)], (0, "orphans"): [("e1", 101)], (0, "retained"): [("e2", 102)]}
    old = stopped(small_task(), 1, placed, shift_ms=5_000)
    found = Placement(old, Plan(1, "own", 1)).task(0, opening(1, clock_shift_ms=-60_000))
    assert (found.pending[1][0].time.ms, found.orphans[1][0].since_ms, found.retained[2]) == (5_100, 5_101, [5_102])
    assert (found.stream_ms, found.step.clock_shift_ms) == (6_000, -60_000)


def test_stream_time_begins_at_a_record_that_waits_in_the_new_feedback_topic() -> None:
    old = stopped(small_task(model="shared"), 2, {})
    found = Placement(old, Plan(2, "shared", 1))
    starts = [found.task(partition, opening(2, stream_ms={0: 700, 1: 2_000})).stream_ms for partition in range(2)]
    assert starts == [700, 1_001]


def test_moved_orphan_belongs_to_the_new_feedback_topic() -> None:
    old = stopped(small_task(), 1, {(0, "orphans"): [("e1", 101)]})
    (orphan,) = Placement(old, Plan(1, "own", 1)).task(0, opening(1)).orphans[1]
    assert (orphan.record.topic, orphan.record.partition, orphan.record.offset) == (FEEDBACK, 0, -1)


def test_opening_is_deleted_when_later_snapshots_cover_the_retention() -> None:
    snapshot = Placement(stopped(small_task(), 1, {}), Plan(1, "own", 1)).task(0, opening(1))
    stored, records = Stored("0"), list[Record]()
    stored.spacing_ms = KEEP_MS // RENEWALS_PER_RETENTION

    def write(writer: ChunkWriter, append_ms: int) -> list[bytes]:
        messages = writer.portion(10**9)
        for key, value in messages:
            records.append(Record(TOPICS.snapshots, 0, len(records), append_ms, key, value, ()))
        return [key for key, value in messages if value is None]

    write(ChunkWriter(1, encode(snapshot), "0", OPENING_SLOT), 0)
    for record in records:
        stored.add(record)
    assert (stored.newest_number, stored.next_slot) == (1, "a")
    for number, append_ms in ((2, KEEP_MS - 1), (3, KEEP_MS), (4, KEEP_MS + 1)):
        writer = stored.writer(number, encode(snapshot), 10**6)
        deleted = write(writer, append_ms)
        assert deleted == ([b"0/opening/0"] if number == 4 else [])
        stored.wrote(writer, append_ms)
    again = Stored("0", number_max=0)
    for record in records[:-1]:
        again.add(record)
    assert again.newest is not None
    assert again.newest.slot == OPENING_SLOT
    again.add(records[-1])
    assert again.newest is None
