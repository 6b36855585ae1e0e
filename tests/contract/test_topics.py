"""Contract tests for topics, records and reading, run on every implementation of Broker."""

from contextlib import suppress
from functools import partial

import pytest

from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import RECORD_BYTES_MAX, Broker, BrokerError, Ends, TopicSettingsError
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec
from tests.contract.records import (
    RebalanceLog,
    confluent,
    joined,
    read,
    read_to_end,
    set_config,
    topic,
    until,
    values,
    write,
)

# Topics


def test_created_topics_have_the_requested_settings(broker: Broker, prefix: str) -> None:
    kept, compacted = prefix + "kept", prefix + "compacted"
    broker.create_topics([TopicSpec(kept, 3, retention_ms=86_400_000), TopicSpec(compacted, 1, compacted=True)])
    found = broker.describe_topics([kept, compacted, prefix + "none"])
    assert {name: description._replace(topic_id="", leader_epochs=()) for name, description in found.items()} == {
        kept: TopicDescription(kept, 3, append_time=True, compacted=False, retention_ms=86_400_000, replication=1),
        compacted: TopicDescription(compacted, 1, append_time=True, compacted=True, retention_ms=-1, replication=1),
    }


def test_altered_topics_have_the_new_retention_and_keep_all_other_settings(broker: Broker, prefix: str) -> None:
    specs = [TopicSpec(prefix + "kept", 1, retention_ms=86_400_000), TopicSpec(prefix + "compacted", 1, compacted=True)]
    names = [spec.name for spec in specs]
    broker.create_topics(specs)
    before = broker.describe_topics(names)
    for keep_ms in (3_600_000, -1):
        broker.alter_topics([spec._replace(retention_ms=keep_ms) for spec in specs])
        expected = {name: found._replace(retention_ms=keep_ms) for name, found in before.items()}
        until(partial(_are_described, broker, expected))


def _are_described(broker: Broker, expected: dict[str, TopicDescription]) -> bool:
    return broker.describe_topics(list(expected)) == expected


def test_creating_an_existing_topic_has_no_effect(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, ["a"])
    broker.create_topics([TopicSpec(name, 1)])
    assert read_to_end(broker, TopicPartition(name, 0)) == ["a"]


@pytest.mark.parametrize(
    "wrong", [TopicSpec("", 2), TopicSpec("", 1, compacted=True), TopicSpec("", 1, retention_ms=5000)]
)
def test_existing_topic_with_different_settings_is_rejected(broker: Broker, prefix: str, wrong: TopicSpec) -> None:
    name = topic(broker, prefix)
    spec = wrong._replace(name=name)
    with pytest.raises(TopicSettingsError):
        broker.create_topics([TopicSpec(prefix + "other", 1), spec])
    assert broker.describe_topics([prefix + "other"]) == {}


def test_topic_with_a_small_batch_limit_is_rejected(adapted: Broker, kafka: LocalKafka, prefix: str) -> None:
    name = topic(adapted, prefix)
    admin = confluent.AdminClient({"bootstrap.servers": kafka.bootstrap})
    set_config(admin, name, "max.message.bytes", "2000000")
    adapted.create_topics([TopicSpec(name, 1)])
    set_config(admin, name, "max.message.bytes", "100000")
    with pytest.raises(TopicSettingsError, match=rf"{name}.*max\.message\.bytes"):
        adapted.create_topics([TopicSpec(name, 1)])


def test_deleting_a_topic_deletes_its_records_and_offsets(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, ["a", "b"])
    consumer = broker.group_consumer(prefix, "m", [name], RebalanceLog())
    joined(consumer, partitions=1)
    consumer.commit({tp: 2})
    consumer.close()
    broker.delete_topics([name, prefix + "none"])
    assert broker.describe_topics([name]) == {}
    topic(broker, prefix)
    assert broker.ends([tp]) == {tp: Ends(0, 0)}
    until(lambda: broker.committed(prefix, [tp]) == {})


def test_recreated_topic_has_a_new_id(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    other = topic(broker, prefix, name="other")
    before = broker.describe_topics([name, other])
    broker.delete_topics([name])
    topic(broker, prefix)
    after = broker.describe_topics([name, other])
    assert before[name].topic_id != after[name].topic_id
    assert before[other].topic_id == after[other].topic_id != ""


def test_missing_topic_is_an_error(broker: Broker, prefix: str) -> None:
    tp = TopicPartition(prefix + "none", 0)
    with pytest.raises(BrokerError):
        broker.ends([tp])
    with pytest.raises(BrokerError):
        broker.reader([tp])
    with pytest.raises(BrokerError):
        broker.group_consumer(prefix, "m", [tp.topic], RebalanceLog())


# Records


def test_records_are_read_in_offset_order_and_unchanged(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    producer = broker.producer()
    headers = (("version", b"1"), ("reason", b""))
    producer.send(name, 1, b"k", b"first", headers)
    producer.send(name, 1, None, b"second")
    producer.send(name, 1, b"tombstone", None)
    append_ms = producer.flush()[TopicPartition(name, 1)]
    producer.close()
    records = read(broker.reader([TopicPartition(name, 1)]), 3)
    assert [record._replace(append_ms=append_ms) for record in records] == [
        Record(name, 1, 0, append_ms, b"k", b"first", headers),
        Record(name, 1, 1, append_ms, None, b"second", ()),
        Record(name, 1, 2, append_ms, b"tombstone", None, ()),
    ]


def test_append_times_come_from_the_broker_and_never_decrease(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    acknowledged = [write(broker, name, [str(i)]) for i in range(5)]
    if isinstance(broker, EmbeddedBroker):
        broker.clock.advance_to(2_000)
        acknowledged.append(write(broker, name, ["5"]))
    records = read(broker.reader([TopicPartition(name, 0)]), len(acknowledged))
    assert [record.append_ms for record in records] == acknowledged == sorted(acknowledged)


def test_flush_without_records_returns_no_time(broker: Broker, prefix: str) -> None:
    producer = broker.producer()
    assert producer.flush() == {}
    producer.close()


def test_many_records_keep_their_order(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, map(str, range(30_000)))
    records = read(broker.reader([TopicPartition(name, 0)]), 30_000, records_max=1_000)
    assert values(records) == [str(i) for i in range(30_000)]


def test_oversized_record_is_rejected_and_not_written(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.producer()
    producer.send(name, 0, b"key", b"x" * RECORD_BYTES_MAX)
    with pytest.raises(BrokerError):
        producer.send(name, 0, b"key", b"x" * 1_100_000)
    producer.flush()
    producer.close()
    assert len(read(broker.reader([TopicPartition(name, 0)]), 1)) == 1


def test_record_for_a_missing_partition_is_an_error(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    producer = broker.producer()
    with pytest.raises(BrokerError):
        producer.send(name, 2, b"key", b"value")
    producer.close()


# Reading


def test_reader_seeks_to_any_offset(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "abcde")
    reader = broker.reader([tp])
    assert values(read(reader, 5)) == list("abcde")
    assert reader.position(tp) == 5
    reader.seek(tp, 3)
    assert reader.position(tp) == 3
    assert values(read(reader, 2)) == list("de")
    reader.seek(tp, 0)
    assert values(reader.poll(5_000, 2) + reader.poll(5_000, 1)) == list("abc")
    assert reader.position(tp) == 3


def test_reader_can_seek_after_an_invalid_offset(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    write(broker, name, "abc", partition=0)
    reader = broker.reader([first, second])
    assert values(read(reader, 3)) == list("abc")
    reader.seek(first, 7)
    with suppress(BrokerError):  # Kafka rejects this offset
        assert reader.poll(2_000, 10) == []
    reader.pause([second])
    write(broker, name, "de", partition=1)
    with suppress(BrokerError):
        assert reader.poll(200, 10) == []
    reader.seek(first, 1)
    assert values(read(reader, 2)) == list("bc")
    reader.seek(first, 7)
    broker.reader([first]).poll(100, 10)  # the broker rejects the offset during this poll of another reader
    reader.seek(first, 0)
    assert values(read(reader, 3)) == list("abc")
    reader.resume([second])
    assert values(read(reader, 2)) == list("de")


def test_paused_partition_keeps_its_position(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    write(broker, name, "ab", partition=0)
    write(broker, name, "cd", partition=1)
    reader = broker.reader([first, second])
    reader.pause([first])
    assert values(read(reader, 2)) == list("cd")
    assert (reader.position(first), reader.position(second)) == (0, 2)
    reader.resume([first])
    assert values(read(reader, 2)) == list("ab")


def test_resumed_partition_continues_after_another_reached_its_end(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    write(broker, name, "abcd", partition=0)
    reader = broker.reader([first, second])
    until(lambda: values(reader.poll(100, 2)) == list("ab"))
    reader.pause([first])
    assert reader.poll(100, 2) == []
    write(broker, name, "ef", partition=1)
    assert values(read(reader, 2)) == list("ef")
    reader.resume([first])
    assert values(read(reader, 2)) == list("cd")


def test_seeking_in_an_unassigned_partition_is_an_error(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    reader = broker.reader([TopicPartition(name, 0)])
    with pytest.raises(BrokerError):
        reader.seek(TopicPartition(name, 1), 0)


def test_beginnings_and_ends_of_an_empty_partition_are_zero(broker: Broker, prefix: str) -> None:
    tp = TopicPartition(topic(broker, prefix), 0)
    assert broker.beginnings([tp]) == {tp: 0}
    assert broker.ends([tp]) == {tp: Ends(0, 0)}
    reader = broker.reader([tp])
    assert reader.poll(0, 10) == []
    assert reader.position(tp) == 0
