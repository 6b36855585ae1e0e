"""Reading during broker outages, reading records by offset, and reading several topics from a given time."""

from collections.abc import Iterator

import pytest

from onebit.simulation.faulty_broker import FaultyBroker
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import BrokerUnavailableError
from stream.kafka.reading import RUN_GAP_MAX, RecordsAt, follow, offset_at, read_in_order, read_partition
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicSpec
from tests.pipeline import TOPICS, Pipeline, small_task

CONTEXTS = TopicPartition(TOPICS.contexts, 0)


class _Outage:
    """A broker with three contexts. The broker stops responding when `away` is set."""

    def __init__(self) -> None:
        self.away = False
        pipeline = Pipeline(small_task())
        for number in range(3):
            pipeline.context(f"e{number}")
        self.broker = FaultyBroker(pipeline.broker, "reader", self._consult)

    def _consult(self, operation: str) -> None:
        if self.away:
            raise BrokerUnavailableError(f"no broker for: {operation}")


def test_abandoning_a_reader_during_an_outage_raises_nothing() -> None:
    outage = _Outage()
    reading = read_partition(outage.broker, CONTEXTS)
    assert next(reading).offset == 0
    outage.away = True
    # This closes the generator. Python would report an error in the generator as a warning, which fails the test.
    del reading


def test_records_read_before_an_outage_are_returned() -> None:
    outage = _Outage()
    offsets = []
    for record in read_partition(outage.broker, CONTEXTS):
        outage.away = True
        offsets.append(record.offset)
    assert offsets == [0, 1, 2]


def test_reading_interrupted_by_an_outage_is_an_error() -> None:
    outage = _Outage()
    reading = read_partition(outage.broker, CONTEXTS)
    outage.away = True
    with pytest.raises(BrokerUnavailableError):
        next(reading)


@pytest.fixture
def offset_reader() -> RecordsAt:
    """Reads the contexts e0, e1, ... by offset. The first and last are too far apart to be read in one pass."""
    pipeline = Pipeline(small_task())
    for number in range(RUN_GAP_MAX + 10):
        pipeline.context(f"e{number}")
    return RecordsAt(pipeline.broker, CONTEXTS)


def test_records_are_found_by_offset_in_any_order(offset_reader: RecordsAt) -> None:
    last = RUN_GAP_MAX + 9
    for offsets in ([5, 3], [4, 6, 7], [3], [last, 2, 2], [8], [], [last, last + 1, 10**15, -1], [0, last]):
        found = offset_reader.read(offsets)
        assert found.keys() == {offset for offset in offsets if 0 <= offset <= last}
        assert {offset: record.key for offset, record in found.items()} == {offset: b"e%d" % offset for offset in found}


def test_reading_by_offset_during_an_outage_is_an_error() -> None:
    outage = _Outage()
    again = RecordsAt(outage.broker, CONTEXTS)
    assert again.read([1]).keys() == {1}
    outage.away = True
    with pytest.raises(BrokerUnavailableError):
        again.read([2])


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


def test_offset_for_a_time_is_the_first_offset_at_or_after_this_time(broker: EmbeddedBroker) -> None:
    write(broker, *(("one", at_ms) for at_ms in (1_000, 1_005, 1_005, 1_020)))
    found = {at_ms: offset_at(broker, ONE, at_ms) for at_ms in (0, 1_000, 1_001, 1_005, 1_006, 1_020, 1_021)}
    assert found == {0: 0, 1_000: 0, 1_001: 1, 1_005: 1, 1_006: 3, 1_020: 3, 1_021: 4}
    assert offset_at(broker, OTHER, 5) == 0


def test_offset_for_a_time_skips_deleted_and_aborted_records(broker: EmbeddedBroker) -> None:
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


def test_records_of_several_topics_are_ordered_by_time(broker: EmbeddedBroker) -> None:
    write(broker, ("one", 1_000), ("other", 1_001), ("one", 1_002), ("other", 1_002), ("one", 1_003))
    found = read_in_order(broker, {OTHER: 0, ONE: 1})
    assert [(one.topic, one.append_ms) for one in found] == [
        ("other", 1_001), ("other", 1_002), ("one", 1_002), ("one", 1_003),
    ]  # fmt: skip


def test_follow_continues_where_reading_ended(broker: EmbeddedBroker) -> None:
    write(broker, ("one", 1_000), ("other", 1_001))
    following = follow(broker, {ONE: 1, OTHER: 0})
    assert [one.topic for one in next(following)] == ["other"]
    write(broker, ("other", 1_002), ("one", 1_002))
    assert sorted(one.topic for one in next(following)) == ["one", "other"]
    assert next(following) == []
