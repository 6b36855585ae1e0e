"""Writes to Kafka, with and without transactions.

Workarounds for librdkafka:

- A record for a topic or a partition that does not exist is queued and fails after the request timeout. Before the
  first record is sent to a topic, `_look_up` therefore reads the number of partitions. It uses kafka-python, because a
  request from a librdkafka producer would make the broker create the topic.
- Only delivery callbacks report whether, and when, all records in a flush were written. Reading each message in the
  callback would take 3 µs per record, so the callback keeps only each partition's last message. The callback contains
  no Python code, because the client runs it while the client's fatal error is set as Python's current exception, and
  the interpreter may clear this exception.
- If a transaction begins before the previous one's markers are written, librdkafka retries after 20 ms, regardless of
  the settings. `begin` therefore waits briefly (`_MARKERS_S`).
- If no response to a commit arrives, the commit's outcome is unknown, and the producer can no longer be used.
- `send_offsets_to_transaction` may never return, regardless of its timeout, if the group's coordinator is unavailable
  when the call begins. Here, the request timeout limits the call.
- The client repeats a commit or abort whose connection is lost. Only its debug log reports this (`_EndTxnLog`).
- Only a commit reports why the broker aborted the transaction. Errors from sending or flushing records do not contain
  the reason (`_raise_cause`).
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import setitem
from typing import Any, NoReturn

import confluent_kafka

from stream.kafka.confluent.connection import (
    FENCED,
    RAISED,
    ConfluentConnection,
    error_of,
    is_refusal,
    is_transient,
)
from stream.kafka.confluent.headers import headers_to_send
from stream.kafka.confluent.membership import GroupConsumer
from stream.kafka.kafka_python.admin import Admin
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, FencedError, Member
from stream.kafka.producers import QUEUED_BYTES_MAX, QUEUED_RECORDS_MAX
from stream.kafka.refusals import without_append_time
from stream.wire.records import Headers, TopicPartition

_kafka: Any = confluent_kafka

_RECORD_BYTES_MAX = 1 << 20
_LINGER_MS = 5
_MARKERS_S = 0.003
"""Minimum time between a commit and the next transaction. On a busy machine, the median duration of a transaction with
30 records is 41 ms without this wait and 9 ms with a wait of 2 ms. A wait of 10 ms does not reduce it further."""
_RETRY_MS = 20

_IN_VAIN = frozenset((_kafka.KafkaError._STATE, _kafka.KafkaError._PURGE_QUEUE))
"""Errors for records whose transaction was aborted."""


class ConfluentSink:
    """See Sink."""

    def __init__(self, connection: ConfluentConnection, admin: Admin, logger: Any = None, **own: Any) -> None:
        self._connection = connection
        self._admin = admin
        # The last record's headers, both as passed to `send` and in the form that the client expects.
        self._headers: tuple[Headers, list[tuple[str, bytes]]] = (), []
        self._callbacks: dict[str, list[Callable[[Any, Any], None]]] = {}  # one callback per partition, by topic
        # For each partition, the last message that was written (None) and the last that failed with each error.
        self._reports: dict[TopicPartition, dict[Any, Any]] = {}
        message_timeout_ms = connection.request_timeout_ms + _LINGER_MS
        limit_ms = own.get("transaction_timeout_ms", message_timeout_ms)  # no request may outlive its transaction
        with connection.translating("create a producer"):
            self._client = _kafka.Producer(
                connection.properties(
                    logger,
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=_LINGER_MS,
                    message_max_bytes=_RECORD_BYTES_MAX,
                    message_timeout_ms=min(message_timeout_ms, limit_ms),
                    socket_timeout_ms=min(connection.request_timeout_ms, limit_ms),
                    queue_buffering_max_messages=QUEUED_RECORDS_MAX,
                    queue_buffering_max_kbytes=QUEUED_BYTES_MAX >> 10,
                    partitioner="murmur2_random",
                    retry_backoff_ms=_RETRY_MS,
                    **own,
                )
            )
        connection.producers.append(self._client)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Sink."""
        callbacks: Sequence[Callable[[Any, Any], None]] = self._callbacks.get(topic, ())
        if partition >= len(callbacks):
            callbacks = self._look_up(topic, partition)
        if headers is not self._headers[0]:
            self._headers = headers, headers_to_send(topic, headers)
        try:
            while True:
                try:
                    self._client.produce(
                        topic, value, key, partition, on_delivery=callbacks[partition], headers=self._headers[1]
                    )
                except BufferError:
                    self._client.flush(self._connection.patience_s)
                else:
                    return
        except RAISED as raised:
            self._raise_cause(error_of(raised))
            what = f"send a record of {len(value or b'')} bytes to {topic}/{partition}"
            self._connection.refuse(what, raised, [Acl("topic", topic, "Write")])

    def _look_up(self, topic: str, partition: int) -> list[Callable[[Any, Any], None]]:
        partitions = self._admin.partitions_of(topic)
        if partition >= partitions:
            raise BrokerError(
                f"could not send a record to {topic}/{partition} at {self._connection.bootstrap}: "
                f"the topic has {partitions} partitions"
            )
        reports: list[dict[Any, Any]] = [{} for _ in range(partitions)]
        self._reports |= {TopicPartition(topic, number): report for number, report in enumerate(reports)}
        self._callbacks[topic] = [partial(setitem, report) for report in reports]
        return self._callbacks[topic]

    def flush(self) -> dict[TopicPartition, int]:
        """See Sink."""
        try:
            left = self._client.flush(self._connection.patience_s)
        except RAISED as raised:
            self._raise_cause(error_of(raised))
            self._connection.refuse("write records", raised, self.needs())
        delivered = {tp: report[None] for tp, report in self._reports.items() if None in report}
        errors = [error for _, error in self._failures()]
        needs = self.needs() if errors else []
        self.drop()
        if errors:
            error = min(errors, key=lambda error: error.code() in _IN_VAIN)
            self._raise_cause(error)
            self._connection.refuse("write records", _kafka.KafkaException(error), needs)
        if left:
            raise self._connection.unanswered(f"write {left} records")
        appended_ms = {}
        for tp, message in delivered.items():
            kind, appended_ms[tp] = message.timestamp()
            if kind != _kafka.TIMESTAMP_LOG_APPEND_TIME:
                raise without_append_time(*tp)
        return appended_ms

    def needs(self) -> list[Acl]:
        """Return the ACLs for the topics to which the broker refused writes, or for all topics if it refused none."""
        refused = {tp.topic for tp, error in self._failures() if is_refusal(error)}
        return [Acl("topic", topic, "Write") for topic in sorted(refused or self._callbacks)]

    def _failures(self) -> Iterator[tuple[TopicPartition, Any]]:
        return ((tp, error) for tp, report in self._reports.items() for error in report if error is not None)

    def drop(self) -> None:
        """Discard the acknowledgements and errors collected so far."""
        for report in self._reports.values():
            report.clear()

    def close(self) -> None:
        """See Sink."""
        if self._client is not None:
            self._connection.producers.remove(self._client)
            with suppress(*RAISED):
                self._client.purge()
                self._client.poll(0)
            self._client = None

    def _raise_cause(self, error: Any) -> None:
        """Raise a different error if the client's error is not the cause."""
        if error.code() == _kafka.KafkaError._FATAL:
            with self._connection.translating("write records", self.needs()):
                self._client.poll(0)  # raises the reason, unless the client has already reported it
            # Without transactions, no other process can take over. A new client reports the reason.
            raise BrokerUnavailableError(f"could not write records at {self._connection.bootstrap}: {error.str()}")


class _EndTxnLog:
    """A client's logger that detects repeated EndTxn requests.

    librdkafka logs the result of each EndTxn request: "EndTxn returned NO_ERROR in state CommittingTransaction ...". It
    logs about 27 lines per transaction, which take 0.06 ms of CPU time.
    """

    def __init__(self) -> None:
        self.repeats = False  # whether an EndTxn request had another result, after which the client repeats it

    def log(self, level: int, template: str, facility: str, client: str, text: str) -> None:
        """Receive a line of the log."""
        if facility == "ENDTXN" and "returned NO_ERROR" not in text:
            self.repeats = True


class ConfluentTransactionSink(ConfluentSink):
    """See TransactionSink."""

    def __init__(self, connection: ConfluentConnection, admin: Admin, transactional_id: str) -> None:
        self._log = _EndTxnLog()
        super().__init__(
            connection,
            admin,
            self._log,
            debug="eos",
            transactional_id=transactional_id,
            transaction_timeout_ms=connection.settings.transaction_timeout_ms,
            # After all connections are closed, for example because they were idle, the default strategy makes
            # send_offsets_to_transaction wait for 4 to 17 s in about half of the cases (librdkafka 2.16.0). Other
            # clients need the default: with "none", a producer does not recover from a broker that was frozen.
            metadata_recovery_strategy="none",
        )
        self.failure: BrokerError | None = None
        self.is_exposed = False
        self._id = transactional_id
        self._own = Acl("transactional-id", transactional_id, "Write")
        self._committed_s = -math.inf  # monotonic time of the last commit
        take_over = partial(self._client.init_transactions, connection.request_timeout_s)
        try:
            connection.ask(f"take over the transactional id {transactional_id}", take_over, [self._own])
        except BrokerError:
            self.close()
            raise

    def begin(self) -> None:
        """See TransactionSink."""
        time.sleep(max(0.0, self._committed_s + _MARKERS_S - time.monotonic()))
        with self._translating("begin a transaction"):
            self._client.begin_transaction()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Member) -> None:
        """See TransactionSink."""
        assert isinstance(member, GroupConsumer)
        metadata = member.membership()
        positions = [_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        what = f"send the offsets for group {member.subscription.group}"
        with self._translating(what, member.needs()):
            send = partial(self._client.send_offsets_to_transaction, positions, metadata)
            try:
                self._connection.call(what, partial(send, self._connection.request_timeout_s))
            except BrokerUnavailableError as error:
                self._fail_unknown(what, "the client's call did not return", error)
            except RAISED as raised:
                if error_of(raised).code() == _kafka.KafkaError.UNKNOWN_MEMBER_ID:
                    member.on_unknown_member()
                raise
        member.on_offsets_accepted()

    def commit(self) -> None:
        """See TransactionSink."""
        with self._translating("commit"):
            self._client.commit_transaction(self._connection.request_timeout_s)
            self._read_log()
        self._committed_s = time.monotonic()

    def abort(self) -> None:
        """See TransactionSink."""
        with self._translating("abort"):
            self._client.abort_transaction(self._connection.request_timeout_s)
            self._read_log()
        self.drop()

    def _read_log(self) -> None:
        self._client.poll(0)
        self.is_exposed |= self._log.repeats

    def _raise_cause(self, error: Any) -> None:
        """Raise the error that caused the abort. The client reports it only in response to a commit."""
        if error.code() in _IN_VAIN:
            with self._translating("write records"):
                self._client.commit_transaction(self._connection.request_timeout_s)

    def _fail_unknown(self, what: str, why: str, raised: BaseException) -> NoReturn:
        self.failure = self._connection.outcome_unknown(self._id, f"could not {what} ({why})")
        raise self.failure from raised

    @contextmanager
    def _translating(self, what: str, needs: Sequence[Acl] = ()) -> Iterator[None]:
        what = f"{what} (transactional id {self._id})"
        try:
            yield
        except RAISED as raised:
            error = error_of(raised)
            if error.fatal() and error.code() in FENCED:
                self.failure = FencedError(f"could not {what}: another process has taken over ({error.str()})")
                raise self.failure from raised
            if is_transient(error) and not (is_refusal(error) or error.txn_requires_abort()):
                self._fail_unknown(what, error.str(), raised)
            self._connection.refuse(what, raised, [self._own, *needs, *self.needs()])
