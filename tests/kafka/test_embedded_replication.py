"""The embedded broker while a partition's high watermark is held back."""

import pytest

from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.kafka.port import BrokerUnavailableError, Ends, Producer, TransactionalProducer
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicSpec

HELD, OTHER = TopicPartition("topic", 0), TopicPartition("topic", 1)


@pytest.fixture
def broker() -> EmbeddedBroker:
    """A broker with one record in each of two partitions. The first partition's high watermark is held back."""
    made = EmbeddedBroker(VirtualClock(1_000))
    made.create_topics([TopicSpec("topic", 2)])
    producer = made.producer()
    for tp in (HELD, OTHER):
        send(producer, tp, b"before")
    made.hold(HELD)
    return made


def send(producer: Producer, tp: TopicPartition, value: bytes) -> None:
    producer.send(*tp, b"key", value)


def started(broker: EmbeddedBroker) -> TransactionalProducer:
    producer = broker.transactional_producer("id")
    producer.begin()
    return producer


def values(broker: EmbeddedBroker, tp: TopicPartition) -> list[bytes | None]:
    return [record.value for record in broker.reader([tp]).poll(0, 100)]


def test_records_appended_while_held_are_not_visible_until_release(broker: EmbeddedBroker) -> None:
    reader = broker.reader([HELD])
    send(broker.producer(), HELD, b"held")
    assert ([record.value for record in reader.poll(0, 100)], reader.lag(HELD)) == ([b"before"], 0)
    broker.release(HELD)
    assert [record.value for record in reader.poll(0, 100)] == [b"held"]


def test_ends_do_not_count_records_appended_while_held(broker: EmbeddedBroker) -> None:
    send(broker.producer(), HELD, b"held")
    assert (broker.ends([HELD])[HELD], broker.log(HELD).end()) == (Ends(1, 1), 2)
    broker.release(HELD)
    assert broker.ends([HELD])[HELD] == Ends(2, 2)


def test_held_record_has_its_append_time(broker: EmbeddedBroker) -> None:
    send(broker.producer(), HELD, b"held")
    broker.clock.advance_to(5_000)
    broker.release(HELD)
    assert [record.append_ms for record in broker.reader([HELD]).poll(0, 100)] == [1_000, 1_000]


def test_transaction_opened_before_a_hold_limits_the_stable_end(broker: EmbeddedBroker) -> None:
    producer = started(broker)
    send(producer, OTHER, b"open")
    send(broker.producer(), OTHER, b"behind")
    broker.hold(OTHER)
    assert broker.ends([OTHER])[OTHER] == Ends(3, 1)
    producer.commit()
    assert broker.ends([OTHER])[OTHER] == Ends(3, 3)


def test_second_hold_does_not_move_the_high_watermark(broker: EmbeddedBroker) -> None:
    send(broker.producer(), HELD, b"held")
    broker.hold(HELD)
    assert broker.ends([HELD])[HELD] == Ends(1, 1)


def test_flush_of_a_producer_with_records_in_a_held_partition_raises(broker: EmbeddedBroker) -> None:
    producer = broker.producer()
    send(producer, OTHER, b"other")
    send(producer, HELD, b"held")
    with pytest.raises(BrokerUnavailableError):
        producer.flush()
    assert producer.flush() == {}  # no records were sent after the failed flush


def test_flush_and_commit_of_a_transaction_with_records_in_a_held_partition_raise(broker: EmbeddedBroker) -> None:
    producer = started(broker)
    send(producer, HELD, b"held")
    with pytest.raises(BrokerUnavailableError):
        producer.flush()
    with pytest.raises(BrokerUnavailableError):
        producer.commit()


def test_failed_flush_keeps_the_records_in_the_log(broker: EmbeddedBroker) -> None:
    producer = broker.producer()
    send(producer, HELD, b"held")
    with pytest.raises(BrokerUnavailableError):
        producer.flush()
    broker.release(HELD)
    assert values(broker, HELD) == [b"before", b"held"]


def test_aborted_transaction_in_a_held_partition_is_not_visible_after_release(broker: EmbeddedBroker) -> None:
    producer = started(broker)
    send(producer, HELD, b"held")
    producer.abort()
    assert broker.ends([HELD])[HELD] == Ends(1, 1)
    broker.release(HELD)
    assert values(broker, HELD) == [b"before"]


def test_flush_after_release_reports_the_append_times(broker: EmbeddedBroker) -> None:
    producer = started(broker)
    send(producer, HELD, b"held")
    send(producer, OTHER, b"other")
    with pytest.raises(BrokerUnavailableError):
        producer.flush()
    broker.release(HELD)
    assert producer.flush() == {HELD: 1_000, OTHER: 1_000}


def test_other_partitions_are_written_and_committed_while_one_is_held(broker: EmbeddedBroker) -> None:
    producer = started(broker)
    send(producer, OTHER, b"other")
    assert producer.flush() == {OTHER: 1_000}
    producer.commit()
    assert values(broker, OTHER) == [b"before", b"other"]


def test_records_flushed_before_the_hold_can_be_committed(broker: EmbeddedBroker) -> None:
    producer = started(broker)
    send(producer, OTHER, b"flushed")
    producer.flush()
    broker.hold(OTHER)
    producer.commit()
    assert values(broker, OTHER) == [b"before", b"flushed"]
