"""`onebit move` on the embedded broker: the new pipeline continues where the old one stopped."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from consumers.learner.program import LearnerOptions, LearnerProgram
from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.recovery.control import MovedError, read_requests
from stream.recovery.steps import last_steps
from stream.verifying.audit import audit_partition
from stream.verifying.reapply import replay_journal
from stream.verifying.shared_log import audit_log
from stream.wire.codec import HEADERS
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics, partition_for
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, context_value, feedback_value, run_until_idle, small_task

NEW = Topics.with_prefix("next.")
GROUP = "test.learner"
EVENTS = 24
FED, EARLY = 8, 3
"""The first decisions have feedback; the feedback of the last events arrives before their contexts."""


def old_pipeline(partitions: int = 2, **task: Any) -> Pipeline:
    """A stopped pipeline with matched and pending decisions, and with orphans."""
    made = Pipeline(small_task("late-ucb", parameters={"m": 2}, **task), partitions)
    learner = made.learner(group=GROUP, snapshot_interval_ms=50)
    for number in range(EVENTS):
        made.context(f"e{number}", 0, 1 + number % 3)
        made.wait(10)
        if number < FED:
            run_until_idle(learner)
            made.answer(f"e{number}", number % 2)
        run_until_idle(learner)
    for number in range(EARLY):
        made.answer(f"e{EVENTS + number}", 1)
    run_until_idle(learner)
    learner.finish(1_000)
    learner.close()
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
    old = old_pipeline(partitions, model=before)
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
