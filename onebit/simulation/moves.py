"""Moves a pipeline in the middle of a run, from one simulated cluster to another, and checks both pipelines.

The move dies in some of its calls to the brokers and is repeated. While it is incomplete, learners with the new topics
must refuse to start, and so must learners with the old topics after the old pipeline was ended.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from consumers.learner.program import LearnerProgram
from onebit.moves import MEMBER, Desired, Side, move
from onebit.simulation.checks import check, check_ranges, check_stopped
from onebit.simulation.faulty_broker import CrashError, FaultyBroker, Transaction
from onebit.simulation.outside import PREFIX, TOPICS, Outside
from onebit.simulation.partitions import opening_of
from onebit.simulation.schedule import ItemKind, MoveDraw, Schedule
from onebit.simulation.tracing import FED_AFTER_MOVE, MOVE_DIED, MOVED, Trace
from onebit.simulation.world import World
from stream.kafka.embedded import EmbeddedBroker
from stream.recovery.control import MovedError, read_requests
from stream.recovery.moving import UNSETTLED, LimitError, NoStateError
from stream.recovery.recover import rebuild
from stream.recovery.state import Snapshot, take
from stream.recovery.steps import last_step
from stream.task.stored_settings import restored_settings
from stream.verifying.moved import audit_moves
from stream.wire.records import TopicPartition

STEPS_MAX = 100
"""Number of steps in which a learner must refuse to continue."""


def check_move(schedule: Schedule, trace: Trace) -> list[str]:
    """Run a schedule in two pipelines with a move between, and check them. The trace receives the coverage."""
    drawn = schedule.move
    assert drawn is not None
    # With a limited retention, learners delete the openings, which these checks read.
    items = tuple(item for item in schedule.items if item.kind is not ItemKind.RETENTION)
    schedule = schedule._replace(items=items, options=replace(schedule.options, keep_ms=-1))
    first = World(schedule._replace(items=schedule.items[: drawn.after]))
    first.run_items()
    target = EmbeddedBroker(first.clock)
    has_log = "shared" in (drawn.model, schedule.task.model)  # some faults of the schedule concern the log
    target.create_topics(TOPICS.specs(drawn.partitions, shares_model=has_log))
    waiting = Outside(target, drawn.partitions, first.trace, replace(schedule.task, model=drawn.model))
    rest = drawn.after + drawn.waiting
    first.run_while(schedule.items[drawn.after : rest], waiting)
    first.stop()
    moving = _Move(first, target, drawn)
    if not moving.run():
        return moving.wrong
    wrong = moving.wrong + [f"before the move: {what}" for what in check_stopped(first)]
    openings = [opening_of(target, partition) for partition in range(drawn.partitions)]
    assert openings[0] is not None
    settings = restored_settings(openings[0].settings)
    after = schedule._replace(task=settings, partitions=drawn.partitions, items=schedule.items[rest:])
    second = World(after, target)
    second.outside.sent |= waiting.sent
    second.processes.transactions += moving.transactions
    wrong += _entries_differ(first, [one for one in openings if one is not None])
    second.run()
    wrong += [f"after the move: {what}" for what in (*check(second), *check_ranges(second))]
    for world in (first, second):
        findings = audit_moves(world.broker, TOPICS, world.schedule.partitions)
        wrong += [move.fault for move in findings if move.fault]
        wrong += [] if len(findings) == 1 else [f"expected one record of a move; got {findings}"]
    trace.fired[MOVED] += 1
    trace.fired[MOVE_DIED] += moving.died
    trace.fired[FED_AFTER_MOVE] += moving.fed(second)
    return wrong


class _Move:
    """A move that dies in some of its calls, and is repeated."""

    def __init__(self, world: World, target: EmbeddedBroker, drawn: MoveDraw) -> None:
        self.wrong: list[str] = []
        self.died = 0
        self.transactions: list[Transaction] = []  # in the new topics
        self._world, self._target, self._drawn = world, target, drawn

    def run(self) -> bool:
        """Return whether the pipeline was moved. It stays if it has no state, or too many entries for a task."""
        with suppress(NoStateError, LimitError):
            for calls in (*self._drawn.crashes, 10**9):
                if self._attempt(calls):
                    return True
                self.died += 1
                self._time_out()
                self._check_refused()
        return False

    def _attempt(self, calls: int) -> bool:
        """Move the pipeline, and die after a number of calls. Return whether the move is complete."""
        left = calls

        def consult(call: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise CrashError

        world, drawn = self._world, self._drawn
        old, new = (
            Side(FaultyBroker(broker, MEMBER, consult, transactions), TOPICS, name)
            for broker, transactions, name in (
                (world.broker, world.processes.transactions, "old"),
                (self._target, self.transactions, "new"),
            )
        )
        desired = Desired(drawn.partitions, drawn.model, drawn.model_from, drawn.seed)
        with suppress(CrashError):
            move(old, new, world.schedule.options.group, desired)
            return True
        return False

    def _time_out(self) -> None:
        """End the dead move's transactions and its membership, as the brokers do."""
        world = self._world
        group = world.schedule.options.group
        for broker, transactions, transactional_id in (
            (world.broker, world.processes.transactions, f"{group}-{MEMBER}"),
            (self._target, self.transactions, f"{PREFIX}{MEMBER}"),
        ):
            FaultyBroker(broker, MEMBER, lambda call: None, transactions).transactional_producer(transactional_id)
        if MEMBER in world.broker.members(group):
            world.broker.expel(group, MEMBER)

    def _check_refused(self) -> None:
        """Check that no learner takes a step in an incomplete pipeline, nor in one that was ended."""
        old, new = self._world.broker, self._target
        is_open = last_step(new, TopicPartition(TOPICS.journal, 0)) is not None
        if read_requests(new, TOPICS).moved_from is not None and not is_open and not self._is_refused(new):
            self.wrong.append("a learner starts with the new topics although the move is incomplete")
        if read_requests(old, TOPICS).moved_to is not None and not self._is_refused(old):
            self.wrong.append("a learner starts with the old topics although they were moved")
        if is_open and read_requests(old, TOPICS).moved_to is None:
            self.wrong.append("both pipelines can take steps")

    def _is_refused(self, broker: EmbeddedBroker) -> bool:
        """Return whether a learner refuses to start."""
        schedule, now_ms = self._world.schedule, self._world.clock.now_ms
        program = LearnerProgram(broker, TOPICS, schedule.task, schedule.options, lambda: now_ms, given=())
        with closing(program), suppress(MovedError):
            for _ in range(STEPS_MAX):
                program.step(0)
            return False
        return True

    def fed(self, second: World) -> int:
        """Return the number of decisions that were made before the move and received their feedback after it."""
        openings = [opening_of(second.broker, partition) for partition in range(self._drawn.partitions)]
        moved = {row[0] for one in openings if one is not None for kind in UNSETTLED for row in _rows(one, kind)}
        return sum(item.id in moved and item.kind.value.startswith("feedback") for item in second.outside.sent.values())


def _entries_differ(world: World, openings: list[Snapshot]) -> list[str]:
    """Check that the openings contain each entry of the old tasks exactly once."""
    tasks = [
        take(recovered.task, recovered.step)
        for partition in range(world.schedule.partitions)
        for recovered in [rebuild(world.broker, TOPICS, partition, lambda *_: world.schedule.task)]
    ]
    wrong = []
    for kind in (*UNSETTLED, "orphans", "retained"):
        before, after = (
            sorted(_plain(row) for one in those for row in _rows(one, kind)) for those in (tasks, openings)
        )
        if before != after:
            wrong.append(f"expected the {kind} of the old tasks {before}; the openings have {after}")
    return wrong


def _rows(snapshot: Snapshot, kind: str) -> Iterator[tuple[Any, ...]]:
    return zip(*getattr(snapshot, kind), strict=True)


def _plain(row: tuple[Any, ...]) -> str:
    """Return an entry as text, without its position and its time."""
    event_id, entry, *_ = row
    fields = {name: getattr(entry, name, None) for name in ("action", "outcome", "reward", "feedback", "arm")}
    return f"{event_id} {fields}"
