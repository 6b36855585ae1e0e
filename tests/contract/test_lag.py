"""Contract tests for lag, which is the number of offsets from a consumer's position to the last stable offset."""

from stream.kafka.port import Broker, Consumer
from stream.wire.records import Record, TopicPartition
from tests.contract.records import RebalanceLog, joined, read, settled, topic, until, values, write


def partition(broker: Broker, prefix: str) -> TopicPartition:
    return TopicPartition(topic(broker, prefix), 0)


def reaches_end(consumer: Consumer, tp: TopicPartition) -> None:
    """Poll until the lag is zero; fail if a poll returns records."""

    def at_end() -> bool:
        assert consumer.poll(100, 100) == []
        return consumer.lag(tp) == 0

    until(at_end)


def test_lag_of_an_empty_partition_is_zero_before_and_after_a_poll(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    reader = broker.reader([tp])
    assert reader.lag(tp) == 0
    assert reader.poll(200, 10) == []
    assert reader.lag(tp) == 0


def test_lag_counts_fetched_records_that_no_poll_has_returned(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    write(broker, tp.topic, "abcde")
    reader = broker.reader([tp])
    found = values(read_some(reader, 2))
    assert reader.lag(tp) == 5 - len(found) > 0
    while len(found) < 4:
        found += values(read_some(reader, 1))
    assert reader.lag(tp) == 1


def read_some(reader: Consumer, records_max: int) -> list[Record]:
    """Poll until at least one record is returned."""
    records: list[Record] = []

    def some() -> bool:
        records.extend(reader.poll(100, records_max))
        return bool(records)

    until(some)
    return records


def test_lag_counts_from_the_offset_of_a_seek(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    write(broker, tp.topic, "abc")
    reader = broker.reader([tp])
    read(reader, 3)
    reaches_end(reader, tp)
    reader.seek(tp, 1)
    assert reader.lag(tp) == 2
    read(reader, 2)
    assert reader.lag(tp) == 0


def test_lag_counts_records_of_a_paused_partition(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    write(broker, tp.topic, "abc")
    reader = broker.reader([tp])
    read_some(reader, 1)
    reader.pause([tp])
    assert reader.poll(200, 10) == []
    assert reader.lag(tp) == 2
    reader.resume([tp])
    read(reader, 2)
    assert reader.lag(tp) == 0


def test_lag_does_not_count_a_commit_marker_at_the_end(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(*tp, b"key", b"a")
    producer.commit()
    producer.close()
    settled(broker, tp)
    reader = broker.reader([tp])
    read(reader, 1)  # `read` ends with an empty poll
    assert reader.lag(tp) == 0


def test_lag_excludes_an_open_transaction_and_later_records(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    write(broker, tp.topic, "a")
    producer = broker.transactional_producer(prefix)
    producer.begin()
    for value in (b"b", b"c"):
        producer.send(*tp, b"key", value)
    producer.flush()
    write(broker, tp.topic, "d")
    reader = broker.reader([tp])
    read(reader, 1)
    reaches_end(reader, tp)
    producer.send(*tp, b"key", b"e")
    producer.flush()
    assert reader.poll(200, 10) == []
    assert reader.lag(tp) == 0
    producer.commit()
    producer.close()
    assert values(read(reader, 4)) == ["b", "c", "d", "e"]
    reaches_end(reader, tp)


def test_lag_becomes_zero_if_only_aborted_records_remain(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    write(broker, tp.topic, "a")
    producer = broker.transactional_producer(prefix)
    producer.begin()
    for value in (b"b", b"c"):
        producer.send(*tp, b"key", value)
    producer.flush()
    producer.abort()
    producer.close()
    settled(broker, tp)
    reader = broker.reader([tp])
    read(reader, 1)
    reaches_end(reader, tp)
    assert reader.position(tp) == broker.ends([tp])[tp].stable


def test_lag_of_a_member_of_a_group_counts_from_the_committed_offset(broker: Broker, prefix: str) -> None:
    tp = partition(broker, prefix)
    write(broker, tp.topic, "abcd")
    consumer = broker.group_consumer(prefix, "m", [tp.topic], RebalanceLog())
    found = len(joined(consumer, partitions=1))
    while found < 1:
        found += len(consumer.poll(100, 1))
    assert consumer.lag(tp) == 4 - found
    consumer.commit({tp: 1})
    consumer.close()
    again = broker.group_consumer(prefix, "m", [tp.topic], RebalanceLog())
    read(again, 3)
    assert again.lag(tp) == 0
    again.close()
