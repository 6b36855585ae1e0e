"""`onebit move` on the embedded broker: the new pipeline continues where the old one stopped."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from itertools import count
from typing import Any

import orjson
import pytest

from consumers.learner.program import LearnerOptions, LearnerProgram
from onebit.moves import MEMBER, Desired, Side, move
from onebit.simulation.faulty_broker import FaultyBroker
from stream.errors import ExitCode
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker
from stream.recovery.control import MovedError, read_requests
from stream.recovery.steps import last_step, last_steps
from stream.verifying.audit import audit_partition
from stream.verifying.reapply import replay_journal
from stream.verifying.shared_log import audit_log
from stream.wire.codec import HEADERS
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics, partition_for
from tests.cli.conftest import CommandResult, Onebit
from tests.pipeline import TOPICS, Pipeline, context_value, feedback_value, run_until_idle, small_task

NEW = Topics.with_prefix("next.")
GROUP = "test.learner"
EVENTS = 24
FED, EARLY = 8, 3
"""The first decisions have feedback; the feedback of the last events arrives before their contexts."""


def old_pipeline(
    partitions: int = 2, learner: str = "banditron", events: int = EVENTS, fed: int = FED, **task: Any
) -> Pipeline:
    """A stopped pipeline with matched and pending decisions, and with orphans."""
    made = Pipeline(small_task(learner, **task), partitions)
    program = made.learner(group=GROUP, snapshot_interval_ms=50)
    for number in range(events):
        made.context(f"e{number}", 0, 1 + number % 3)
        made.wait(10)
        if number < fed:
            run_until_idle(program)
            made.answer(f"e{number}", number % 2)
        run_until_idle(program)
    for number in range(EARLY):
        made.answer(f"e{events + number}", 1)
    run_until_idle(program)
    program.finish(1_000)
    program.close()
    return made


class Moved:
    """The pipeline after the move."""

    def __init__(self, old: Pipeline, partitions: int) -> None:
        self.old, self.partitions = old, partitions

    def send(self, topic: str, event_id: str, value: bytes) -> None:
        key = event_id.encode()
        self.old.broker.producer().send(topic, partition_for(key, self.partitions), key, value, HEADERS)

    def learner(self, **options: Any) -> LearnerProgram:
        made = LearnerOptions(**{"group": "next.learner", "snapshot_interval_ms": 0, **options})
        return LearnerProgram(self.old.broker, NEW, self.old.settings, made, self.old.now_ms, given=())

    def ledger(self) -> Ledger:
        journals = [TopicPartition(NEW.journal, partition) for partition in range(self.partitions)]
        return total_ledger(step.ledger for step in last_steps(self.old.broker, journals).values())

    def check(self, *, shares_model: bool) -> None:
        broker = self.old.broker
        for topics, partitions in ((TOPICS, self.old.partitions), (NEW, self.partitions)):
            for partition in range(partitions):
                finding = audit_partition(broker, topics, partition)
                assert finding.ok, finding
                assert replay_journal(broker, topics, partition).ok
        if shares_model:
            log = audit_log(broker, NEW, self.partitions)
            assert log.ok, log


@pytest.mark.parametrize(
    ("before", "partitions", "flags", "after", "number"),
    [
        ("own", 2, (), "own", 2),
        ("own", 2, ("--partitions", "3", "--model-from", "1"), "own", 3),
        ("own", 2, ("--model", "shared", "--model-from", "0", "--seed", "9"), "shared", 2),
        ("shared", 2, ("--partitions", "3"), "shared", 3),
        ("shared", 3, ("--partitions", "1", "--model", "own"), "own", 1),
    ],
)
def test_feedback_for_old_decisions_counts_in_the_moved_pipeline(
    on_broker: Callable[[Broker], None],
    onebit: Onebit,
    before: str,
    partitions: int,
    flags: tuple[str, ...],
    after: str,
    number: int,
) -> None:
    old = old_pipeline(partitions, "late-ucb", parameters={"m": 2}, model=before)
    on_broker(old.broker)
    carried = old.ledger()
    assert (carried.pending, carried.orphans_waiting) == (EVENTS - FED, EARLY)
    result = onebit("move", "--to-prefix", NEW.contexts.removesuffix("contexts"), *flags, "--yes", "--json")
    assert result.code == ExitCode.OK, result.err
    report = orjson.loads(result.out)
    assert (report["partitions"], report["model"]) == (number, after)
    moved = Moved(old, number)
    assert (moved.ledger().pending, moved.ledger().orphans_waiting) == (EVENTS - FED, EARLY)
    for event in range(FED, EVENTS):
        moved.send(NEW.feedback, f"e{event}", feedback_value(f"e{event}", 1))
    for event in range(EARLY):
        moved.send(NEW.contexts, f"e{EVENTS + event}", context_value(f"e{EVENTS + event}", 0))
    moved.send(NEW.feedback, "e0", feedback_value("e0", 0))  # a duplicate of an old decision's feedback
    learner = moved.learner()
    run_until_idle(learner)
    found = moved.ledger()
    assert (found.matched, found.pending, found.orphans_waiting) == (EVENTS - FED + EARLY, 0, 0)
    assert (found.feedback_duplicates, found.conflicts) == (1, 0)
    moved.check(shares_model=after == "shared")
    origin = orjson.loads(onebit("verify", "--topic-prefix", "next.", "--json").out)
    target = orjson.loads(onebit("verify", "--json").out)
    assert origin["moved_from"]["balance"] == target["moved_to"]["balance"] == report["balance"]
    assert (origin["ok"], origin["moved_from"]["ok"], target["ok"], target["moved_to"]["ok"]) == (True,) * 4


def test_replay_of_a_moved_shared_model_without_further_steps_reports_this_model(
    on_broker: Callable[[Broker], None], onebit: Onebit
) -> None:
    old = old_pipeline(2, "late-ucb", parameters={"m": 2}, model="shared")
    on_broker(old.broker)
    assert onebit("move", "--to-prefix", NEW.contexts.removesuffix("contexts"), "--yes").code == ExitCode.OK
    models = {replay_journal(old.broker, topics, partition).state for topics in (TOPICS, NEW) for partition in range(2)}
    assert len(models) == 1


def test_move_is_listed_in_both_pipelines_and_ends_the_old_one(
    on_broker: Callable[[Broker], None], onebit: Onebit, learn_on: Callable[..., CommandResult]
) -> None:
    old = old_pipeline()
    on_broker(old.broker)
    assert onebit("move", "--to-prefix", "next.", "--yes").code == ExitCode.OK
    listed = [orjson.loads(onebit("changes", "--json", *flags).out) for flags in ((), ("--topic-prefix", "next."))]
    assert [one["moved_to"] and one["moved_to"]["prefix"] for one in listed[0]] == ["next."]
    assert [one["moved_from"] and one["moved_from"]["prefix"] for one in listed[1]] == ["test."]
    assert onebit("change", "--window", "2m", "--yes").code == ExitCode.USAGE
    refused = learn_on(old.broker)
    assert refused.code == ExitCode.USAGE
    assert "next." in refused.err
    with pytest.raises(MovedError):
        run_until_idle(old.learner(group=GROUP))
    again = onebit("move", "--to-prefix", "next.", "--yes", "--json")
    assert (again.code, orjson.loads(again.out)) == (ExitCode.OK, None)
    assert onebit("move", "--to-prefix", "third.", "--yes").code == ExitCode.USAGE


def test_move_waits_for_the_learners_and_for_unread_records(
    on_broker: Callable[[Broker], None], onebit: Onebit
) -> None:
    old = old_pipeline()
    on_broker(old.broker)
    learner = old.learner(group=GROUP)
    run_until_idle(learner)
    assert onebit("move", "--to-prefix", "next.", "--yes").code == ExitCode.USAGE
    learner.close()
    old.answer("e9", 1)
    assert onebit("move", "--to-prefix", "next.", "--yes").code == ExitCode.USAGE
    assert NEW.control not in old.broker.describe_topics([NEW.control])
    run_until_idle(learner := old.learner(group=GROUP))
    learner.close()
    assert onebit("move", "--to-prefix", "next.", "--yes").code == ExitCode.OK


class LostError(Exception):
    """The process dies in a call to a broker."""


class Stage(Enum):
    """What a move has done."""

    UNCHANGED = auto()
    CREATED = auto()
    PREPARED = auto()  # the new topics name the move
    ENDED = auto()  # the old topics name the move, too
    OPEN = auto()  # the new tasks have their openings
    COMPLETE = auto()


def interrupted(old: Pipeline, calls: int) -> Stage:
    """Move a pipeline, and die after a number of calls to the broker."""
    left = calls

    def consult(call: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise LostError

    broker = FaultyBroker(old.broker, "move", consult)
    with suppress(LostError):
        move(Side(broker, TOPICS, ""), Side(broker, NEW, ""), GROUP, Desired(partitions=2))
        return Stage.COMPLETE
    if NEW.control not in old.broker.describe_topics([NEW.control]):
        return Stage.UNCHANGED
    if read_requests(old.broker, NEW).moved_from is None:
        return Stage.CREATED
    if read_requests(old.broker, TOPICS).moved_to is None:
        return Stage.PREPARED
    return Stage.OPEN if last_step(old.broker, TopicPartition(NEW.journal, 0)) else Stage.ENDED


def time_out(broker: EmbeddedBroker) -> None:
    """End a dead move's transactions and its membership."""
    for transactional_id in ("next.move", f"{GROUP}-move"):
        broker.transactional_producer(transactional_id)
    if MEMBER in broker.members(GROUP):
        broker.expel(GROUP, MEMBER)


def refuses(learner: LearnerProgram) -> bool:
    try:
        run_until_idle(learner)
    except MovedError:
        return True
    finally:
        learner.close()
    return False


def test_move_that_is_interrupted_at_any_call_can_be_repeated() -> None:
    seen = set[Stage]()
    for calls in count():
        old = old_pipeline(1, events=3, fed=1)
        moved, stage = Moved(old, 2), interrupted(old, calls)
        seen.add(stage)
        if stage is Stage.COMPLETE:
            break
        time_out(old.broker)
        if stage in (Stage.PREPARED, Stage.ENDED):
            assert refuses(moved.learner())
        is_ended = stage in (Stage.ENDED, Stage.OPEN)
        if not is_ended:
            old.answer("e1", 1)
        old.wait(60_000)
        assert refuses(old.learner(group=GROUP)) is is_ended
        before = old.ledger()
        assert interrupted(old, 10**9) is Stage.COMPLETE
        opened = moved.ledger()
        assert (opened.pending, opened.orphans_waiting) == (before.pending, before.orphans_waiting)
        run_until_idle(moved.learner())
        moved.check(shares_model=False)
    assert seen == {*Stage}
