"""Counts of waiting input records. Ticks are not counted."""

from contextlib import closing

import pytest

from consumers.monitor.waiting import FEW_MAX, WaitingRecords
from stream.kafka.embedded import EmbeddedBroker
from stream.recovery.steps import JournalStep
from stream.wire.codec import HEADERS, tick_headers
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, feedback_value

CONTEXTS, FEEDBACK = TopicPartition(TOPICS.contexts, 0), TopicPartition(TOPICS.feedback, 0)


@pytest.fixture
def broker() -> EmbeddedBroker:
    broker = EmbeddedBroker()
    broker.create_topics(TOPICS.specs(2))
    return broker


def append(broker: EmbeddedBroker, kinds: str, partition: int = 0) -> None:
    """Append ticks (t) and bits (b) to the feedback."""
    for kind in kinds:
        value, headers = (None, tick_headers(1)) if kind == "t" else (feedback_value("a", 1), HEADERS)
        broker.producer().send(TOPICS.feedback, partition, None, value, headers)


def count(waiting: WaitingRecords, broker: EmbeddedBroker, applied: int = 0) -> list[int]:
    """The waiting feedback of each partition, after the task of partition 0 has applied this many records."""
    inputs = [TopicPartition(topic, partition) for topic in (TOPICS.contexts, TOPICS.feedback) for partition in (0, 1)]
    found = waiting.count(broker.ends(inputs), {0: JournalStep(1, (0, 0), (0, applied), 0, Ledger())})
    return [found[TopicPartition(TOPICS.feedback, partition)] for partition in (0, 1)]


@pytest.mark.parametrize(
    ("kinds", "applied", "expected"),
    [
        ("", 0, 0),
        ("t", 0, 0),
        ("tbt", 0, 1),
        ("tbtb", 2, 1),
        ("b" * FEW_MAX, 0, FEW_MAX),
        ("tb" * FEW_MAX, 0, 2 * FEW_MAX),  # too many to read
        ("tb" * FEW_MAX, 2 * FEW_MAX - 4, 2),
    ],
)
def test_ticks_are_not_waiting(broker: EmbeddedBroker, kinds: str, applied: int, expected: int) -> None:
    append(broker, kinds)
    with closing(WaitingRecords(broker, TOPICS, 2)) as waiting:
        assert count(waiting, broker, applied) == [expected, 0]


def test_each_count_includes_new_records_and_new_steps(broker: EmbeddedBroker) -> None:
    with closing(WaitingRecords(broker, TOPICS, 2)) as waiting:
        append(broker, "bt")
        append(broker, "tbb", partition=1)
        assert count(waiting, broker) == [1, 2]
        append(broker, "b")
        assert count(waiting, broker) == [2, 2]
        assert count(waiting, broker, applied=2) == [1, 2]
        assert count(waiting, broker, applied=3) == [0, 2]


def test_waiting_contexts_are_counted(broker: EmbeddedBroker) -> None:
    broker.producer().send(TOPICS.contexts, 0, None, b"{}", HEADERS)
    with closing(WaitingRecords(broker, TOPICS, 1)) as waiting:
        assert waiting.count(broker.ends([CONTEXTS, FEEDBACK]), {}) == {CONTEXTS: 1, FEEDBACK: 0}
