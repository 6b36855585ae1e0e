"""Writes to Kafka, with and without transactions.

Workarounds for kafka-python:

- `commit_transaction`, `abort_transaction` and `send_offsets_to_transaction` wait indefinitely. Here, every wait has a
  timeout (`_wait_for`). If no response to a commit arrives, the commit's outcome is unknown, and the producer can no
  longer be used.
- If a producer renews its epoch during a transaction (KIP-360), the broker aborts the records sent so far, but a later
  commit reports success. A commit is therefore sent only after every record has been acknowledged (`flush`).
- When a member is removed from its group, the consumer's group metadata falls back to "no generation", which the broker
  does not check. In this case, no offsets are sent (`GroupConsumer.membership`). If the broker responds to a producer's
  offsets with UNKNOWN_MEMBER_ID, the client does not inform the consumer (`send_offsets`).
- If the broker refuses a topic's offsets because an ACL is missing, the client does not abort the transaction, although
  the broker would allow the abort. Other readers would be blocked until the transaction times out (`abort`).
- When the broker fences a zombie by reporting that its epoch is not the newest, the client requests a new epoch, as it
  does after losing its sequence numbers. A client that receives a new epoch fences its successor. Here, the client does
  not request a new epoch.
- The client repeats a commit or abort whose connection is lost, and does not report this (`watching`).
- For a topic with CreateTime, the client returns the sender's timestamp as a record's append time (`flush`).
- The producer's queue has no limit. If records remain unacknowledged, `close` raises an error and leaves the producer's
  thread running.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.producer.transaction_manager import EndTxnHandler, TransactionState
from kafka.serializer import SerializeWrapper

from stream.kafka.kafka_python.connection import CLOSE_S, KafkaConnection, kind_of
from stream.kafka.kafka_python.foreign import NULL, headers_to_send
from stream.kafka.kafka_python.membership import GroupConsumer, offsets_of
from stream.kafka.port import Acl, BrokerError, FencedError, Member, StaleMemberError, TransactionTimeoutError
from stream.kafka.producers import QUEUED_BYTES_MAX, QUEUED_RECORDS_MAX
from stream.kafka.refusals import without_append_time
from stream.wire.records import Headers, TopicPartition

_NO_RESPONSE = "for unknown reasons"
"""Part of the client's error for a request that received no response. The client treats such an error as fatal."""


class KafkaSink:
    """See Sink."""

    def __init__(self, connection: KafkaConnection, linger_ms: int = 0, **settings: Any) -> None:
        self._connection = connection
        self._futures: list[Any] = []
        self._bytes = 0
        self._topics: set[str] = set()
        self._appended_ms: dict[TopicPartition, int] = {}
        with connection.translating("connect a producer"):
            self._client = connection.make(
                KafkaProducer,
                acks="all",
                enable_idempotence=True,
                batch_size=256 << 10,
                linger_ms=linger_ms,
                delivery_timeout_ms=connection.request_timeout_ms + linger_ms,
                max_block_ms=connection.request_timeout_ms,
                allow_auto_create_topics=False,
                metrics_enabled=False,
                value_serializer=SerializeWrapper(lambda data: None if data is NULL else data),
                **settings,
            )

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Sink."""
        self._topics.add(topic)
        try:
            sent = NULL if key is None and value is None else value
            self._futures.append(self._client.send(topic, sent, key, headers_to_send(headers), partition))
        except (kafka_errors.KafkaError, ValueError, TypeError) as error:
            what = f"send a record of {len(value or b'')} bytes to {topic}/{partition}"
            self._connection.refuse(what, error, self.needs())
        self._bytes += len(value or b"")
        if len(self._futures) >= QUEUED_RECORDS_MAX or self._bytes >= QUEUED_BYTES_MAX:
            self._appended_ms = self.flush()

    def flush(self) -> dict[TopicPartition, int]:
        """See Sink."""
        futures, self._futures, self._bytes = self._futures, [], 0
        appended_ms, self._appended_ms = self._appended_ms, {}
        deadline_s = time.monotonic() + self._connection.patience_s
        with suppress(kafka_errors.KafkaTimeoutError):  # the futures below raise the records' errors
            self._client.flush(self._connection.patience_s)
        errors = []
        undated: TopicPartition | None = None
        for future in futures:
            try:
                written = future.get(max(0.0, deadline_s - time.monotonic()))
            except kafka_errors.KafkaError as error:
                errors.append(error)
                continue
            tp = TopicPartition(written.topic, written.partition)
            _, append_ms, _ = future._produce_future.value
            if append_ms < 0:
                undated = tp
            appended_ms[tp] = max(append_ms, appended_ms.get(tp, -1))
        if errors:
            self._raise_if_final("write records")  # a record's error may say only that its batch was aborted
            self._connection.refuse(f"write {len(errors)} of {len(futures)} records", errors[0], self.needs())
        if undated is not None:
            raise without_append_time(*undated)
        return appended_ms

    def needs(self) -> list[Acl]:
        """Return the ACLs required for the topics to which records were sent."""
        return [Acl("topic", topic, "Write") for topic in sorted(self._topics)]

    def close(self) -> None:
        """See Sink."""
        self._client._sender.force_close()
        self._client._sender.join(CLOSE_S)
        with suppress(kafka_errors.KafkaError):
            self._client.close(timeout=0)

    def _raise_if_final(self, what: str, needs: Sequence[Acl] = ()) -> None:
        """Raise an error if this producer can no longer write."""


class KafkaTransactionSink(KafkaSink):
    """See TransactionSink."""

    def __init__(self, connection: KafkaConnection, transactional_id: str) -> None:
        super().__init__(
            connection,
            transactional_id=transactional_id,
            transaction_timeout_ms=connection.settings.transaction_timeout_ms,
            # A new transaction fails with CONCURRENT_TRANSACTIONS until the previous transaction's markers are
            # written, which takes a few ms. A transaction takes 10 ms with this backoff, and 16-220 ms with the
            # default backoff of 100 ms.
            retry_backoff_ms=5,
        )
        self.failure: BrokerError | None = None
        self.is_exposed = False
        self._id = transactional_id
        manager = self._manager = self._client._transaction_manager
        manager._NEEDS_EPOCH_BUMP_ERRORS = manager._NEEDS_EPOCH_BUMP_ERRORS - {kafka_errors.InvalidProducerEpochError}
        enqueue = manager._enqueue_request

        def watching(handler: Any) -> None:
            self.is_exposed |= isinstance(handler, EndTxnHandler) and handler.is_retry
            enqueue(handler)

        manager._enqueue_request = watching
        try:
            with self._translating("take over the transactional id"):
                self._client.init_transactions()
        except BrokerError:
            self.close()
            raise

    def begin(self) -> None:
        """See TransactionSink."""
        with self._translating("begin a transaction"):
            self._client.begin_transaction()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Member) -> None:
        """See TransactionSink."""
        assert isinstance(member, GroupConsumer)
        metadata = member.membership()
        with self._translating(f"send the offsets for group {metadata.group_id}", member.needs()):
            try:
                self._wait_for(self._manager.send_offsets_to_transaction(offsets_of(offsets), metadata), "the offsets")
            except kafka_errors.CommitFailedError as error:
                if kafka_errors.UnknownMemberIdError.__name__ in str(error):
                    member.on_unknown_member()
                raise

    def commit(self) -> None:
        """See TransactionSink."""
        with self._translating("commit"):
            self._wait_for(self._manager.begin_commit(), "the commit")

    def abort(self) -> None:
        """See TransactionSink."""
        self._futures, self._bytes, self._appended_ms = [], 0, {}
        manager = self._manager
        if manager.has_fatal_error() and kind_of(manager.last_error) is not None:
            manager._current_state = TransactionState.ABORTABLE_ERROR
        with self._translating("abort"):
            self._wait_for(manager.begin_abort(), "the abort")

    def _wait_for(self, result: Any, what: str) -> None:
        """Wait for the transaction manager with a timeout, because the client's own calls have no timeout."""
        self._client._sender.wakeup()
        if not result.wait(1000 * self._connection.patience_s):
            timeout_ms = self._connection.request_timeout_ms
            self.failure = self._connection.outcome_unknown(self._id, f"no response to {what} within {timeout_ms} ms")
            raise self.failure

    @contextmanager
    def _translating(self, what: str, needs: Sequence[Acl] = ()) -> Iterator[None]:
        what = f"{what} (transactional id {self._id})"
        try:
            yield
        except kafka_errors.KafkaError as error:
            self._raise_if_final(what, needs)
            if "Invalid transition" in str(error):
                raise FencedError(
                    f"could not {what}: the broker has aborted the transaction, either because it was open for longer "
                    f"than its timeout or because another process has taken over"
                ) from error
            if self._manager.has_fatal_error() and _NO_RESPONSE in str(error):
                self.failure = self._connection.outcome_unknown(self._id, f"could not {what}: {error}")
                raise self.failure from error
            try:
                self._connection.refuse(what, error, needs)
            except BrokerError as refused:
                if self._manager.has_fatal_error():
                    self.failure = refused
                raise

    def _raise_if_final(self, what: str, needs: Sequence[Acl] = ()) -> None:
        """Raise the transaction manager's error if it explains the client's, for example if an ACL is missing."""
        error = self._manager.last_error
        kinds = (FencedError, StaleMemberError, TransactionTimeoutError)
        if error is not None and (self._connection.classify(error)[0] in kinds or kind_of(error) is not None):
            self._connection.refuse(what, error, (Acl("transactional-id", self._id, "Write"), *needs, *self.needs()))
