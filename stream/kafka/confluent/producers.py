"""Writing to Kafka, with and without transactions.

What librdkafka leaves to its caller:

- A record for a topic or a partition that is not there is queued, and fails after the time of a request. `_Sent` asks
  how many partitions there are before it first writes to a topic. It asks the admin client: a producer that asks has
  the broker make the topic.
- Whether all of a flush was written is told record by record, by their delivery callbacks. In a transaction its end
  tells that, too; so there only the last record of each partition has one, which tells the latest append time.
- A transaction that begins before the markers of the last one are written is tried again after 20 ms, whatever the
  settings say. So it is begun a little later (`_MARKERS_S`).
- After a commit that was not answered its outcome is unknown, and the producer is of no more use here.
- To send offsets may take for ever, whatever time it is given, where the group's coordinator is away when it begins.
  Here it has the time of a request.
- Why a transaction has come to nothing, neither the records nor a flush of them say. Its commit does (`_refuse_why`).
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import confluent_kafka

from stream.kafka.confluent.admin import Admin
from stream.kafka.confluent.bounded import bounded
from stream.kafka.confluent.connection import FENCED, RAISED, Connection, error_of, is_transient
from stream.kafka.confluent.headers import headers_to_send
from stream.kafka.confluent.membership import GroupConsumer
from stream.kafka.confluent.security import is_refusal
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, Consumer, FencedError
from stream.kafka.refusals import without_append_time
from stream.wire.records import Headers, TopicPartition

_kafka: Any = confluent_kafka
_BY_BROKER = _kafka.TIMESTAMP_LOG_APPEND_TIME

_QUEUED_RECORDS_MAX = 20_000
_QUEUED_KIB_MAX = 32 << 10
"""So many unacknowledged records are waited for before more are queued."""

_RECORD_BYTES_MAX = 1 << 20
_LARGE_BYTES = 64 << 10
"""A record from here on is queued at once: the client may refuse it, and that is said where it is sent."""

_LINGER_MS = 5
_MARKERS_S = 0.003
"""How long after a commit the next transaction begins, at least. Of 30 records each, on a busy machine: 41 ms in the
median with none between, 9 with 2 ms, and with 10 ms no less."""
_RETRY_MS = 20

_IN_VAIN = frozenset((_kafka.KafkaError._STATE, _kafka.KafkaError._PURGE_QUEUE))
"""What is said of records of a transaction that has come to nothing."""


def make_producer(connection: Connection, **own: Any) -> Any:
    """A producer of confluent-kafka."""
    with connection.translating("make a producer"):
        return _kafka.Producer(
            connection.properties(
                **{
                    "acks": "all",
                    "enable_idempotence": True,
                    "linger_ms": _LINGER_MS,
                    "message_max_bytes": _RECORD_BYTES_MAX,
                    "message_timeout_ms": connection.request_timeout_ms + _LINGER_MS,
                    "queue_buffering_max_messages": _QUEUED_RECORDS_MAX,
                    "queue_buffering_max_kbytes": _QUEUED_KIB_MAX,
                    "partitioner": "murmur2_random",
                    "retry_backoff_ms": _RETRY_MS,
                    **own,
                }
            )
        )


def transactional_producer(
    connection: Connection, admin: Admin, transactional_id: str, transaction_timeout_ms: int
) -> "TransactionalConfluentProducer":
    """A producer of transactions, which has taken over its id."""
    client = make_producer(
        connection,
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        # librdkafka wants both to end before the transaction does.
        message_timeout_ms=min(connection.request_timeout_ms, transaction_timeout_ms),
        socket_timeout_ms=min(connection.request_timeout_ms, transaction_timeout_ms),
    )
    producer = TransactionalConfluentProducer(connection, admin, client, transactional_id)
    producer.take_over()
    return producer


class _Sent:
    """Records that were queued, and what their acknowledgements say."""

    __slots__ = (
        "_admin", "_append_ms", "_connection", "_delivered", "_error", "_failed", "_headers", "_lasts", "_others",
        "_partitions", "_refuse_why", "_refused",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        admin: Admin,
        refuse_why: Callable[[Any], None] = lambda error: None,
        *,
        is_told_by_its_end: bool = False,
    ) -> None:
        """Send nothing yet.

        Args:
            connection: where.
            admin: who knows how many partitions there are.
            refuse_why: raises what is behind an error of a record, if it knows.
            is_told_by_its_end: whether a transaction tells at its end that a record was not written.
        """
        self._connection = connection
        self._admin = admin
        self._refuse_why = refuse_why
        self._delivered = self._hear_last
        self._others = None if is_told_by_its_end else self._hear_failure  # is told of all but the last
        self._lasts: dict[tuple[str, int], _Message] = {}  # of each partition the last record, not queued yet
        self._headers: tuple[Headers, list[tuple[str, bytes]]] = (), []  # of the last record, and as they are sent
        self._partitions: dict[str, int] = {}
        self._append_ms: dict[tuple[str, int], int] = {}
        self._failed = 0
        self._error: Any = None
        self._refused: set[str] = set()  # topics

    def send(
        self, client: Any, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Queue a record; when too many are queued, wait for those."""
        if partition >= self._partitions.get(topic, 0):
            self._look_up(topic, partition)
        if headers is not self._headers[0]:
            self._headers = headers, headers_to_send(topic, headers)
        tp, message = (topic, partition), (key, value, self._headers[1])
        last = self._lasts.pop(tp, None)
        if last is not None:
            self._produce(client, tp, last, self._others)
        if value is None or len(value) < _LARGE_BYTES:
            self._lasts[tp] = message
        else:
            self._produce(client, tp, message, self._delivered)

    def _produce(self, client: Any, tp: tuple[str, int], message: "_Message", delivered: Any) -> None:
        (topic, partition), (key, value, headers) = tp, message
        try:
            while True:
                try:
                    client.produce(topic, value, key, partition, on_delivery=delivered, headers=headers)
                except BufferError:
                    client.flush(self._connection.patience_s)
                else:
                    return
        except RAISED as raised:
            self._refuse_why(error_of(raised))
            what = f"send a record of {len(value or b'')} bytes to {topic}/{partition}"
            self._connection.refuse(what, error_of(raised), raised, [Acl("topic", topic, "Write")])

    def _look_up(self, topic: str, partition: int) -> None:
        there_are = self._partitions[topic] = self._admin.partitions_of(topic)
        if partition >= there_are:
            raise BrokerError(
                f"could not send a record to {topic}/{partition} at {self._connection.bootstrap}: "
                f"the topic has {there_are} partitions"
            )

    def _hear_last(self, error: Any, message: Any) -> None:
        if error is None:
            kind, append_ms = message.timestamp()
            self._append_ms[message.topic(), message.partition()] = append_ms if kind == _BY_BROKER else -1
        else:
            self._hear_failure(error, message)

    def _hear_failure(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed += 1
            self._error = self._error or error
            if is_refusal(error):
                self._refused.add(message.topic())

    def settle(self, client: Any) -> dict[TopicPartition, int]:
        """Wait until each record is acknowledged; each partition's latest append time since this was last asked for."""
        lasts, self._lasts = self._lasts, {}
        for tp, last in lasts.items():
            self._produce(client, tp, last, self._delivered)
        with self._connection.translating("write records", self.needs()):
            left = client.flush(self._connection.patience_s)
        append_ms = {TopicPartition(*tp): ms for tp, ms in self._append_ms.items()}
        failed, error, needs = self._failed, self._error, self.needs()
        self.drop()
        if error is not None:
            self._refuse_why(error)
            self._connection.refuse(f"write {failed} records", error, needs=needs)
        if left:
            raise BrokerUnavailableError(
                f"could not write {left} records: Kafka at {self._connection.bootstrap} did not answer within "
                f"{self._connection.request_timeout_ms} ms; see that it runs and is reachable"
            )
        for tp, ms in append_ms.items():
            if ms < 0:
                raise without_append_time(*tp)
        return append_ms

    def needs(self) -> list[Acl]:
        """What must be allowed for what was sent: of topics that were refused, or else of all."""
        return [Acl("topic", topic, "Write") for topic in sorted(self._refused or self._partitions)]

    def drop(self) -> None:
        """Forget what was heard, and what is not queued yet."""
        self._lasts.clear()
        self._append_ms, self._failed, self._error = {}, 0, None
        self._refused.clear()


_Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""A record's key, value and headers, as they are sent."""


class PlainProducer:
    """See Producer."""

    def __init__(self, connection: Connection, admin: Admin) -> None:
        self._connection = connection
        self._admin = admin
        self._client = make_producer(connection)
        self._sent = _Sent(connection, admin)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Producer."""
        self._sent.send(self._client, topic, partition, key, value, headers)

    def flush(self) -> int:
        """See Producer."""
        try:
            return max(self._sent.settle(self._client).values(), default=-1)
        except BrokerError:
            self._renew()
            raise

    def listen(self) -> None:
        """See Speaking."""
        with suppress(*RAISED):
            self._client.poll(0)

    def close(self) -> None:
        """See Producer."""
        try:
            self.flush()
        finally:
            self._connection.forget(self)
            release(self._client)
            self._client = None

    def _renew(self) -> None:
        """Make the client anew: one that could not deliver may have no sequence to go on with."""
        release(self._client)
        self._client = make_producer(self._connection)
        self._sent = _Sent(self._connection, self._admin)


class TransactionalConfluentProducer:
    """See TransactionalProducer."""

    def __init__(self, connection: Connection, admin: Admin, client: Any, transactional_id: str) -> None:
        self._connection = connection
        self._client = client
        self._id = transactional_id
        self._own = Acl("transactional-id", transactional_id, "Write")
        self._sent = _Sent(connection, admin, self._refuse_why, is_told_by_its_end=True)
        self._in_transaction = False
        self._append_ms = -1  # the latest append time in the open transaction
        self._committed_s = -math.inf  # by this host's monotonic clock
        self._ended: Callable[[], BrokerError] | None = None  # what all is answered when this producer is of no use

    def take_over(self) -> None:
        """Fence earlier producers of this id, and have their open transaction aborted."""
        try:
            self._connection.ask(
                f"take over the transactional id {self._id}",
                lambda: self._client.init_transactions(self._connection.request_timeout_s),
                [self._own],
            )
        except BrokerError:
            self.close()
            raise

    def rest(self) -> None:
        """See TransactionalProducer."""
        time.sleep(max(0.0, self._committed_s + _MARKERS_S - time.monotonic()))

    def begin(self) -> None:
        """See TransactionalProducer."""
        self._check_usable()
        self.rest()
        with self._translating("begin a transaction"):
            self._client.begin_transaction()
        self._in_transaction = True
        self._append_ms = -1

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See TransactionalProducer."""
        if not self._in_transaction or self._ended is not None:  # seldom: a call for each record would be felt
            self._check_open()
        self._sent.send(self._client, topic, partition, key, value, headers)

    def flush(self) -> Mapping[TopicPartition, int]:
        """See TransactionalProducer."""
        self._check_open()
        appended_ms = self._sent.settle(self._client)
        self._append_ms = max(self._append_ms, *appended_ms.values(), -1)
        return appended_ms

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: Consumer) -> None:
        """See TransactionalProducer."""
        self._check_open()
        assert isinstance(consumer, GroupConsumer)
        metadata = consumer.membership()
        positions = [_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        what = f"send the offsets of group {consumer.group}"
        with self._translating(what, consumer.needs()):
            send = partial(self._client.send_offsets_to_transaction, positions, metadata)
            try:
                bounded(partial(send, self._connection.request_timeout_s), self._connection.patience_s)
            except TimeoutError as error:
                self._connection.cut_off_s = time.monotonic()  # nobody heard what the clients said meanwhile
                raise self._end_unknown(what, "the client does not come back") from error
            except RAISED as raised:
                if error_of(raised).code() == _kafka.KafkaError.UNKNOWN_MEMBER_ID:
                    consumer.hear_thrown_out()
                raise
        consumer.hear_offsets_taken()

    def commit(self) -> int:
        """See TransactionalProducer."""
        self.flush()
        with self._translating("commit"):
            self._client.commit_transaction(self._connection.request_timeout_s)
        self._in_transaction = False
        self._committed_s = time.monotonic()
        return self._append_ms

    def abort(self) -> None:
        """See TransactionalProducer."""
        if not self._in_transaction:
            return
        self._in_transaction = False
        self._check_usable()
        with self._translating("abort"):
            self._client.abort_transaction(self._connection.request_timeout_s)
        self._sent.drop()

    def listen(self) -> None:
        """See Speaking."""
        with suppress(*RAISED):
            self._client.poll(0)

    def close(self) -> None:
        """See TransactionalProducer."""
        with suppress(BrokerError):  # what is left open is aborted by its successor, or by the broker in time
            self.abort()
        self._connection.forget(self)
        release(self._client)
        self._client = None

    def _refuse_why(self, error: Any) -> None:
        """Raise why the transaction has come to nothing, if an error of a record says that it has.

        Nothing is committed by that: in such a transaction librdkafka refuses it.
        """
        if error.code() in _IN_VAIN:
            with self._translating("write records"):
                self._client.commit_transaction(self._connection.request_timeout_s)

    def _check_open(self) -> None:
        self._check_usable()
        if not self._in_transaction:
            raise BrokerError("no transaction is open: call begin first")

    def _check_usable(self) -> None:
        if self._ended is not None:
            raise self._ended()

    def _end_unknown(self, what: str, why: str) -> BrokerUnavailableError:
        """Be of no more use: nobody knows what has become of the transaction."""
        told = (
            f"the outcome of a transaction of {self._id} at {self._connection.bootstrap} is unknown: could not "
            f"{what} ({why}); make a new producer with this id, and read what was written"
        )
        self._ended = lambda: BrokerUnavailableError(told)
        return BrokerUnavailableError(told)

    @contextmanager
    def _translating(self, what: str, needs: Sequence[Acl] = ()) -> Iterator[None]:
        what = f"{what} (transactional id {self._id})"
        try:
            yield
        except RAISED as raised:
            error = error_of(raised)
            if is_refusal(error):
                self._connection.refuse(what, error, raised, [self._own, *needs, *self._sent.needs()])
            if error.fatal() and error.code() in FENCED:
                self._ended = lambda: FencedError(f"could not {what}: another process has taken over ({error.str()})")
            elif is_transient(error) and not error.txn_requires_abort():
                self._end_unknown(what, error.str())
            self._check_usable()
            self._connection.refuse(what, error, raised)


def release(client: Any) -> None:
    """Let a producer go without waiting for what it has not delivered."""
    with suppress(*RAISED):
        client.purge()
        client.poll(0)
