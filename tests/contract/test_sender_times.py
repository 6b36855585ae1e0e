"""Topics that are switched to CreateTime.

While a topic uses CreateTime, readers reject records whose timestamps were set by the sender.
"""

from collections.abc import Callable

import pytest
from confluent_kafka import Producer as ConfluentProducer

from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.port import Broker, Consumer, TopicSettingsError
from stream.kafka.reading import read_partition
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicSpec
from tests.contract.records import RebalanceLog, confluent, set_config, until

OLD_MS = 1_000


def set_times(kafka: LocalKafka, topic: str, kind: str) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": kafka.bootstrap})
    set_config(admin, topic, "message.timestamp.type", kind)


def write(kafka: LocalKafka, topic: str, value: bytes) -> None:
    """Write a record whose sender sets an old timestamp."""
    producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, value, b"key", 0, timestamp=OLD_MS)
    assert producer.flush(30) == 0


def reader_of(broker: Broker, topic: str) -> Consumer:
    return broker.reader([TopicPartition(topic, 0)])


def member_of(broker: Broker, topic: str) -> Consumer:
    consumer = broker.group_consumer(f"{topic}.group", "m", [topic], RebalanceLog())

    def begins_reading() -> bool:
        consumer.poll(50, 1)
        return bool(consumer.assignment())

    until(begins_reading)
    consumer.seek(TopicPartition(topic, 0), 0)
    return consumer


@pytest.mark.parametrize("consumer_of", [reader_of, member_of])
def test_record_with_sender_timestamp_is_rejected_while_topic_uses_create_time(
    adapted: Broker, kafka: LocalKafka, prefix: str, consumer_of: Callable[[Broker, str], Consumer]
) -> None:
    topic = prefix + "topic"
    adapted.create_topics([TopicSpec(topic, 1)])
    write(kafka, topic, b"before")
    consumer = consumer_of(adapted, topic)
    found: list[bytes | None] = []

    def reads(count: int) -> bool:
        found.extend(record.value for record in consumer.poll(100, 10))
        return len(found) >= count

    until(lambda: reads(1))
    set_times(kafka, topic, "CreateTime")
    write(kafka, topic, b"dated by its sender")
    with pytest.raises(TopicSettingsError):
        until(lambda: reads(2))
    consumer.close()
    set_times(kafka, topic, "LogAppendTime")
    assert found == [b"before"]
    write(kafka, topic, b"after")
    records = list(read_partition(adapted, TopicPartition(topic, 0)))
    assert [record.value for record in records] == [b"before", b"dated by its sender", b"after"]
    assert [record.append_ms == OLD_MS for record in records] == [False, True, False]


@pytest.mark.parametrize("call", ["flush", "commit"])
def test_transaction_without_append_times_is_rejected(
    adapted: Broker, kafka: LocalKafka, prefix: str, call: str
) -> None:
    topic = prefix + "topic"
    adapted.create_topics([TopicSpec(topic, 1)])
    set_times(kafka, topic, "CreateTime")
    producer = adapted.transactional_producer(prefix)

    def is_refused() -> bool:
        producer.begin()
        producer.send(topic, 0, b"key", b"value")
        try:
            getattr(producer, call)()
        except TopicSettingsError:
            producer.abort()
            return True
        if call == "flush":
            producer.abort()
        return False

    until(is_refused)  # the broker applies the setting after a delay
    set_times(kafka, topic, "LogAppendTime")
    producer.close()


def test_flush_without_append_times_is_rejected(adapted: Broker, kafka: LocalKafka, prefix: str) -> None:
    topic = prefix + "topic"
    adapted.create_topics([TopicSpec(topic, 1)])
    set_times(kafka, topic, "CreateTime")
    producer = adapted.producer()

    def is_refused() -> bool:
        producer.send(topic, 0, b"key", b"value")
        try:
            producer.flush()
        except TopicSettingsError:
            return True
        return False

    until(is_refused)  # the broker applies the setting after a delay
    producer.close()
