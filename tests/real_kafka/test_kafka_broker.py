"""The Kafka adapters: behaviour while a real broker is down, restarting or frozen, and cleanup on close."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.partitioner.default import DefaultPartitioner

from stream.devkafka import local_kafka
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.client_config import client_config
from stream.kafka.connection import ConnectionSettings, connect
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.kafka.port import BrokerError, BrokerUnavailableError, FencedError
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicSpec, partition_for
from tests.contract.records import RebalanceLog, until
from tests.limits import within
from tests.processes import free_port, freeze
from tests.secured import Secured

pytestmark = pytest.mark.each_client


@pytest.mark.parametrize("partitions", [1, 2, 3, 12])
def test_partition_for_agrees_with_the_clients_default_partitioner(partitions: int) -> None:
    class Cluster:
        def topics(self) -> set[str]:
            return {"topic"}

        def partitions_for_topic(self, _: str) -> set[int]:
            return set(range(partitions))

        available_partitions_for_topic = partitions_for_topic

    theirs = DefaultPartitioner()
    for key in [b"", *(str(i).encode() * (i % 7) for i in range(1, 500))]:
        assert partition_for(key, partitions) == theirs.partition("topic", key, key, None, None, Cluster())


def test_connect_waits_for_a_stopped_broker_and_then_reports_its_address(client: str) -> None:
    port = free_port()
    messages: list[str] = []
    started_s = time.monotonic()
    with (
        within(8),
        pytest.raises(BrokerUnavailableError, match=rf"127\.0\.0\.1:{port} within 3000 ms.*onebit kafka up"),
    ):
        connect(ConnectionSettings(f"127.0.0.1:{port}", connect_timeout_ms=3_000, progress=messages.append), client)
    assert time.monotonic() - started_s > 2.5
    assert messages
    assert f"waiting for Kafka at 127.0.0.1:{port}" in messages[0]


def threads_and_sockets() -> set[str]:
    """Return this process's threads and sockets, including those that libraries created."""
    files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return {*os.listdir("/proc/self/task"), *(file for file in files if file.startswith("socket:"))}


def test_closing_leaves_no_thread_and_no_socket(kafka: LocalKafka, prefix: str, client: str) -> None:
    before = threads_and_sockets()
    broker = connect(kafka.bootstrap, client=client)
    broker.create_topics([TopicSpec(prefix, 1)])
    tp = TopicPartition(prefix, 0)
    producer = broker.producer()
    producer.send(prefix, 0, b"key", b"value")
    broker.transactional_producer(prefix).begin()
    broker.reader([tp]).poll(100, 10)
    broker.group_consumer(prefix, "m", [prefix], RebalanceLog()).poll(1_000, 10)
    broker.committed(prefix, [tp])
    broker.close()
    gc.collect()  # collecting an unclosed socket raises a warning, and the tests treat warnings as errors
    until(lambda: threads_and_sockets() <= before)  # a joined thread stays in /proc for a moment


def test_commit_of_a_timed_out_transaction_reports_the_timeout(kafka: LocalKafka, prefix: str, client: str) -> None:
    broker = connect(ConnectionSettings(kafka.bootstrap, transaction_timeout_ms=1_000), client)
    broker.create_topics([TopicSpec(prefix, 1)])
    tp = TopicPartition(prefix, 0)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(prefix, 0, b"key", b"value")
    producer.flush()
    until(lambda: broker.ends([tp])[tp].stable > 0)
    with pytest.raises(FencedError):
        producer.commit()
    broker.close()


def test_timed_out_transaction_accepts_no_more_records(kafka: LocalKafka, prefix: str, client: str) -> None:
    broker = connect(ConnectionSettings(kafka.bootstrap, transaction_timeout_ms=1_000), client)
    broker.create_topics([TopicSpec(prefix, 2)])
    tp = TopicPartition(prefix, 0)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(prefix, 0, b"key", b"early")
    producer.flush()
    until(lambda: broker.ends([tp])[tp].stable > 0)

    def write_on() -> None:
        producer.send(prefix, 0, b"key", b"late")
        producer.send(prefix, 1, b"key", b"late")
        producer.commit()

    with pytest.raises(FencedError):
        write_on()
    reader = broker.reader([tp, TopicPartition(prefix, 1)])
    assert reader.poll(500, 10) == []
    broker.close()


def test_new_and_existing_clients_wait_for_a_restarted_broker(own_kafka: LocalKafka, client: str) -> None:
    broker = connect(
        ConnectionSettings(own_kafka.bootstrap, request_timeout_ms=30_000, session_timeout_ms=60_000), client
    )
    broker.create_topics([TopicSpec("topic", 1)])
    tp = TopicPartition("topic", 0)
    producer, transactions = broker.producer(), broker.transactional_producer("id")
    consumer = broker.group_consumer("group", "m", ["topic"], RebalanceLog())
    producer.send("topic", 0, b"key", b"before")
    producer.flush()
    read: list[bytes | None] = []

    def read_count(count: int) -> bool:
        read.extend(record.value for record in consumer.poll(100, 10))
        return len(read) >= count

    until(lambda: read_count(1))
    transactions.begin()
    transactions.send("topic", 0, b"key", b"transaction")
    transactions.flush()

    os.kill(own_kafka.pid, signal.SIGKILL)
    assert consumer.poll(500, 10) == []
    producer.send("topic", 0, b"key", b"while down")
    port = int(own_kafka.bootstrap.rpartition(":")[2])
    starter = threading.Thread(target=local_kafka.start, args=(port, own_kafka.home))
    starter.start()
    new = connect(ConnectionSettings(own_kafka.bootstrap, connect_timeout_ms=60_000), client)
    starter.join()
    assert list(new.describe_topics(["topic"])) == ["topic"]
    new.close()

    producer.flush()
    transactions.send_offsets({tp: 1}, consumer)
    transactions.commit()
    until(lambda: read_count(3))
    assert read == [b"before", b"transaction", b"while down"]
    assert broker.committed("group", [tp]) == {tp: 1}
    broker.close()


def test_calls_to_a_frozen_broker_time_out(kafka: LocalKafka, prefix: str, client: str) -> None:
    tp = TopicPartition(prefix, 0)
    patient = connect(kafka.bootstrap, client=client)
    patient.create_topics([TopicSpec(prefix, 1)])
    patient.transactional_producer(prefix)  # a new broker needs some time until it can coordinate this id
    patient.close()
    broker = connect(ConnectionSettings(kafka.bootstrap, request_timeout_ms=2_000), client)
    producer, transactions = broker.producer(), broker.transactional_producer(prefix)
    reader = broker.reader([tp])
    transactions.begin()
    transactions.send(prefix, 0, b"key", b"unknown")
    transactions.flush()
    producer.send(prefix, 0, b"key", b"before")
    producer.flush()

    freeze(kafka.pid)
    try:
        producer.send(prefix, 0, b"key", b"unknown")
        for operation in (
            producer.flush,
            transactions.commit,
            transactions.commit,
            lambda: broker.ends([tp]),
            lambda: broker.describe_topics([prefix]),
            lambda: broker.reader([tp]),
            lambda: broker.transactional_producer(f"{prefix}another"),
            lambda: broker.group_consumer(prefix, "m", [prefix], RebalanceLog()),
            lambda: broker.committed(prefix, [tp]),
        ):
            with within(6), pytest.raises(BrokerUnavailableError):
                operation()
        assert reader.poll(500, 10) == []
    finally:
        os.kill(kafka.pid, signal.SIGCONT)

    def write_again() -> None:
        producer.send(prefix, 0, b"key", b"after")
        producer.flush()

    until(lambda: answers(write_again))  # the broker needs some time to catch up
    with pytest.raises(BrokerUnavailableError):
        transactions.begin()
    transactions.close()
    successor = broker.transactional_producer(prefix)
    successor.begin()
    successor.send(prefix, 0, b"key", b"last")
    successor.commit()
    read: list[bytes | None] = []

    def read_last() -> bool:
        read.extend(record.value for record in reader.poll(100, 10))
        return read[-1:] == [b"last"]

    until(read_last)
    assert list(dict.fromkeys(value for value in read if value != b"unknown")) == [b"before", b"after", b"last"]
    broker.close()


def answers(question: Callable[[], object]) -> bool:
    try:
        question()
    except BrokerUnavailableError:
        return False
    return True


def test_reading_deleted_offsets_is_an_error(kafka: LocalKafka, prefix: str, client: str) -> None:
    broker = connect(kafka.bootstrap, client=client)
    broker.create_topics([TopicSpec(prefix, 1)])
    tp = TopicPartition(prefix, 0)
    producer = broker.producer()
    for _ in range(5):
        producer.send(prefix, 0, b"key", b"value")
    producer.flush()
    consumer = broker.group_consumer(prefix, "m", [prefix], RebalanceLog())
    until(lambda: bool(consumer.poll(100, 10)))
    consumer.commit({tp: 1})
    consumer.close()
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_records({tp: 3})  # simulates retention
    admin.close()
    assert broker.beginnings([tp]) == {tp: 3}

    reader = broker.reader([tp])
    assert reader.position(tp) == 3
    reader.seek(tp, 2)
    with pytest.raises(BrokerError, match="has been deleted"):
        until(lambda: bool(reader.poll(100, 10)))
    again = broker.group_consumer(prefix, "m", [prefix], RebalanceLog())
    with pytest.raises(BrokerError, match=r"offset 1 .* has been deleted: the first offset is 3"):
        until(lambda: bool(again.poll(100, 10)))
    again.close()

    class SkippingListener(RebalanceLog):
        def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
            assert skipping.position(tp) == 1
            skipping.seek(tp, 3)

    skipping = broker.group_consumer(prefix, "m", [prefix], SkippingListener())
    until(lambda: bool(skipping.poll(100, 10)))
    broker.close()


def test_added_partitions_are_found_immediately(kafka: LocalKafka, prefix: str, client: str) -> None:
    broker = connect(kafka.bootstrap, client=client)
    broker.create_topics([TopicSpec(prefix, 1)])
    old, added = TopicPartition(prefix, 0), TopicPartition(prefix, 1)
    assert broker.ends([old]) == {old: (0, 0)}
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_partitions({prefix: 2})
    admin.close()
    until(lambda: broker.describe_topics([prefix])[prefix].partitions == 2)
    with within(5):
        assert broker.ends([added]) == {added: (0, 0)}
        assert broker.beginnings([old, added]) == {old: 0, added: 0}
    broker.close()


def test_damaged_batch_is_reported_with_its_offset_on_every_poll(kafka: LocalKafka, prefix: str, client: str) -> None:
    broker = connect(kafka.bootstrap, client=client)
    broker.create_topics([TopicSpec(prefix, 2)])
    damaged, whole = TopicPartition(prefix, 0), TopicPartition(prefix, 1)
    producer = broker.producer()
    for value in (b"first", b"second", b"third"):
        producer.send(prefix, 0, b"key", value)
        producer.flush()  # each record gets its own batch
    (log,) = (kafka.storage / f"{prefix}-0").glob("*.log")
    content = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(content.index(b"second"))
        file.write(b"S")
    reader = broker.reader([damaged, whole])
    producer.send(prefix, 1, b"key", b"other")
    producer.flush()
    read: list[bytes | None] = []

    def poll() -> bool:
        read.extend(record.value for record in reader.poll(100, 10))
        return False

    for _ in range(2):
        with pytest.raises(BrokerError, match=r"/0 cannot be read from offset 1 on \(CorruptRecord"):
            until(poll)
    assert sorted(filter(None, read)) in ([b"first"], [b"first", b"other"])
    reader.pause([damaged])
    until(lambda: b"other" in read or poll())
    reader.resume([damaged])
    with pytest.raises(BrokerError, match=rf"{prefix}/0 cannot be read from offset 1 on"):
        until(poll)
    broker.close()


def test_batch_with_a_missing_codec_is_reported_with_its_offset(
    kafka: LocalKafka, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = KafkaBroker(ConnectionSettings(kafka.bootstrap))
    broker.create_topics([TopicSpec(prefix, 1)])
    theirs = KafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type="lz4")
    theirs.send(prefix, b"value" * 1_000, partition=0)
    theirs.close()
    monkeypatch.setattr("kafka.codec.has_lz4", lambda: False)
    reader = broker.reader([TopicPartition(prefix, 0)])
    with pytest.raises(BrokerError, match=r"/0 cannot be read from offset 0 on \(UnsupportedCodec.*lz4.*install"):
        until(lambda: bool(reader.poll(100, 10)))
    broker.close()


def test_rejected_topic_deletions_are_reported_for_each_topic(secured: Secured, prefix: str) -> None:
    broker = KafkaBroker(ConnectionSettings(secured.kafka.bootstrap, client_config(secured.properties)))
    names = [f"{prefix}{name}" for name in "ab"]
    broker.create_topics([TopicSpec(name, 1) for name in names])
    with (
        within(5),
        pytest.raises(BrokerError, match=rf"{names[0]}: TopicDeletionDisabled.*; {names[1]}: TopicDeletion"),
    ):
        broker.delete_topics([*names, "none"])
    broker.close()
