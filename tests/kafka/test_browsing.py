"""Records from a time on, in the order in which they came."""

from collections.abc import Iterator

import pytest

from stream.kafka.browsing import follow, offset_at, read_in_order
from stream.kafka.clocks import VirtualClock
from stream.kafka.embedded import EmbeddedBroker
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicSpec

ONE, OTHER = TopicPartition("one", 0), TopicPartition("other", 0)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    made = EmbeddedBroker(VirtualClock(1_000))
    made.create_topics([TopicSpec("one", 1), TopicSpec("other", 1)])
    yield made
    made.close()


def write(broker: EmbeddedBroker, *records: tuple[str, int]) -> None:
    for topic, at_ms in records:
        broker.clock.now_ms = at_ms
        broker.producer().send(topic, 0, None, b"%d" % at_ms)


def test_offset_of_a_time_is_that_of_the_first_record_then_or_later(broker: EmbeddedBroker) -> None:
    write(broker, *(("one", at_ms) for at_ms in (1_000, 1_005, 1_005, 1_020)))
    found = {at_ms: offset_at(broker, ONE, at_ms) for at_ms in (0, 1_000, 1_001, 1_005, 1_006, 1_020, 1_021)}
    assert found == {0: 0, 1_000: 0, 1_001: 1, 1_005: 1, 1_006: 3, 1_020: 3, 1_021: 4}
    assert offset_at(broker, OTHER, 5) == 0


def test_offset_of_a_time_is_found_behind_deleted_and_among_aborted_records(broker: EmbeddedBroker) -> None:
    write(broker, *(("one", at_ms) for at_ms in (1_000, 1_010)))
    producer = broker.transactional_producer("t")
    producer.begin()
    for _ in range(5):
        producer.send("one", 0, None, b"aborted")
    producer.abort()
    write(broker, ("one", 1_020))
    broker.delete_records(ONE, 1)
    assert [offset_at(broker, ONE, at_ms) for at_ms in (0, 1_011, 1_020)] == [1, 2, 2]
    kept = list(read_in_order(broker, {ONE: 2}))
    assert [record.value for record in kept] == [b"1020"]


def test_records_of_several_topics_come_in_the_order_of_their_times(broker: EmbeddedBroker) -> None:
    write(broker, ("one", 1_000), ("other", 1_001), ("one", 1_002), ("other", 1_002), ("one", 1_003))
    found = read_in_order(broker, {OTHER: 0, ONE: 1})
    assert [(one.topic, one.append_ms) for one in found] == [
        ("other", 1_001), ("other", 1_002), ("one", 1_002), ("one", 1_003),
    ]  # fmt: skip


def test_what_comes_is_followed_from_where_the_reading_ended(broker: EmbeddedBroker) -> None:
    write(broker, ("one", 1_000), ("other", 1_001))
    following = follow(broker, {ONE: 1, OTHER: 0})
    assert [one.topic for one in next(following)] == ["other"]
    write(broker, ("other", 1_002), ("one", 1_002))
    assert sorted(one.topic for one in next(following)) == ["one", "other"]
    assert next(following) == []
