"""Records written by other clients. Every implementation of Broker can read them and write them as dead letters."""

from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaProducer

from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.confluent.broker import ConfluentBroker
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire.records import Headers, TopicPartition
from stream.wire.topics import TopicSpec

CODECS = ("gzip", "snappy", "lz4", "zstd")

NOT_UTF_8 = b"\xff\xfe na\xefve \x80"
"""A header name in an encoding other than UTF-8."""


def one_partition(broker: Broker, name: str) -> TopicPartition:
    broker.create_topics([TopicSpec(name, 1)])
    return TopicPartition(name, 0)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_record_without_key_and_value_is_written_and_read(broker: Broker, prefix: str, *, in_transaction: bool) -> None:
    tp = one_partition(broker, prefix + "nothing")
    headers = (("trace", b"1"),)
    if in_transaction:
        transactions = broker.transactional_producer(prefix)
        transactions.begin()
        transactions.send(*tp, None, None, headers)
        transactions.send(*tp, None, b"", ())
        transactions.commit()
        transactions.close()
    else:
        producer = broker.producer()
        producer.send(*tp, None, None, headers)
        producer.send(*tp, None, b"", ())
        producer.close()
    found = [(record.key, record.value, record.headers) for record in read_partition(broker, tp, open_ms=20_000)]
    assert found == [(None, None, headers), (None, b"", ())]


@pytest.mark.parametrize("name", [NOT_UTF_8.decode(errors="surrogateescape"), "ünï", "", "\udc80"])
def test_headers_with_any_name_are_written_and_read(
    broker: Broker, prefix: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tp = one_partition(broker, prefix + "headers")
    headers: Headers = (("before", b"\xff"), (name, b""), (name, b"twice"))
    producer = broker.producer()
    producer.send(*tp, b"key", b"value", headers)
    producer.close()
    (record,) = read_partition(broker, tp)
    if is_utf_8(name) or not drops_header_names(broker):
        assert record.headers == headers
    else:
        assert record.headers == headers[:1]
        assert (
            caplog.messages
            == [f"omitted header {name!r} from a record for {tp.topic}: this client cannot send such a name"] * 2
        )
    assert {type(found) for found, _ in record.headers} == {str}


def is_utf_8(name: str) -> bool:
    return name.encode(errors="replace").decode() == name


def drops_header_names(broker: Broker) -> bool:
    """Return True if the broker's client supports only UTF-8 header names."""
    return isinstance(broker, ConfluentBroker)


@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
@pytest.mark.parametrize("codec", CODECS)
def test_compressed_batches_of_other_clients_are_read(
    adapted: Broker, kafka: LocalKafka, prefix: str, codec: str, client: str
) -> None:
    tp = one_partition(adapted, prefix + codec)
    sent = [b"compressible " * 100 + b"%d" % number for number in range(500)]
    if client == "confluent":
        ours: Any = ConfluentProducer(
            {"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "linger.ms": 50}
        )
        for value in sent:
            ours.produce(tp.topic, value, b"key", tp.partition)
        assert ours.flush(30) == 0
    else:
        theirs = KafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type=codec, linger_ms=50)
        for value in sent:
            theirs.send(tp.topic, value, b"key", partition=tp.partition)
        theirs.close()
    assert stored_bytes(kafka, tp) < sum(map(len, sent)) / 5, "the records are not compressed"
    assert [record.value for record in read_partition(adapted, tp)] == sent


def test_batch_with_large_uncompressed_size_is_read(adapted: Broker, kafka: LocalKafka, prefix: str) -> None:
    tp = one_partition(adapted, prefix + "unpacked")
    sent = 130  # 130 records of 900 kB exceed librdkafka's default limit on the size of a response
    ours: Any = ConfluentProducer(
        {
            "bootstrap.servers": kafka.bootstrap, "compression.type": "zstd", "linger.ms": 3_000,
            "batch.size": 900_000_000, "message.max.bytes": 900_000_000,
        }
    )  # fmt: skip
    for _ in range(sent):
        ours.produce(tp.topic, b"j" * 900_000, b"key", tp.partition)
    assert ours.flush(60) == 0
    assert stored_bytes(kafka, tp) < 1_000_000, "the records are not in one compressed batch"
    assert [len(record.value or b"") for record in read_partition(adapted, tp)] == [900_000] * sent


def stored_bytes(kafka: LocalKafka, tp: TopicPartition) -> int:
    """The size of a partition's log on the broker's disk."""
    (log,) = (kafka.storage / f"{tp.topic}-{tp.partition}").glob("*.log")
    return log.stat().st_size


class Name(str):
    """A header name that clients in this process encode as NOT_UTF_8."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return NOT_UTF_8


def test_records_around_a_non_utf_8_header_name_are_read(
    adapted: Broker, kafka: LocalKafka, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    tp = one_partition(adapted, prefix + "latin")
    theirs = KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=1_000, compression_type="gzip")
    for number in range(100):  # one batch; every third record has a header name that is not UTF-8
        headers = [("plain", b"1"), (Name("ignored"), b"2"), ("last", b"")]
        theirs.send(tp.topic, b"%d" % number, b"key", headers=headers[:: 1 if number % 3 == 2 else 2], partition=0)
    theirs.close()
    records = list(read_partition(adapted, tp))
    assert [record.value for record in records] == [b"%d" % number for number in range(100)]
    plain, latin, last = ("plain", b"1"), (NOT_UTF_8.decode(errors="surrogateescape"), b"2"), ("last", b"")
    known = (plain, last) if drops_header_names(adapted) else (plain, latin, last)
    assert [record.headers for record in records] == [
        known if number % 3 == 2 else (plain, last) for number in range(100)
    ]
    omitted = f"omitted 1 of the record's headers, including {NOT_UTF_8!r}, because their names are not UTF-8"
    reported = f"{tp.topic}/0, offset 98: {omitted}"
    assert (reported in caplog.messages, len(caplog.messages)) == (
        (True, 33) if drops_header_names(adapted) else (False, 0)
    )
    reader = adapted.reader([tp])
    reader.seek(tp, 3)  # an offset in the middle of the batch
    assert next(iter(reader.poll(5_000, 1))).value == b"3"


def test_null_header_value_is_read_as_empty(adapted: Broker, kafka: LocalKafka, prefix: str) -> None:
    tp = one_partition(adapted, prefix + "null")
    theirs = ConfluentProducer({"bootstrap.servers": kafka.bootstrap})
    theirs.produce(tp.topic, b"value", b"key", 0, headers=[("onebit-step", None), ("given", b"1")])
    assert theirs.flush(30) == 0
    (record,) = read_partition(adapted, tp)
    assert record.headers == (("onebit-step", b""), ("given", b"1"))
