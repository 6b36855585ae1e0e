"""Snapshots and recovery on a real Kafka broker."""

import time
from collections.abc import Iterator

import pytest

from consumers.learner.program import LearnerOptions, LearnerProgram
from producers.datasets.synthetic import synsep
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.connection import connect
from stream.kafka.port import Broker
from stream.recovery.commit import COMMIT_STEPS
from stream.recovery.recover import rebuild
from stream.recovery.state import task_digest
from stream.task.settings import TaskSettings
from stream.verifying.reapply import replay_journal
from stream.wire import codec
from stream.wire.records import Feedback, TopicPartition
from stream.wire.topics import Topics
from tests.pipeline import CrashError

TASK = TaskSettings("soba", 2, 400)
"""Full SOBA with 800 weights. The learner's state is 5.5 MB in size, and is split into twelve chunks."""


@pytest.fixture
def broker(kafka: LocalKafka, client: str) -> Iterator[Broker]:
    made = connect(kafka.bootstrap, client=client)
    yield made
    made.close()


def send_events(broker: Broker, topics: Topics, name: str, count: int) -> None:
    dataset = synsep(1)
    producer = broker.producer()
    for number in range(count):
        event_id = f"{name}-{number}"
        x = codec.encode_context(event_id, dataset.row(number).x)
        producer.send(topics.contexts, 0, event_id.encode(), x, codec.HEADERS)
    producer.flush()
    for number in range(count):
        event_id = f"{name}-{number}"
        answer = codec.encode_feedback(Feedback(event_id, number % 2))
        producer.send(topics.feedback, 0, event_id.encode(), answer, codec.HEADERS)
    producer.close()


class Kill:
    """Crashes a learner after the given step in a commit, if that commit writes the nth chunk of a snapshot."""

    def __init__(self, number: int, nth: int) -> None:
        self.number = number
        self.nth = nth
        self.program: LearnerProgram | None = None

    def __call__(self, reached: int) -> None:
        writing = None if self.program is None else self.program._snapshots._writing
        if reached == self.number and writing is not None and writing[1].count >= self.nth:
            raise CrashError


def work_on(program: LearnerProgram, broker: Broker, topics: Topics, name: str) -> None:
    """Run the learner while new events arrive at intervals."""
    for round_number in range(400):
        if round_number % 20 == 0:
            send_events(broker, topics, f"{name}-{round_number}", 10)
        program.step(50)


def test_learner_killed_while_writing_a_snapshot_recovers_bit_for_bit(broker: Broker, prefix: str) -> None:
    topics = Topics.with_prefix(prefix)
    broker.create_topics(topics.specs(1))
    for number, nth in [*((number, 12) for number in COMMIT_STEPS), (5, 1), (6, 1)]:
        kill = Kill(number, nth)
        options = LearnerOptions(group=prefix, records_max=20, snapshot_interval_ms=1, snapshot_bytes_max=1_500_000)
        kill.program = LearnerProgram(broker, topics, TASK, options, lambda: time.monotonic_ns() // 1_000_000)
        kill.program._crash_point = kill
        with pytest.raises(CrashError):
            work_on(kill.program, broker, topics, f"{number}-{nth}")
    options = LearnerOptions(group=prefix, snapshot_interval_ms=0)
    last = LearnerProgram(broker, topics, TASK, options, lambda: time.monotonic_ns() // 1_000_000)
    contexts = TopicPartition(topics.contexts, 0)
    deadline_s = time.monotonic() + 60
    while not (last.tasks and last._running[0].contexts.offset >= broker.ends([contexts])[contexts].stable - 1):
        last.step(100)
        assert time.monotonic() < deadline_s
    for _ in range(5):
        last.step(50)
    recovered = rebuild(broker, topics, 0)
    assert recovered.stored.newest is not None
    assert task_digest(recovered.task) == task_digest(last.tasks[0])
    replay = replay_journal(broker, topics, 0)
    assert replay.ok, replay
    last.close()
