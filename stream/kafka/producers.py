"""The Broker interface's producers. They check the order of calls and pass records to an adapter's `Sink`."""

from collections.abc import Callable, Iterator, Mapping, MutableSet
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from stream.kafka.port import BrokerError, Member, Producer
from stream.wire.records import Headers, TopicPartition

QUEUED_RECORDS_MAX = 20_000
QUEUED_BYTES_MAX = 32 << 20
"""Limits on unacknowledged records. At the limit, `send` waits for acknowledgements before it queues more records."""


class Sink(Producer, Protocol):
    """A client's producer. `close` does not wait for queued records."""


class TransactionSink(Sink, Protocol):
    """A client's transactional producer; see TransactionalProducer.

    `commit` does not flush; all records must have been acknowledged.
    """

    failure: BrokerError | None  # error for all later calls, set by fencing or by a commit with an unknown outcome
    is_exposed: bool  # whether an earlier EndTxn request, whose response was lost, may still reach the broker

    def begin(self) -> None: ...  # noqa: D102
    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: Member) -> None: ...  # noqa: D102
    def commit(self) -> None: ...  # noqa: D102
    def abort(self) -> None: ...  # noqa: D102


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
            self._sink.close()
            self._sink, self._has_failed = fresh, False
        self._sink.send(topic, partition, key, value, headers)

    def flush(self) -> Mapping[TopicPartition, int]:
        """See Producer."""
        if self._has_failed:  # no record has been sent since the failure
            return {}
        try:
            return self._sink.flush()
        except BrokerError:
            self._has_failed = True
            raise

    def close(self) -> None:
        """See Producer."""
        try:
            self.flush()
        finally:
            self._clients.discard(self)
            self._sink.close()


class TransactionProducer:
    """See TransactionalProducer.

    If a connection is lost during a commit or abort, the client repeats its EndTxn request. The first request can still
    reach the broker. If it arrives during the next transaction of the same epoch, it ends this transaction halfway
    (KIP-890, librdkafka issue 5423). The next transaction therefore begins with a new producer and a new epoch.
    """

    def __init__(self, make: Callable[[], TransactionSink], clients: MutableSet[Any]) -> None:
        """Create a producer. The connection lists it as an open client until it is closed."""
        self._make = make
        self._sink = make()
        self._clients = clients
        self._in_transaction = False
        clients.add(self)

    def begin(self, check_place: Callable[[], None] = lambda: None) -> None:
        """See TransactionalProducer."""
        self._check_usable()
        if self._in_transaction:
            raise BrokerError("a transaction is already open: commit or abort it first")
        if self._sink.is_exposed:
            check_place()
            self._renew()
        self._sink.begin()
        self._in_transaction = True

    def _renew(self) -> None:
        """Get a new epoch, so that the broker rejects all earlier requests."""
        fresh = self._make()
        self._sink.close()
        self._sink = fresh

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See TransactionalProducer."""
        if not self._in_transaction or self._sink.failure is not None:  # checked here to save a call per record
            self._check_open()
        self._sink.send(topic, partition, key, value, headers)

    def flush(self) -> Mapping[TopicPartition, int]:
        """See TransactionalProducer."""
        self._check_open()
        return self._sink.flush()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: Member) -> None:
        """See TransactionalProducer."""
        self._check_open()
        self._sink.send_offsets(offsets, consumer)

    def commit(self) -> None:
        """See TransactionalProducer."""
        self.flush()
        with self._ending():
            self._sink.commit()
        self._in_transaction = False

    def abort(self) -> None:
        """See TransactionalProducer."""
        if self._in_transaction:
            self._in_transaction = False
            self._check_usable()
            with self._ending():
                self._sink.abort()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except BrokerError:
            self._sink.is_exposed = True
            raise

    def close(self) -> None:
        """See TransactionalProducer."""
        with suppress(BrokerError):  # the next producer with this id, or the broker, aborts the transaction
            self.abort()
        self._clients.discard(self)
        self._sink.close()

    def _check_open(self) -> None:
        self._check_usable()
        if not self._in_transaction:
            raise BrokerError("no transaction is open: call begin first")

    def _check_usable(self) -> None:
        if self._sink.failure is not None:
            raise self._sink.failure
