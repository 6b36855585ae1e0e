"""Private kafka-python names that the adapter uses. The tests fail with any version that lacks one of them."""

import ast
import socket
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import InvalidProducerEpochError, OutOfOrderSequenceNumberError
from kafka.net.inet import KafkaNetSocket
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka import kafka_python
from stream.kafka.connection import ConnectionSettings
from stream.kafka.kafka_python import connection
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.kafka.kafka_python.foreign import PartitionRecords
from stream.kafka.kafka_python.membership import GroupConsumer
from stream.kafka.kafka_python.producers import KafkaTransactionSink
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicSpec
from tests.contract.records import RebalanceLog

CONSUMER = (
    "_fetcher.PartitionRecords",
    "_fetcher._handle_fetch_response",
    "_fetcher._next_partition_records",
    "_coordinator._do_join_and_sync_async",
    "_coordinator._generation.member_id",
    "_coordinator._heartbeat_enabled",
    "_coordinator.fetch_committed_offsets",
    "_coordinator.heartbeat.last_receive",
    "_coordinator.heartbeat.poll_timeout_expired",
    "_coordinator.rebalance_in_progress",
    "_coordinator.rejoining",
    "_coordinator.reset_generation",
    "_coordinator.stable",
    "_net.run",
    "_manager._conns",
    "_manager.wait_for",
    "_cluster.config",
    "_cluster.request_update",
    "_subscription.assignment",
)
PRODUCER = (
    "_sender.force_close",
    "_sender.join",
    "_sender.wakeup",
    "_transaction_manager._NEEDS_EPOCH_BUMP_ERRORS",
    "_transaction_manager._current_state",
    "_transaction_manager._enqueue_request",
    "_transaction_manager.begin_abort",
    "_transaction_manager.begin_commit",
    "_transaction_manager.has_fatal_error",
    "_transaction_manager.last_error",
    "_transaction_manager.send_offsets_to_transaction",
)
IMPORTED = (
    "kafka.consumer.fetcher:Fetcher.PartitionRecords.take",
    "kafka.consumer.fetcher:Fetcher._parse_fetched_data",
    "kafka.net.connection:KafkaConnection.close_future",
    "kafka.net.inet:KafkaNetSocket.sock_connect",
    "kafka.net.manager:KafkaConnectionManager._build_transport",
    "kafka.net.manager:KafkaConnectionManager.close",
    "kafka.net.manager:KafkaConnectionManager.ssl_enabled",
    "kafka.net.manager:KafkaConnectionManager.get_connection",
    "kafka.net.selector:NetworkSelector.close",
    "kafka.net.transport:KafkaSSLTransport._sock_recv",
    "kafka.net.transport:KafkaTCPTransport._close",
    "kafka.net.transport:KafkaTCPTransport._sock_recv",
    "kafka.producer.future:FutureRecordMetadata._produce_future",
    "kafka.producer.transaction_manager:EndTxnHandler.is_retry",
    "kafka.producer.transaction_manager:TransactionState.ABORTABLE_ERROR",
    "kafka.record.default_records:DefaultRecordBatch._buffer",
    "kafka.record.default_records:DefaultRecordBatch._read_msg",
    "kafka.record.memory_records:MemoryRecords.next_batch",
)


@pytest.fixture(scope="module")
def clients(kafka: LocalKafka) -> Iterator[dict[str, Any]]:
    """A kafka-python consumer that has joined a group, and a transactional kafka-python producer."""
    broker = KafkaBroker(ConnectionSettings(kafka.bootstrap))
    broker.create_topics([TopicSpec("internals", 1)])
    consumer = broker.group_consumer("internals", "m", ["internals"], RebalanceLog())
    assert isinstance(consumer, GroupConsumer)
    while not consumer.assignment():
        consumer.poll(100, 1)
    sink = KafkaTransactionSink(broker._connection, "internals")
    yield {"consumer": consumer._client, "producer": sink._client}
    sink.close()
    broker.close()


@pytest.mark.parametrize("name", CONSUMER)
def test_kafka_python_consumer_has_attribute(clients: dict[str, Any], name: str) -> None:
    assert_has(clients["consumer"], name)


@pytest.mark.parametrize("name", PRODUCER)
def test_kafka_python_producer_has_attribute(clients: dict[str, Any], name: str) -> None:
    assert_has(clients["producer"], name)


@pytest.mark.parametrize("name", IMPORTED)
def test_kafka_python_module_has_attribute(name: str) -> None:
    module, _, path = name.partition(":")
    first, *rest = path.split(".")
    assert_has(getattr(__import__(module, fromlist=[first]), first), ".".join(rest))


def assert_has(start: Any, path: str) -> None:
    def follow(owner: Any, attribute: str) -> Any:
        of = getattr(owner, "__name__", type(owner).__name__)
        assert hasattr(owner, attribute), (
            f"this version of kafka-python has no {attribute!r} in {of}, which the adapter needs "
            f"({path}): pin an earlier version or update stream/kafka/kafka_python"
        )
        return getattr(owner, attribute)

    reduce(follow, path.split("."), start)


def test_fetcher_uses_the_adapters_record_class(clients: dict[str, Any]) -> None:
    assert clients["consumer"]._fetcher.PartitionRecords is PartitionRecords


def test_fenced_producer_requests_no_new_epoch(clients: dict[str, Any]) -> None:
    manager = clients["producer"]._transaction_manager
    assert manager.classify_batch_error(InvalidProducerEpochError(), None) == manager.ERROR_CLASS_ABORTABLE
    lost = manager.classify_batch_error(OutOfOrderSequenceNumberError(), None)
    assert lost == manager.ERROR_CLASS_NEEDS_EPOCH_BUMP


def test_kafka_python_uses_the_adapters_sockets() -> None:
    assert type(KafkaNetSocket("direct://")) is connection._Socket, (
        "the adapter requires the scheme of proxy_url to select the socket class; this kafka-python version ignores it"
    )


def test_kafka_python_transport_has_its_socket() -> None:
    with socket.socket() as sock:
        assert KafkaTCPTransport(None, sock)._sock is sock, (
            "in this version of kafka-python, transports have no _sock, which the adapter needs for handshakes"
        )
    assert issubclass(KafkaSSLTransport, KafkaTCPTransport)


def test_client_closed_during_a_write_closes_its_socket(kafka: LocalKafka) -> None:
    broker = KafkaBroker(ConnectionSettings(kafka.bootstrap))
    broker.create_topics([TopicSpec("written", 1)])
    reader = broker.reader([TopicPartition("written", 0)])

    def connected() -> list[Any]:
        reader.poll(20, 1)
        return [transport for transport in reader._client._manager._transports if transport._sock is not None]

    wait_for(lambda: bool(connected()), "the reader is connected")
    transports = connected()
    sockets = [transport._sock for transport in transports]
    assert sockets
    for transport in transports:
        transport._closed = True  # as after a close that waits until the outgoing data is written
    reader.close()
    broker.close()
    assert [one.fileno() for one in sockets] == [-1] * len(sockets)


def test_every_private_attribute_used_by_the_adapter_is_listed() -> None:
    listed = {part for name in (*CONSUMER, *PRODUCER, *IMPORTED) for part in name.partition(":")[2].split(".")}
    listed |= {part for name in (*CONSUMER, *PRODUCER) for part in name.split(".")}
    used: set[str] = set()
    for path in sorted(Path(kafka_python.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {  # names that the adapter defines: methods and attributes of self
            node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value))
        }
        used |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and not (is_self(node.value) and node.attr in own)
        }
    assert {"_coordinator", "_fetcher", "_sender", "_transaction_manager"} <= used
    listed.add("_sock")  # test_kafka_python_transport_has_its_socket checks this name
    # The group consumer inherits the reader's own admin, client and connection.
    assert used - {"_admin", "_client", "_connection"} - listed == set()


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
