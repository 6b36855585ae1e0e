"""Contract tests for transactions and fencing, run on every implementation of Broker."""

import pytest

from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker, BrokerError, Ends, FencedError
from stream.wire.records import TopicPartition
from tests.contract.records import read, read_to_end, settled, topic, until, values, write


def test_records_of_an_open_transaction_are_not_readable(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"open")
    producer.flush()
    write(broker, name, "b")  # outside the open transaction, but after its records
    reader = broker.reader([tp])
    assert values(read(reader, 1)) == ["a"]
    assert broker.ends([tp])[tp] == Ends(high_watermark=3, stable=1)
    producer.commit()
    assert values(read(reader, 2)) == ["open", "b"]
    settled(broker, tp)
    producer.close()


def test_aborted_transaction_is_skipped(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"aborted")
    producer.flush()
    producer.abort()
    producer.abort()  # a second abort has no effect
    settled(broker, tp)
    reader = broker.reader([tp])
    until(lambda: reader.poll(100, 10) == [] and reader.position(tp) == broker.ends([tp])[tp].stable)
    producer.begin()
    producer.send(name, 0, b"key", b"committed")
    producer.commit()
    assert values(read(reader, 1)) == ["committed"]
    producer.close()


def test_position_advances_past_commit_markers(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    producer = broker.transactional_producer(prefix)
    for value in (b"a", b"b"):
        producer.begin()
        producer.send(name, 0, b"key", value)
        producer.commit()
    producer.close()
    settled(broker, tp)
    reader = broker.reader([tp])
    assert values(read(reader, 2)) == ["a", "b"]
    until(lambda: reader.poll(100, 10) == [] and reader.position(tp) == broker.ends([tp])[tp].stable)


def test_flush_returns_the_latest_append_time_of_each_partition(broker: Broker, prefix: str) -> None:
    names = topic(broker, prefix, 2, "a"), topic(broker, prefix, 1, "b")
    tps = [TopicPartition(names[0], 0), TopicPartition(names[0], 1), TopicPartition(names[1], 0)]
    producer = broker.transactional_producer(prefix)
    producer.begin()
    assert producer.flush() == {}
    producer.send(*tps[0], b"key", b"1")
    producer.send(*tps[1], b"key", b"2")
    if isinstance(broker, EmbeddedBroker):
        broker.clock.advance_to(2_000)
    producer.send(*tps[1], b"key", b"3")
    first = producer.flush()
    if isinstance(broker, EmbeddedBroker):
        broker.clock.advance_to(3_000)
    producer.send(*tps[2], b"key", b"4")
    second = producer.flush()
    assert producer.flush() == {}
    producer.commit()
    reader = broker.reader(tps)
    append_ms = {(record.topic, record.partition): record.append_ms for record in read(reader, 4)}
    assert first == {tp: append_ms[tp] for tp in tps[:2]}
    assert second == {tps[2]: append_ms[tps[2]]}
    producer.begin()
    producer.send(*tps[0], b"key", b"aborted")
    producer.abort()
    producer.begin()
    assert producer.flush() == {}
    producer.close()


def test_flush_of_more_records_than_the_queue_size_covers_all_partitions(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"first")
    for _ in range(21_000):  # more records than the adapter's queue holds, so that some sends wait
        producer.send(name, 1, b"key", b"")
    assert producer.flush().keys() == {TopicPartition(name, 0), TopicPartition(name, 1)}
    producer.close()


def test_second_begin_is_an_error(broker: Broker, prefix: str) -> None:
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(BrokerError):
        producer.begin()
    producer.close()


def test_send_and_commit_require_a_transaction(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.transactional_producer(prefix)
    with pytest.raises(BrokerError):
        producer.send(name, 0, b"key", b"value")
    with pytest.raises(BrokerError):
        producer.commit()
    producer.close()


def test_producer_can_abort_after_a_rejected_record_and_continue(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"a")
    with pytest.raises(BrokerError):
        producer.send(name, 0, b"key", b"x" * 1_100_000)
    producer.abort()
    producer.begin()
    producer.send(name, 0, b"key", b"b")
    producer.commit()
    producer.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == ["b"]


def test_closing_a_producer_aborts_its_open_transaction(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"open")
    producer.flush()
    producer.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == []


def test_second_producer_with_same_id_fences_the_first(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    zombie = broker.transactional_producer(prefix)
    zombie.begin()
    zombie.send(name, 0, b"key", b"zombie")
    zombie.flush()
    successor = broker.transactional_producer(prefix)
    successor.begin()
    successor.send(name, 0, b"key", b"successor")
    with pytest.raises(FencedError):
        zombie.commit()
    successor.commit()  # the zombie's attempt did not fence its successor
    with pytest.raises(FencedError):
        zombie.abort()
    zombie.close()
    successor.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == ["successor"]


def test_fenced_producer_cannot_write(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    zombie = broker.transactional_producer(prefix)
    zombie.begin()
    zombie.send(name, 0, b"key", b"zombie")
    zombie.flush()
    successor = broker.transactional_producer(prefix)

    def write_on() -> None:
        zombie.send(name, 0, b"key", b"more")
        zombie.flush()

    with pytest.raises(FencedError):
        write_on()
    successor.begin()
    successor.send(name, 0, b"key", b"successor")
    successor.commit()
    zombie.close()
    successor.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == ["successor"]
