"""Decisions with several rewards on a real Kafka broker, with learners that die in a commit."""

import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pytest

from consumers.learner.program import LearnerOptions, LearnerProgram
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.connection import connect
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.recovery.commit import COMMIT_STEPS
from stream.recovery.recover import rebuild
from stream.recovery.state import task_digest
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.verifying.audit import audit_partition
from stream.verifying.reapply import replay_journal
from stream.wire import codec
from stream.wire.records import Feedback, Outcome, TopicPartition
from stream.wire.rewards import FeedbackRule
from stream.wire.topics import Topics
from tests.pipeline import CrashError

EVENTS = 60
PARTS = {"view": 0.125, "click": 0.5, "order": 3.0, "refund": -1.5}
EXPECTED: dict[FeedbackRule, float] = {"max": 3.0, "sum": 2.125}


@pytest.fixture
def broker(kafka: LocalKafka, client: str) -> Iterator[Broker]:
    made = connect(kafka.bootstrap, client=client)
    yield made
    made.close()


class Kill:
    """Crashes a learner at a step of its third commit with records."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.commits = 0

    def __call__(self, reached: int) -> None:
        self.commits += reached == COMMIT_STEPS[0]
        if reached == self.number and self.commits >= 3:
            raise CrashError


def send(broker: Broker, topics: Topics, rule: FeedbackRule) -> None:
    """Send events with all of their parts, each of them twice. Every fifth event's feedback precedes its context."""
    producer = broker.producer()

    def feed(event_id: str) -> None:
        for part, reward in (*PARTS.items(), *reversed(PARTS.items())):
            given = Feedback(event_id, max(0.0, reward) if rule == "max" else reward, part=part)
            producer.send(topics.feedback, 0, event_id.encode(), codec.encode_feedback(given), codec.HEADERS)

    for number in range(EVENTS):
        event_id = f"e{number}"
        if number % 5 == 0:
            feed(event_id)
            producer.flush()
        context = b'{"id":"%s","x":[1,%d]}' % (event_id.encode(), number % 3)
        producer.send(topics.contexts, 0, event_id.encode(), context, codec.HEADERS)
        producer.flush()
        if number % 5:
            feed(event_id)
    producer.close()


def die(program: LearnerProgram) -> NoReturn:
    """Run a learner until it crashes."""
    while True:
        program.step(50)


@pytest.mark.parametrize(("rule", "steps"), [("max", COMMIT_STEPS[::2]), ("sum", COMMIT_STEPS[1::2])])
def test_rewards_survive_learners_that_die_in_a_commit(
    broker: Broker, prefix: str, rule: FeedbackRule, steps: Sequence[int]
) -> None:
    topics = Topics.with_prefix(prefix)
    broker.create_topics(topics.specs(1))
    task = TaskSettings(
        "late-ucb", 3, 2, {"m": 2}, JoinSettings(window_ms=3_000), rewards="graded", reward_range="0,5", feedback=rule
    )
    send(broker, topics, rule)

    def learner(kill: Kill | None) -> LearnerProgram:
        options = LearnerOptions(group=prefix, records_max=10, snapshot_interval_ms=1)
        program = LearnerProgram(broker, topics, task, options, lambda: time.monotonic_ns() // 1_000_000)
        if kill is not None:
            program._crash_point = kill
        return program

    for number in steps:
        with pytest.raises(CrashError):
            die(learner(Kill(number)))
    last, deadline_s = learner(None), time.monotonic() + 60
    while not (last.tasks and last.tasks[0].join.ledger().matched == EVENTS):
        last.step(100)
        assert time.monotonic() < deadline_s
    assert task_digest(rebuild(broker, topics, 0).task) == task_digest(last.tasks[0])
    last.close()
    finding, replay = audit_partition(broker, topics, 0), replay_journal(broker, topics, 0)
    assert finding.ok, finding
    assert replay.ok, replay
    examples = [codec.decode_example(one) for one in read_partition(broker, TopicPartition(topics.examples, 0))]
    assert {(example.outcome, example.reward) for example in examples} == {(Outcome.MATCHED, EXPECTED[rule])}
    assert sorted(example.id for example in examples) == sorted(f"e{number}" for number in range(EVENTS))
