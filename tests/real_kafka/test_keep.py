"""A pipeline on Kafka recovers after retention has deleted all of its records except the snapshots."""

import time
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient

from consumers.learner.program import LearnerOptions, LearnerProgram
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.connection import connect
from stream.kafka.port import Broker
from stream.recovery.state import task_digest
from stream.recovery.steps import MissingRecordsError
from stream.wire.codec import HEADERS
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics
from tests.contract.records import until
from tests.pipeline import context_value, feedback_value, small_task

KEEP_MS = 86_400_000

pytestmark = pytest.mark.each_client


@pytest.fixture
def broker(kafka: LocalKafka, client: str) -> Iterator[Broker]:
    made = connect(kafka.bootstrap, client=client)
    yield made
    made.close()


def host_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def learner(broker: Broker, topics: Topics, prefix: str) -> LearnerProgram:
    options = LearnerOptions(group=prefix, keep_ms=KEEP_MS)
    return LearnerProgram(broker, topics, small_task(), options, host_ms)


def matched(program: LearnerProgram) -> int:
    return sum(task.join.ledger().matched for task in program.tasks.values())


def send(broker: Broker, topics: Topics, name: str) -> None:
    producer = broker.producer()
    for number in range(5):
        event_id = f"{name}-{number}"
        producer.send(topics.contexts, 0, event_id.encode(), context_value(event_id), HEADERS)
        producer.send(topics.feedback, 0, event_id.encode(), feedback_value(event_id, 1), HEADERS)
    producer.flush()
    producer.close()


def learner_with_snapshot(broker: Broker, topics: Topics, prefix: str) -> LearnerProgram:
    """Create the topics, and return a learner that has learned from five bits and written its last snapshot."""
    broker.create_topics(topics.specs(1, keep_ms=KEEP_MS))
    program = learner(broker, topics, prefix)
    send(broker, topics, "first")
    until(lambda: program.step(50) >= 0 and matched(program) == 5)
    program.finish(5_000)
    return program


def delete_records(kafka: LocalKafka, broker: Broker, topics: Topics) -> None:
    """Delete all records of all topics except the snapshots, as retention does."""
    tps = [TopicPartition(topic, 0) for topic in topics if topic != topics.snapshots]
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_records({tp: end.high_watermark for tp, end in broker.ends(tps).items()})
    admin.close()
    ends = broker.ends(tps)
    assert broker.beginnings(tps) == {tp: end.high_watermark for tp, end in ends.items()}


@pytest.mark.parametrize("keeps_offsets", [True, False])
def test_stopped_learner_recovers_from_its_last_snapshot_alone(
    kafka: LocalKafka, broker: Broker, prefix: str, keeps_offsets: bool
) -> None:
    topics = Topics.with_prefix(prefix)
    first = learner_with_snapshot(broker, topics, prefix)
    expected = task_digest(first.tasks[0])
    first.close()
    delete_records(kafka, broker, topics)
    if not keeps_offsets:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        until(lambda: admin.delete_groups([prefix]) == {prefix: "OK"})
        admin.close()
    again = learner(broker, topics, prefix)
    until(lambda: again.step(50) >= 0 and again.ready)
    assert task_digest(again.tasks[0]) == expected
    send(broker, topics, "second")
    until(lambda: again.step(50) >= 0 and matched(again) == 10)
    again.close()


def test_killed_learner_without_its_journal_is_rejected_before_it_writes(
    kafka: LocalKafka, broker: Broker, prefix: str
) -> None:
    topics = Topics.with_prefix(prefix)
    first = learner_with_snapshot(broker, topics, prefix)
    snapshot = first._running[0].last_step.number
    send(broker, topics, "second")
    until(lambda: first.step(50) >= 0 and matched(first) == 10)
    first.close()
    delete_records(kafka, broker, topics)
    again = learner(broker, topics, prefix)
    with pytest.raises(MissingRecordsError) as raised:
        until(lambda: again.step(50) < 0)
    again.close()
    assert (raised.value.tp, raised.value.needed) == (TopicPartition(topics.journal, 0), snapshot + 1)
