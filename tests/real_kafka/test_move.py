"""A pipeline on Kafka moves to topics with more partitions."""

from collections.abc import Iterator

import pytest

from consumers.learner.program import LearnerOptions, LearnerProgram
from onebit.moves import Desired, Side, move
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.connection import connect
from stream.kafka.port import Broker
from stream.recovery.moving import MoveError
from stream.settings.task_fields import JoinSettings
from stream.verifying.audit import audit_partition
from stream.wire.codec import HEADERS
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.topics import Topics, partition_for
from tests.contract.records import until
from tests.pipeline import context_value, feedback_value, small_task
from tests.real_kafka.test_keep import host_ms

EVENTS, PARTITIONS = 12, 3
LIMITS = JoinSettings(window_ms=600_000)
pytestmark = pytest.mark.each_client


@pytest.fixture
def broker(kafka: LocalKafka, client: str) -> Iterator[Broker]:
    made = connect(kafka.bootstrap, client=client)
    yield made
    made.close()


def learner(broker: Broker, topics: Topics, group: str) -> LearnerProgram:
    return LearnerProgram(broker, topics, small_task(join=LIMITS), LearnerOptions(group=group), host_ms, given=())


def send(broker: Broker, topic: str, partitions: int, values: dict[str, bytes]) -> None:
    producer = broker.producer()
    for event_id, value in values.items():
        key = event_id.encode()
        producer.send(topic, partition_for(key, partitions), key, value, HEADERS)
    producer.flush()
    producer.close()


def ledger(program: LearnerProgram) -> Ledger:
    program.step(100)
    return total_ledger(task.join.ledger() for task in program.tasks.values())


def test_feedback_for_old_decisions_counts_after_a_move(broker: Broker, prefix: str) -> None:
    old, new = (Side(broker, Topics.with_prefix(f"{prefix}{name}."), "") for name in ("old", "new"))
    group = f"{prefix}old"
    broker.create_topics(old.topics.specs(1))
    ids = [f"event-{number}" for number in range(EVENTS)]
    running = learner(broker, old.topics, group)
    send(broker, old.topics.contexts, 1, {event: context_value(event) for event in ids})
    until(lambda: ledger(running).pending == EVENTS)
    with pytest.raises(MoveError):
        move(old, new, group, Desired(PARTITIONS))
    running.finish(5_000)
    running.close()
    report = move(old, new, group, Desired(PARTITIONS))
    assert report is not None
    assert (report.moved.partitions, report.moved.balance.pending) == (PARTITIONS, EVENTS)
    assert move(old, new, group, Desired(PARTITIONS)) is None
    moved = learner(broker, new.topics, f"{prefix}new")
    send(broker, new.topics.feedback, PARTITIONS, {event: feedback_value(event, 1) for event in ids})
    until(lambda: ledger(moved).matched + ledger(moved).expired == EVENTS)
    assert ledger(moved).matched == EVENTS
    moved.close()
    findings = [audit_partition(broker, new.topics, partition) for partition in range(PARTITIONS)]
    assert all(finding.ok for finding in findings), findings
