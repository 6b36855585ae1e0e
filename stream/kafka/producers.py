"""The Broker interface's producers. They check the order of calls and pass records to an adapter's `Sink`."""

from collections.abc import Callable, Mapping, MutableSet
from contextlib import suppress
from typing import Any, Protocol

from stream.kafka.connection import Connection
from stream.kafka.port import BrokerError, BrokerUnavailableError, Member
from stream.wire.records import Headers, TopicPartition

QUEUED_RECORDS_MAX = 20_000
QUEUED_BYTES_MAX = 32 << 20
"""Limits on unacknowledged records. At the limit, `send` waits for acknowledgements before it queues more records."""


class Sink(Protocol):
    """A client's producer. Its methods raise BrokerError or a subclass of it."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Queue a record."""

    def settle(self) -> dict[TopicPartition, int]:
        """Wait until all queued records are acknowledged, and return their latest append time in each partition."""

    def release(self) -> None:
        """Close without waiting for queued records."""


class TransactionSink(Sink, Protocol):
    """A client's transactional producer. When it is created, it fences earlier producers with the same id."""

    failure: BrokerError | None  # error for all later calls, set by fencing or by a commit with an unknown outcome

    def begin(self) -> None:
        """Open a transaction."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Member) -> None:
        """See TransactionalProducer."""

    def commit(self) -> None:
        """Commit the transaction. All its records must have been acknowledged."""

    def abort(self) -> None:
        """Discard queued records, and abort the transaction."""


class PlainProducer:
    """See Producer."""

    def __init__(self, make: Callable[[], Sink], clients: MutableSet[Any]) -> None:
        """Create a producer. The connection lists it as an open client until it is closed."""
        self._make = make
        self._clients = clients
        self._sink = make()
        self._has_failed = False
        clients.add(self)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Producer."""
        if self._has_failed:  # after a failed delivery, the client may have lost its sequence numbers
            fresh = self._make()
            self._sink.release()
            self._sink, self._has_failed = fresh, False
        self._sink.send(topic, partition, key, value, headers)

    def flush(self) -> int:
        """See Producer."""
        if self._has_failed:  # no record has been sent since the failure
            return -1
        try:
            return max(self._sink.settle().values(), default=-1)
        except BrokerError:
            self._has_failed = True
            raise

    def close(self) -> None:
        """See Producer."""
        try:
            self.flush()
        finally:
            self._clients.discard(self)
            self._sink.release()


class TransactionProducer:
    """See TransactionalProducer."""

    def __init__(self, sink: TransactionSink, clients: MutableSet[Any]) -> None:
        """Create a producer. The connection lists it as an open client until it is closed."""
        self._sink = sink
        self._clients = clients
        self._in_transaction = False
        self._append_ms = -1  # the latest append time in the open transaction
        clients.add(self)

    def begin(self) -> None:
        """See TransactionalProducer."""
        self._check_usable()
        if self._in_transaction:
            raise BrokerError("a transaction is already open: commit or abort it first")
        self._sink.begin()
        self._in_transaction = True
        self._append_ms = -1

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See TransactionalProducer."""
        if not self._in_transaction or self._sink.failure is not None:  # checked here to save a call per record
            self._check_open()
        self._sink.send(topic, partition, key, value, headers)

    def flush(self) -> Mapping[TopicPartition, int]:
        """See TransactionalProducer."""
        self._check_open()
        appended_ms = self._sink.settle()
        self._append_ms = max(self._append_ms, *appended_ms.values(), -1)
        return appended_ms

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: Member) -> None:
        """See TransactionalProducer."""
        self._check_open()
        self._sink.send_offsets(offsets, consumer)

    def commit(self) -> int:
        """See TransactionalProducer."""
        self.flush()
        self._sink.commit()
        self._in_transaction = False
        return self._append_ms

    def abort(self) -> None:
        """See TransactionalProducer."""
        if self._in_transaction:
            self._in_transaction = False
            self._check_usable()
            self._sink.abort()

    def close(self) -> None:
        """See TransactionalProducer."""
        with suppress(BrokerError):  # the next producer with this id, or the broker, aborts the transaction
            self.abort()
        self._clients.discard(self)
        self._sink.release()

    def _check_open(self) -> None:
        self._check_usable()
        if not self._in_transaction:
            raise BrokerError("no transaction is open: call begin first")

    def _check_usable(self) -> None:
        if self._sink.failure is not None:
            raise self._sink.failure


def outcome_unknown(connection: Connection, transactional_id: str, why: str) -> BrokerUnavailableError:
    """Return the error for a producer whose last transaction may or may not have been committed."""
    return BrokerUnavailableError(
        f"the outcome of a transaction with the transactional id {transactional_id} at {connection.bootstrap} is "
        f"unknown: {why}; create a new producer with this id, and check whether the topics contain the records"
    )
