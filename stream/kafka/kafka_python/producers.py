"""Writing to Kafka, with and without transactions.

What kafka-python leaves to its caller:

- `commit_transaction`, `abort_transaction` and `send_offsets_to_transaction` wait without a limit. Every wait here ends
  (`_wait_for`), and a commit that was not answered is an outcome unknown, after which the producer is of no more use.
- A producer whose epoch it renews by itself in the middle of a transaction (KIP-360) afterwards answers a commit with
  success, although the broker has aborted what was sent. So a commit is asked for only when every record of the
  transaction has been acknowledged, one by one (`_Sent.settle`).
- A consumer's group metadata fall back to "no generation", which the broker does not check, when the member is thrown
  out. Offsets are not sent then (`GroupConsumer.membership`). That the answer to a producer's offsets was
  UNKNOWN_MEMBER_ID, the consumer does not hear (`send_offsets`).
- When the broker does not allow the offsets of a topic, it lets its transaction be ended by nobody, although the broker
  would abort it. Until the time-out others would wait for it (`_let_abort`).
- When the broker says that a producer's epoch is not the newest, which is how a zombie hears of its successor, it asks
  for a new epoch, as a producer may that has lost its way. Now and then it gets one, and its successor is fenced. Here
  it does not ask (`_do_not_come_back`).
- Its metadata of a record in a CreateTime topic have the sender's time for the append time (`_Sent.settle`).
- It queues without a limit, and its own close raises, and leaves its thread, when records are not settled.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.producer.transaction_manager import TransactionState

from stream.kafka.kafka_python.connection import CLOSE_S, FENCED, STALE, Connection
from stream.kafka.kafka_python.foreign import NULL, NullSerializer, headers_to_send
from stream.kafka.kafka_python.membership import GroupConsumer, offsets_of
from stream.kafka.kafka_python.security import is_refusal
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, Consumer, FencedError
from stream.kafka.refusals import without_append_time
from stream.wire.records import Headers, TopicPartition

_QUEUED_RECORDS_MAX = 20_000
_QUEUED_BYTES_MAX = 32 << 20
"""So many unacknowledged records are waited for before more are queued."""


def plain_producer(connection: Connection) -> "PlainProducer":
    """A producer outside of transactions."""
    return PlainProducer(connection, partial(_make, connection, linger_ms=5))


def transactional_producer(
    connection: Connection, transactional_id: str, transaction_timeout_ms: int
) -> "TransactionalKafkaProducer":
    """A producer of transactions, which has taken over its id."""
    client = _make(
        connection,
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        # The next transaction meets CONCURRENT_TRANSACTIONS until the last one's markers are written, which takes
        # a few ms; with the default of 100 a transaction takes 16-220 ms instead of 10.
        retry_backoff_ms=5,
    )
    _do_not_come_back(client._transaction_manager)
    producer = TransactionalKafkaProducer(connection, client, transactional_id)
    producer.take_over()
    return producer


def _do_not_come_back(manager: Any) -> None:
    """Let a producer whose epoch is old be fenced for good."""
    manager._NEEDS_EPOCH_BUMP_ERRORS = manager._NEEDS_EPOCH_BUMP_ERRORS - {kafka_errors.InvalidProducerEpochError}


def _make(connection: Connection, **settings: Any) -> Any:
    linger_ms = settings.get("linger_ms", 0)
    with connection.translating("connect a producer"):
        return connection.make(
            KafkaProducer,
            acks="all",
            enable_idempotence=True,
            batch_size=256 << 10,
            delivery_timeout_ms=connection.request_timeout_ms + linger_ms,
            max_block_ms=connection.request_timeout_ms,
            allow_auto_create_topics=False,
            metrics_enabled=False,
            value_serializer=NullSerializer(),
            **settings,
        )


class _Sent:
    """Records that were queued and not yet acknowledged."""

    __slots__ = ("_appended_ms", "_bytes", "_connection", "_futures", "_topics")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._futures: list[Any] = []
        self._bytes = 0
        self._topics: set[str] = set()
        self._appended_ms: dict[TopicPartition, int] = {}

    def send(
        self, client: Any, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Queue a record; when too many are queued, wait for those."""
        self._topics.add(topic)
        try:
            sent = NULL if key is None and value is None else value
            self._futures.append(client.send(topic, sent, key, headers_to_send(headers), partition))
        except (kafka_errors.KafkaError, ValueError, TypeError) as error:
            what = f"send a record of {len(value or b'')} bytes to {topic}/{partition}"
            self._connection.refuse(what, error, self.needs())
        self._bytes += len(value or b"")
        if len(self._futures) >= _QUEUED_RECORDS_MAX or self._bytes >= _QUEUED_BYTES_MAX:
            self._appended_ms = self.settle()

    def settle(self, *, wait: bool = True) -> dict[TopicPartition, int]:
        """Wait until each record is acknowledged; each partition's latest append time since this was last asked for."""
        futures, self._futures, self._bytes = self._futures, [], 0
        appended_ms, self._appended_ms = self._appended_ms, {}
        deadline_s = time.monotonic() + (self._connection.patience_s if wait else 0)
        failed: tuple[int, Exception | None] = (0, None)
        undated: TopicPartition | None = None
        for future in futures:
            try:
                written = future.get(max(0.0, deadline_s - time.monotonic()))
            except kafka_errors.KafkaError as error:
                failed = (failed[0] + 1, failed[1] or error)
                continue
            tp = TopicPartition(written.topic, written.partition)
            _, append_ms, _ = future._produce_future.value
            if append_ms < 0:
                undated = tp
            elif append_ms > appended_ms.get(tp, -1):
                appended_ms[tp] = append_ms
        if failed[1] is not None:
            self._connection.refuse(f"write {failed[0]} of {len(futures)} records", failed[1], self.needs())
        if undated is not None:
            raise without_append_time(*undated)
        return appended_ms

    def needs(self) -> list[Acl]:
        """What must be allowed for writing them."""
        return [Acl("topic", topic, "Write") for topic in sorted(self._topics)]

    def drop(self) -> None:
        """Forget all: their transaction was aborted."""
        self._futures, self._bytes, self._appended_ms = [], 0, {}


class PlainProducer:
    """See Producer."""

    def __init__(self, connection: Connection, make: Callable[[], Any]) -> None:
        self._connection = connection
        self._make = make
        self._client = make()
        self._sent = _Sent(connection)
        self._failed = False

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Producer."""
        if self._failed:
            self._renew()
        self._sent.send(self._client, topic, partition, key, value, headers)

    def flush(self) -> int:
        """See Producer."""
        with suppress(kafka_errors.KafkaTimeoutError):  # then the records themselves say what became of them
            self._client.flush(self._connection.patience_s)
        try:
            return max(self._sent.settle(wait=False).values(), default=-1)
        except BrokerError:
            self._failed = True
            raise

    def close(self) -> None:
        """See Producer."""
        try:
            self.flush()
        finally:
            self._connection.forget(self)
            _close_producer(self._client)

    def _renew(self) -> None:
        """Make the client anew.

        After records that were not acknowledged in time the old one does not know its sequence numbers any more, and
        must get a new epoch by a connection that may be gone: it sent again only after 5 s and more.
        """
        fresh = self._make()
        _close_producer(self._client)
        self._client = fresh
        self._failed = False


class TransactionalKafkaProducer:
    """See TransactionalProducer."""

    def __init__(self, connection: Connection, client: Any, transactional_id: str) -> None:
        self._connection = connection
        self._client = client
        self._id = transactional_id
        self._sent = _Sent(connection)
        self._in_transaction = False
        self._append_ms = -1  # the latest append time in the open transaction
        self._unknown: str | None = None  # why the outcome of a transaction is unknown

    def take_over(self) -> None:
        """Fence earlier producers of this id, and have their open transaction aborted."""
        try:
            with self._translating("take over the transactional id"):
                self._client.init_transactions()
        except BrokerError:
            self.close()
            raise

    def rest(self) -> None:
        """See TransactionalProducer; this client soon tries again what is put off."""

    def begin(self) -> None:
        """See TransactionalProducer."""
        self._check_known()
        with self._translating("begin a transaction"):
            self._client.begin_transaction()
        self._in_transaction = True
        self._append_ms = -1

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See TransactionalProducer."""
        self._check_open()
        self._sent.send(self._client, topic, partition, key, value, headers)

    def flush(self) -> Mapping[TopicPartition, int]:
        """See TransactionalProducer."""
        self._check_open()
        appended_ms = self._settle()
        self._append_ms = max(self._append_ms, *appended_ms.values(), -1)
        return appended_ms

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: Consumer) -> None:
        """See TransactionalProducer."""
        self._check_open()
        assert isinstance(consumer, GroupConsumer)
        metadata = consumer.membership()
        with self._translating(f"send the offsets of group {metadata.group_id}", consumer.needs()):
            result = self._manager.send_offsets_to_transaction(offsets_of(offsets), metadata)
            try:
                self._wait_for(result, "send offsets")
            except kafka_errors.CommitFailedError as error:
                if kafka_errors.UnknownMemberIdError.__name__ in str(error):
                    consumer.hear_thrown_out()
                raise

    def commit(self) -> int:
        """See TransactionalProducer."""
        self.flush()
        with self._translating("commit"):
            self._wait_for(self._manager.begin_commit(), "commit")
        self._in_transaction = False
        return self._append_ms

    def abort(self) -> None:
        """See TransactionalProducer."""
        if not self._in_transaction:
            return
        self._in_transaction = False
        self._sent.drop()
        self._check_known()
        self._let_abort()
        with self._translating("abort"):
            self._wait_for(self._manager.begin_abort(), "abort")

    def close(self) -> None:
        """See TransactionalProducer."""
        with suppress(BrokerError):  # what is left open is aborted by its successor, or by the broker in time
            self.abort()
        self._connection.forget(self)
        _close_producer(self._client)

    @property
    def _manager(self) -> Any:
        return self._client._transaction_manager

    def _settle(self) -> dict[TopicPartition, int]:
        try:
            return self._sent.settle()
        except BrokerError:
            self._raise_if_final("write records")  # the records themselves may know only of an aborted batch
            raise

    def _wait_for(self, result: Any, what: str) -> None:
        """Wait for the transaction manager, but not for ever, as the client's own calls do."""
        self._client._sender.wakeup()
        if not result.wait(1000 * self._connection.patience_s):
            self._unknown = f"{what} was not answered within {self._connection.request_timeout_ms} ms"
            self._check_known()

    def _let_abort(self) -> None:
        """Let a transaction be aborted in which something was not allowed."""
        manager = self._manager
        if manager.has_fatal_error() and is_refusal(manager.last_error):
            manager._current_state = TransactionState.ABORTABLE_ERROR

    def _check_open(self) -> None:
        self._check_known()
        if not self._in_transaction:
            raise BrokerError("no transaction is open: call begin first")

    def _check_known(self) -> None:
        if self._unknown is not None:
            raise BrokerUnavailableError(
                f"the outcome of a transaction of {self._id} at {self._connection.bootstrap} is unknown: "
                f"{self._unknown}; make a new producer with this id, and read what was written"
            )

    @contextmanager
    def _translating(self, what: str, needs: Sequence[Acl] = ()) -> Iterator[None]:
        what = f"{what} (transactional id {self._id})"
        try:
            yield
        except kafka_errors.KafkaError as error:
            self._raise_if_final(what, needs)
            if "Invalid transition" in str(error):
                raise FencedError(
                    f"could not {what}: the broker has aborted the transaction, because it was open for longer than "
                    f"its time-out or another process has taken over"
                ) from error
            if self._manager.has_fatal_error():  # so it also takes a request that was not answered in time
                self._unknown = f"could not {what}: {error}"
                self._check_known()
            self._connection.refuse(what, error, needs)

    def _raise_if_final(self, what: str, needs: Sequence[Acl] = ()) -> None:
        """Raise when the transaction manager has heard that another has taken over, or that this is not allowed."""
        reason = self._manager.last_error
        if isinstance(reason, (*FENCED, *STALE)) or is_refusal(reason):
            own = Acl("transactional-id", self._id, "Write")
            self._connection.refuse(what, reason, (own, *needs, *self._sent.needs()))


def _close_producer(client: Any) -> None:
    """Close a producer whose records are settled; its own close raises, and leaves its thread, if some are not."""
    client._sender.force_close()
    client._sender.join(CLOSE_S)
    with suppress(kafka_errors.KafkaError):
        client.close(timeout=0)
