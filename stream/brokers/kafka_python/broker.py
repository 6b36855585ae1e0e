"""Apache Kafka behind the Broker port, by kafka-python; the only file that imports a Kafka client.

What kafka-python leaves to its caller, and where it is done here:

- `commit_transaction`, `abort_transaction` and `send_offsets_to_transaction` wait without a limit. Every wait here ends
  (`_wait_for`), and a commit that was not answered is an outcome unknown, after which the producer is of no more use.
- A producer whose epoch it renews by itself in the middle of a transaction (KIP-360) afterwards answers a commit with
  success, although the broker has aborted what was sent. So a commit is asked for only when every record of the
  transaction has been acknowledged, one by one (`_Sent.settle`).
- A member that hears from a heartbeat that another process has its place stops its heartbeats, and reads on as if
  nothing had happened. `poll` looks for that (`_KafkaGroupConsumer._refuse_if_out`).
- A static member (`group_instance_id`) never leaves its group at close, so that its partitions would lie still until
  the session ends; `close` makes it leave.
- Its group metadata fall back to "no generation", which the broker does not check, when the member is thrown out.
  Offsets are not sent then. It joins again by itself, which not every member shall (`_Joins`). That the answer to a
  producer's offsets was UNKNOWN_MEMBER_ID, the consumer does not hear (`send_offsets`).
- An offset that is no longer kept is replaced by the first one silently, when a reset policy is set. None is set here.
- A join that is done between two polls is forgotten and made anew, and then the whole group has to join again, over and
  over where members poll seldom. It is kept here until a poll takes it (`_Joins`).
- A partition that stays with its member in a rebalance goes on at the position reached, not at the committed offset
  (the Java client starts anew). `_take_over` seeks.
- What was fetched of a partition that is then paused in the middle is put aside, and is not looked at again after it is
  resumed, nor is more of it fetched, once records of another partition have been read to their end. `poll` lets it go
  on (`_make_room`).
- Committed offsets lag behind a commit until its marker is written. They are asked for with `require_stable`, which
  kafka-python does for a consumer that reads committed records, not in its admin client.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, MemberToRemove, OffsetSpec
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.brokers.port import (
    BrokerError,
    BrokerUnavailableError,
    Consumer,
    Ends,
    FencedError,
    RebalanceListener,
    StaleMemberError,
)
from stream.brokers.refusals import check_co_partitioned, check_settings, replaced, thrown_out
from stream.wire.records import Headers, Record, TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec

Result = TypeVar("Result")
Client = TypeVar("Client", bound="_KafkaProducer | _KafkaTransactionalProducer | _KafkaConsumer")

CONNECT_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 15_000
SESSION_TIMEOUT_MS = 10_000
TRANSACTION_TIMEOUT_MS = 60_000

_ATTEMPT_MS = 2_000  # one attempt to connect, and how often the wait is reported
_CONNECTION_MS_MAX = 5_000
_RETRY_S = 0.1
_SLACK_S = 2.0  # what a wait here is longer than the client's own time-out, so that the client's reason is heard
_CLOSE_S = 5.0
_JOIN_POLL_MS = 50
_HEARTBEAT_MS_MAX = 3_000
_VERDICT_S = 10.0  # how long the answer to a heartbeat is waited for, of a group that may be out of reach
# kafka-python's producer queues without a limit. So many unacknowledged records are waited for before more are queued.
_QUEUED_RECORDS_MAX = 20_000
_QUEUED_BYTES_MAX = 32 << 20

# Only closed segments are compacted, by default of 1 GB, and only when half of a log is obsolete; all of such a topic
# is read whenever a task is recovered.
_COMPACTION = {"segment.bytes": str(64 << 20), "min.cleanable.dirty.ratio": "0.1"}

_SEGMENT_MS = 7 * 24 * 3_600_000  # after so long, by default, a segment is closed

_FENCED = (
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidProducerEpochError,
    kafka_errors.FencedInstanceIdError,
)
_STALE = (
    kafka_errors.CommitFailedError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.RebalanceInProgressError,
)
# UnknownBrokerIdError: for a moment after an outage a partition has no leader, and the client asks "broker -1".
_TRANSIENT = (kafka_errors.RetriableError, kafka_errors.UnknownBrokerIdError)


class KafkaBroker:
    """See Broker. For one thread; each producer and consumer made here has a network thread of its own."""

    def __init__(
        self,
        bootstrap: str,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Connect, and wait for a broker that is not up yet.

        Args:
            bootstrap: HOST:PORT of a broker, or several with commas between.
            connect_timeout_ms: How long to wait for the first answer.
            request_timeout_ms: How long any other operation may take.
            session_timeout_ms: After so long without a sign of life a group member's partitions go to the others.
            transaction_timeout_ms: After so long the broker aborts a transaction that is still open.
            progress: Is told what is waited for, a line at a time.

        Raises:
            BrokerUnavailableError: no broker answered within `connect_timeout_ms`.
        """
        self.bootstrap = bootstrap
        self.request_timeout_ms = request_timeout_ms
        self.patience_s = request_timeout_ms / 1000 + _SLACK_S
        self._session_timeout_ms = session_timeout_ms
        self._transaction_timeout_ms = transaction_timeout_ms
        self._open: list[_KafkaProducer | _KafkaTransactionalProducer | _KafkaConsumer] = []
        _quieten()
        self._admin = self._connect(connect_timeout_ms, progress or (lambda _: None))

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        existing = self.describe_topics([spec.name for spec in specs])
        check_settings(specs, existing)
        missing = {
            spec.name: {
                "num_partitions": spec.partitions,
                "replication_factor": spec.replication,
                "configs": {
                    "message.timestamp.type": "LogAppendTime",
                    "cleanup.policy": "compact" if spec.compacted else "delete",
                    "retention.ms": str(spec.retention_ms),
                    # With acks=all an acknowledged record is then on two brokers at least.
                    "min.insync.replicas": str(max(1, spec.replication - 1)),
                    **(_COMPACTION if spec.compacted else {}),
                    # Only closed segments are deleted.
                    **({"segment.ms": str(spec.retention_ms)} if 0 < spec.retention_ms < _SEGMENT_MS else {}),
                },
            }
            for spec in specs
            if spec.name not in existing
        }
        if not missing:
            return
        # Not raised for: another program may be creating the same topics. What there is afterwards is checked.
        answer = self.ask(
            f"create the topics {', '.join(missing)}", lambda: self._admin.create_topics(missing, raise_errors=False)
        )
        refused = [
            f"{topic['name']}: {kafka_errors.for_code(topic['error_code']).__name__} {topic['error_message'] or ''}"
            for topic in answer["topics"]
            if topic["error_code"] not in (0, kafka_errors.TopicAlreadyExistsError.errno)
        ]
        if refused:
            raise BrokerError(f"Kafka at {self.bootstrap} refused to create topics: {'; '.join(refused)}")
        self.ask(
            f"wait for the topics {', '.join(missing)}",
            lambda: self._admin.wait_for_topics(list(missing), timeout_ms=self.request_timeout_ms),
        )
        check_settings(specs, self.describe_topics([spec.name for spec in specs]))

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        if not names:
            return {}
        found = {
            topic["name"]: topic
            for topic in self.ask("describe topics", lambda: self._admin.describe_topics(list(names)))
            if topic["error_code"] == 0
        }
        if not found:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in found]
        configs = self.ask(
            "describe topics", lambda: self._admin.describe_configs(resources, config_filter="all")["topic"]
        )
        descriptions = {}
        for name, topic in found.items():
            settings = {setting: described["value"] for setting, described in configs[name].items()}
            if settings:  # none: deleted between the two questions
                descriptions[name] = TopicDescription(
                    name,
                    partitions=len(topic["partitions"]),
                    append_time=settings["message.timestamp.type"] == "LogAppendTime",
                    compacted="compact" in settings["cleanup.policy"],
                    retention_ms=int(settings["retention.ms"]),
                    replication=min(len(partition["replica_nodes"]) for partition in topic["partitions"]),
                )
        return descriptions

    def delete_topics(self, names: Sequence[str]) -> None:
        """See Broker."""
        existing = list(self.describe_topics(names))
        if not existing:
            return
        what = f"delete the topics {', '.join(existing)}"
        self.ask(what, lambda: self._admin.delete_topics(existing, raise_errors=False))
        deadline_s = self._deadline_s()
        while left := self.describe_topics(existing):
            if time.monotonic() > deadline_s:
                raise BrokerUnavailableError(f"Kafka at {self.bootstrap} did not {what} in time; left: {list(left)}")
            time.sleep(_RETRY_S)

    def producer(self) -> "_KafkaProducer":
        """See Broker."""
        return self._opened(_KafkaProducer(self, partial(self._make_producer, linger_ms=5)))

    def transactional_producer(self, transactional_id: str) -> "_KafkaTransactionalProducer":
        """See Broker."""
        client = self._make_producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=self._transaction_timeout_ms,
            # The next transaction meets CONCURRENT_TRANSACTIONS until the last one's markers are written, which takes
            # a few ms; with the default of 100 a transaction takes 16-220 ms instead of 10.
            retry_backoff_ms=5,
        )
        producer = _KafkaTransactionalProducer(self, client, transactional_id)
        producer.take_over()
        return self._opened(producer)

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> "_KafkaGroupConsumer":
        """See Broker."""
        check_co_partitioned(group, topics, self.describe_topics(topics))
        client = self._make_consumer(
            group_id=group,
            group_instance_id=member,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=min(_HEARTBEAT_MS_MAX, self._session_timeout_ms // 4),
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        try:
            return self._opened(_KafkaGroupConsumer(self, client, group, member, topics, listener, rejoins=rejoins))
        except BaseException:
            client.close(timeout_ms=0)
            raise

    def reader(self, tps: Sequence[TopicPartition]) -> "_KafkaConsumer":
        """See Broker."""
        beginnings = self.beginnings(tps)
        client = self._make_consumer()
        consumer = self._opened(_KafkaConsumer(self, client))
        client.assign([KafkaTopicPartition(*tp) for tp in tps])
        for tp, offset in beginnings.items():
            consumer.seek(tp, offset)
        return consumer

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        # The stable end first: both only grow, so that it is never beyond the high watermark.
        stable = self._offsets(tps, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
        high_watermark = self._offsets(tps, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)
        return {tp: Ends(high_watermark[tp], stable[tp]) for tp in tps}

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self._offsets(tps, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def committed(self, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        client = self._make_consumer(group_id=group)
        try:
            return self.committed_to(client, group, tps)
        finally:
            client.close(timeout_ms=0)

    def committed_to(self, client: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a group, by a client of that group."""
        offsets = {}
        for tp in tps:
            ask = partial(client.committed, KafkaTopicPartition(*tp), timeout_ms=self.request_timeout_ms)
            offset: int | None = self.ask(f"read the offsets of group {group}", ask)
            if offset is not None:
                offsets[tp] = offset
        return offsets

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """See Broker."""
        found = self.ask(f"describe group {group}", lambda: self._admin.describe_groups([group]))
        members: dict[str, frozenset[TopicPartition]] = {}
        for member in found[group]["members"]:
            name = member["group_instance_id"] or member["member_id"]
            dealt = member["member_assignment"] or {"assigned_partitions": []}  # no bytes: it is being dealt anew
            members[name] = frozenset(
                TopicPartition(of_topic["topic"], partition)
                for of_topic in dealt["assigned_partitions"]
                for partition in of_topic["partitions"]
            )
        return members

    def close(self) -> None:
        """See Broker."""
        for client in list(self._open):
            with suppress(BrokerError):
                client.close()
        self._admin.close()

    def ask(self, what: str, question: Callable[[], Result]) -> Result:
        """Put a question to the broker, and again while it cannot answer, for the time that a request may take."""
        deadline_s = self._deadline_s()
        while True:
            try:
                return question()
            except kafka_errors.UnknownTopicOrPartitionError as error:
                raise BrokerError(
                    f"cannot {what} at {self.bootstrap}: a topic or partition does not exist ({error}); "
                    f"create the topics first"
                ) from error
            except kafka_errors.KafkaError as error:
                if not isinstance(error, _TRANSIENT) or time.monotonic() > deadline_s:
                    self.refuse(what, error)
            time.sleep(_RETRY_S)

    def refuse(self, what: str, error: BaseException) -> NoReturn:
        """Raise the port's error for one of the client's."""
        chain = [error, error.__cause__, *error.args]  # kafka-python hands the reason on as a second argument
        reason = next((one for one in chain if isinstance(one, (*_FENCED, *_STALE))), error)
        said = f"{type(reason).__name__}: {reason}"
        if isinstance(reason, _FENCED):
            raise FencedError(f"could not {what}: another process has taken over ({said})") from error
        if isinstance(reason, _STALE):
            raise StaleMemberError(f"could not {what}: the group has moved on without this member ({said})") from error
        if isinstance(reason, _TRANSIENT):
            raise BrokerUnavailableError(
                f"could not {what}: Kafka at {self.bootstrap} did not answer as expected within "
                f"{self.request_timeout_ms} ms ({said}); see that it runs and is reachable"
            ) from error
        raise BrokerError(f"could not {what} at {self.bootstrap} ({said})") from error

    def forget(self, client: "_KafkaProducer | _KafkaTransactionalProducer | _KafkaConsumer") -> None:
        """A client was closed."""
        if client in self._open:
            self._open.remove(client)

    def leave(self, group: str, member_id: str, member: str) -> None:
        """Take a static member out of its group, unless another process has its place already."""
        with suppress(kafka_errors.KafkaError):
            self._admin.remove_group_members(
                group, [MemberToRemove(member_id=member_id, group_instance_id=member, reason="closed")]
            )

    def _connect(self, connect_timeout_ms: int, progress: Callable[[str], None]) -> Any:
        started_s = time.monotonic()
        while True:
            left_ms = connect_timeout_ms - 1000 * (time.monotonic() - started_s)
            try:
                return self._make(KafkaAdminClient, bootstrap_timeout_ms=max(1, min(_ATTEMPT_MS, left_ms)))
            except kafka_errors.RetriableError as error:
                if left_ms <= _ATTEMPT_MS:
                    raise BrokerUnavailableError(
                        f"no Kafka answered at {self.bootstrap} within {connect_timeout_ms} ms; start one "
                        f"(onebit kafka up), or give the address of one that runs"
                    ) from error
                waited_s = time.monotonic() - started_s
                progress(f"waiting for Kafka at {self.bootstrap}: {waited_s:.0f} s of {connect_timeout_ms / 1000:g} s")

    def _make(self, kind: Callable[..., Any], **settings: Any) -> Any:
        """Make a client; when it cannot connect, close the thread and sockets that its constructor leaves."""
        made: list[Any] = []

        def network(**configs: Any) -> Any:
            # By default a connection to a broker that froze is given 10 s, later 30 s, before another is tried.
            setup_ms = min(self.request_timeout_ms, _CONNECTION_MS_MAX)
            made.append(
                KafkaNetClient(
                    socket_connection_setup_timeout_ms=setup_ms,
                    socket_connection_setup_timeout_max_ms=setup_ms,
                    **configs,
                )
            )
            return made[-1]

        try:
            return kind(
                **{
                    "bootstrap_servers": self.bootstrap.split(","),
                    "bootstrap_timeout_ms": self.request_timeout_ms,
                    "request_timeout_ms": self.request_timeout_ms,
                    "reconnect_backoff_max_ms": 1000,
                    "kafka_client": network,
                    "proxy_url": "direct://",  # no proxy: see _Socket
                    **settings,
                }
            )
        except BaseException:
            for client in made:
                client.close()
            raise

    def _make_producer(self, **settings: Any) -> Any:
        linger_ms = settings.get("linger_ms", 0)
        with self.translating("connect a producer"):
            return self._make(
                KafkaProducer,
                acks="all",
                enable_idempotence=True,
                batch_size=256 << 10,
                delivery_timeout_ms=self.request_timeout_ms + linger_ms,
                max_block_ms=self.request_timeout_ms,
                allow_auto_create_topics=False,
                metrics_enabled=False,
                **settings,
            )

    def _make_consumer(self, **settings: Any) -> Any:
        with self.translating("connect a consumer"):
            return self._make(
                KafkaConsumer,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                metrics_enabled=False,
                fetch_max_wait_ms=min(500, self.request_timeout_ms // 2),
                **settings,
            )

    def _offsets(self, tps: Sequence[TopicPartition], spec: Any, isolation: Any) -> dict[TopicPartition, int]:
        if not tps:
            return {}
        specs = {KafkaTopicPartition(*tp): spec for tp in tps}
        found = self.ask(
            "ask where partitions begin and end",
            lambda: self._admin.list_partition_offsets(specs, isolation, timeout_ms=self.request_timeout_ms),
        )
        return {tp: found[KafkaTopicPartition(*tp)].offset for tp in tps}

    def _deadline_s(self) -> float:
        return time.monotonic() + self.request_timeout_ms / 1000

    def _opened(self, client: Client) -> Client:
        self._open.append(client)
        return client

    @contextmanager
    def translating(self, what: str) -> Iterator[None]:
        """Raise the port's errors for the client's."""
        try:
            yield
        except (kafka_errors.KafkaError, ValueError, TypeError) as error:
            self.refuse(what, error)


class _Socket(KafkaNetSocket):  # type: ignore[misc]
    """Closes the socket of a failed attempt, which kafka-python leaves open; chosen by the scheme of `proxy_url`."""

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _Sent:
    """Records that were queued and not yet acknowledged."""

    __slots__ = ("_appended_ms", "_broker", "_bytes", "_futures")

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._futures: list[Any] = []
        self._bytes = 0
        self._appended_ms: dict[TopicPartition, int] = {}

    def send(
        self, client: Any, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Queue a record; when too many are queued, wait for those."""
        try:
            self._futures.append(client.send(topic, value, key, list(headers), partition))
        except (kafka_errors.KafkaError, ValueError, TypeError) as error:
            self._broker.refuse(f"send a record of {len(value or b'')} bytes to {topic}/{partition}", error)
        self._bytes += len(value or b"")
        if len(self._futures) >= _QUEUED_RECORDS_MAX or self._bytes >= _QUEUED_BYTES_MAX:
            self._appended_ms = self.settle()

    def settle(self, *, wait: bool = True) -> dict[TopicPartition, int]:
        """Wait until each record is acknowledged; each partition's latest append time since this was last asked for."""
        futures, self._futures, self._bytes = self._futures, [], 0
        appended_ms, self._appended_ms = self._appended_ms, {}
        deadline_s = time.monotonic() + (self._broker.patience_s if wait else 0)
        failed: tuple[int, Exception | None] = (0, None)
        for future in futures:
            try:
                written = future.get(max(0.0, deadline_s - time.monotonic()))
            except kafka_errors.KafkaError as error:
                failed = (failed[0] + 1, failed[1] or error)
                continue
            tp = TopicPartition(written.topic, written.partition)
            if written.timestamp > appended_ms.get(tp, -1):
                appended_ms[tp] = written.timestamp
        if failed[1] is not None:
            self._broker.refuse(f"write {failed[0]} of {len(futures)} records", failed[1])
        return appended_ms

    def drop(self) -> None:
        """Forget all: their transaction was aborted."""
        self._futures, self._bytes, self._appended_ms = [], 0, {}


class _KafkaProducer:
    """See Producer."""

    def __init__(self, broker: KafkaBroker, make: Callable[[], Any]) -> None:
        self._broker = broker
        self._make = make
        self._client = make()
        self._sent = _Sent(broker)
        self._failed = False

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Producer."""
        if self._failed:
            self._renew()
        self._sent.send(self._client, topic, partition, key, value, headers)

    def flush(self) -> int:
        """See Producer."""
        with suppress(kafka_errors.KafkaTimeoutError):  # then the records themselves say what became of them
            self._client.flush(self._broker.patience_s)
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
            self._broker.forget(self)
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


class _KafkaTransactionalProducer:
    """See TransactionalProducer."""

    def __init__(self, broker: KafkaBroker, client: Any, transactional_id: str) -> None:
        self._broker = broker
        self._client = client
        self._id = transactional_id
        self._sent = _Sent(broker)
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
        assert isinstance(consumer, _KafkaGroupConsumer)
        metadata = consumer.membership()
        with self._translating(f"send the offsets of group {metadata.group_id}"):
            result = self._manager.send_offsets_to_transaction(_offsets(offsets), metadata)
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
        with self._translating("abort"):
            self._wait_for(self._manager.begin_abort(), "abort")

    def close(self) -> None:
        """See TransactionalProducer."""
        with suppress(BrokerError):  # what is left open is aborted by its successor, or by the broker in time
            self.abort()
        self._broker.forget(self)
        _close_producer(self._client)

    @property
    def _manager(self) -> Any:
        return self._client._transaction_manager

    def _settle(self) -> dict[TopicPartition, int]:
        try:
            return self._sent.settle()
        except BrokerError:
            self._raise_if_fenced("write records")  # the records themselves may know only of an aborted batch
            raise

    def _wait_for(self, result: Any, what: str) -> None:
        """Wait for the transaction manager, but not for ever, as the client's own calls do."""
        self._client._sender.wakeup()
        if not result.wait(1000 * self._broker.patience_s):
            self._unknown = f"{what} was not answered within {self._broker.request_timeout_ms} ms"
            self._check_known()

    def _check_open(self) -> None:
        self._check_known()
        if not self._in_transaction:
            raise BrokerError("no transaction is open: call begin first")

    def _check_known(self) -> None:
        if self._unknown is not None:
            raise BrokerUnavailableError(
                f"the outcome of a transaction of {self._id} at {self._broker.bootstrap} is unknown: {self._unknown}; "
                f"make a new producer with this id, and read what was written"
            )

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        what = f"{what} (transactional id {self._id})"
        try:
            yield
        except kafka_errors.KafkaError as error:
            self._raise_if_fenced(what)
            if "Invalid transition" in str(error):
                raise FencedError(
                    f"could not {what}: the broker has aborted the transaction, because it was open for longer than "
                    f"its time-out or another process has taken over"
                ) from error
            if self._manager.has_fatal_error():  # so it also takes a request that was not answered in time
                self._unknown = f"could not {what}: {error}"
                self._check_known()
            self._broker.refuse(what, error)

    def _raise_if_fenced(self, what: str) -> None:
        reason = self._manager.last_error
        if isinstance(reason, (*_FENCED, *_STALE)):
            self._broker.refuse(what, reason)


class _KafkaConsumer:
    """See Consumer; without a group."""

    def __init__(self, broker: KafkaBroker, client: Any) -> None:
        self._broker = broker
        self._client = client

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return frozenset(TopicPartition(*tp) for tp in self._client.assignment())

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer. While the broker is down this is empty: the client reconnects by itself."""
        self._make_room()
        try:
            polled = self._client.poll(timeout_ms, records_max)
        except _TRANSIENT:
            time.sleep(min(timeout_ms / 1000, _RETRY_S))
            return []
        except kafka_errors.OffsetOutOfRangeError as error:
            raise BrokerError(
                f"an offset to be read is not in its partition, because it is no longer kept or never was: {error}"
            ) from error
        except kafka_errors.KafkaError as error:
            self._broker.refuse("read", error)
        return [
            Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers) if r.headers else ())
            for records in polled.values()
            for r in records
        ]

    def _make_room(self) -> None:
        """Take what is used up of the last fetch out of the place that records put aside come back to.

        The fetcher brings them back only when that place is None, and leaves there what has no records left.
        """
        fetcher = self._client._fetcher
        if not fetcher._next_partition_records:
            fetcher._next_partition_records = None

    def position(self, tp: TopicPartition) -> int:
        """See Consumer."""
        with self._broker.translating(f"tell the position in {tp.topic}/{tp.partition}"):
            try:
                offset = self._client.position(KafkaTopicPartition(*tp), timeout_ms=self._broker.request_timeout_ms)
            except kafka_errors.IllegalStateError as error:
                raise BrokerError(f"{tp.topic}/{tp.partition} is not assigned to this consumer") from error
        if offset is None:
            raise BrokerUnavailableError(f"Kafka at {self._broker.bootstrap} did not tell the position in {tp} in time")
        return int(offset)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """See Consumer."""
        with self._broker.translating(f"seek to {offset} in {tp.topic}/{tp.partition}"):
            self._client.seek(KafkaTopicPartition(*tp), offset)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._client.pause(*(KafkaTopicPartition(*tp) for tp in tps))

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._client.resume(*(KafkaTopicPartition(*tp) for tp in tps))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Consumer."""
        raise BrokerError("this consumer is in no group and has no offsets to commit")

    def check_place(self) -> None:
        """See Consumer."""

    def close(self) -> None:
        """See Consumer."""
        self._broker.forget(self)
        with suppress(kafka_errors.KafkaError):
            self._client.close(autocommit=False, timeout_ms=1000 * _CLOSE_S)


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hears of rebalances on the client's network thread, while the user's thread waits in `poll`.

    What is revoked must be given up before the group is joined again, so the user's listener is called right here. What
    is assigned is only noted, and paused: a learner that takes over a partition may read for minutes, and on this
    thread that would stop the heartbeats.
    """

    def __init__(self, client: Any, listener: RebalanceListener) -> None:
        self._client = client
        self._listener = listener
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.assigned = False  # there is a new assignment of which the user has not been told
        self.failure: Exception | None = None  # of the user's listener
        self.closing = False

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        if self.assignment and not self.assigned and not self.closing:
            try:
                self._listener.on_revoked(self.assignment)
            except Exception as error:  # raised again in poll, on the user's thread
                self.failure = error
        self.assignment = frozenset()
        self.assigned = False

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._client.pause(*assigned)
        for tp in assigned:
            self._client.seek(tp, 0)  # any position keeps the client from seeking one; `_take_over` seeks the right one
        self.assignment = frozenset(TopicPartition(*tp) for tp in assigned)
        self.assigned = True


class _Joins:
    """Stands for the coordinator's own way to join its group, and keeps what a join brought until a poll takes it.

    A poll that gives up leaves its join in flight. The next one waits on for it; but when it is done by then, it begins
    another one, and what the first has brought is lost.

    It also stands for the coordinator's way to forget its membership, to tell when the group has thrown it out: it is
    then told that its member id is unknown. So is one whose first join a restart of the broker has interrupted, which
    has lost nothing; a join that was completed outlives a restart. And a member that is too busy to poll forgets its
    membership by itself: it joins again.
    """

    def __init__(self, coordinator: Any, *, rejoins: bool) -> None:
        self._coordinator = coordinator
        self._rejoins = rejoins
        self._join = coordinator._do_join_and_sync_async
        self._reset = coordinator.reset_generation
        self._generation: Any = None  # which the last join brought; None: while one is under way, or when it failed
        self._assignment = b""
        self._member_id = ""  # of the last join that was completed
        self.is_out = False  # thrown out, and not to join again
        coordinator._do_join_and_sync_async = self
        coordinator.reset_generation = self._reset_generation

    def _reset_generation(self, member_id: str = "") -> None:
        coordinator = self._coordinator
        was_joined = self._member_id and coordinator._generation.member_id == self._member_id
        if not member_id and was_joined and not coordinator.heartbeat.poll_timeout_expired():
            self.is_out = not self._rejoins
        self._reset(member_id)

    async def __call__(self) -> bytes:
        coordinator = self._coordinator
        if self.is_out:
            raise kafka_errors.CoordinatorNotAvailableError  # is tried again until the poll ends, which says why
        # A join that was taken has left the state of rebalancing; a member that was thrown out has no generation.
        if coordinator.rebalance_in_progress() and coordinator._generation is self._generation:
            return self._assignment
        self._generation = None
        self._assignment = await self._join()
        self._generation = coordinator._generation
        self._member_id = self._generation.member_id
        return self._assignment


class _KafkaGroupConsumer(_KafkaConsumer):
    """See Consumer; a static member of a group."""

    def __init__(
        self, broker: KafkaBroker, client: Any, group: str, member: str, topics: Sequence[str],
        listener: RebalanceListener, *, rejoins: bool,
    ) -> None:  # fmt: skip
        super().__init__(broker, client)
        self._group = group
        self._member = member
        self._listener = listener
        self._rebalances = _Rebalances(client, listener)
        self._paused: set[TopicPartition] = set()  # by the user
        self._fenced = False
        self._joins = _Joins(client._coordinator, rejoins=rejoins)
        client.subscribe(list(topics), listener=self._rebalances)
        # A leader of the group that has no metadata yet deals no partitions, and the group is joined a second time.
        with broker.translating(f"read about {', '.join(topics)}"):
            client._net.run(client._manager.wait_for, client._cluster.request_update(), broker.request_timeout_ms)

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return self._rebalances.assignment

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer."""
        self._refuse_if_out()
        if not self._rebalances.assignment:
            timeout_ms = min(timeout_ms, _JOIN_POLL_MS)  # what is assigned is paused, and would be waited for in vain
        records = super().poll(timeout_ms, records_max)
        failure, self._rebalances.failure = self._rebalances.failure, None
        if failure is not None:
            raise failure
        self._refuse_if_out()
        if self._rebalances.assigned:
            self._take_over()
        return records

    def membership(self) -> Any:
        """The member and generation under which offsets are committed.

        Raises:
            FencedError: another process has this member's place, or it was thrown out and is not to join again.
            StaleMemberError: this is no member now.
        """
        self._refuse_if_out()
        metadata = self._client.group_metadata()
        if metadata.generation_id < 0 or not metadata.member_id:
            raise StaleMemberError(f"{self._member} is not a member of group {self._group} now; poll to join it again")
        return metadata

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        tps = list(tps)
        self._paused.update(tps)
        super().pause(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        tps = list(tps)
        self._paused.difference_update(tps)
        super().resume(tps)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Consumer."""
        self.membership()
        with self._broker.translating(f"commit offsets of group {self._group}"):
            self._client.commit(_offsets(offsets), timeout_ms=self._broker.request_timeout_ms)

    def check_place(self) -> None:
        """See Consumer. The coordinator sends heartbeats by itself; the answer to the next one tells."""
        coordinator = self._client._coordinator
        asked_s = time.monotonic()
        while coordinator.stable() and coordinator._heartbeat_enabled and coordinator.heartbeat.last_receive < asked_s:
            if time.monotonic() > asked_s + _VERDICT_S:
                break
            time.sleep(_RETRY_S)
        self._refuse_if_out()

    def hear_thrown_out(self) -> None:
        """Take in that the broker does not know this member."""
        self._client._coordinator.reset_generation()
        self._refuse_if_out()

    def close(self) -> None:
        """See Consumer."""
        metadata = self._client.group_metadata()
        self._rebalances.closing = True
        super().close()
        if metadata.member_id and not self._fenced:
            self._broker.leave(self._group, metadata.member_id, self._member)

    def _refuse_if_out(self) -> None:
        """Raise when a heartbeat was told that another process has this member's place, or that it was thrown out.

        When another has it, the client only stops its heartbeats. A member that is joined, not about to join anew and
        not closed has them stopped for no other reason: they are started in the same step in which it becomes a joined
        one, within a poll.
        """
        coordinator = self._client._coordinator
        is_joined = coordinator.stable() and not coordinator.rejoining
        if self._fenced or (is_joined and not coordinator._heartbeat_enabled):
            self._fenced = True
            raise FencedError(replaced(self._member, self._group))
        if self._joins.is_out:
            raise FencedError(thrown_out(self._member, self._group))

    def _take_over(self) -> None:
        """Tell the user of the new assignment, on the user's thread, and let it be read from then on."""
        self._rebalances.assigned = False
        self._paused.clear()
        tps = self._rebalances.assignment
        committed = self._broker.committed_to(self._client, self._group, tps)
        beginnings = self._broker.beginnings(sorted(tps))
        for tp, first in beginnings.items():
            self.seek(tp, committed.get(tp, first))
        self._listener.on_assigned(tps)
        for tp in sorted(tps - self._paused):  # of what the user has paused, the user knows where to read on
            offset = self.position(tp)
            if offset < beginnings[tp]:
                raise BrokerError(
                    f"offset {offset} of {tp.topic}/{tp.partition}, the committed one of group {self._group}, "
                    f"is no longer kept: the first is {beginnings[tp]}; raise its retention.ms"
                )
        super().resume(tps - self._paused)


def _offsets(offsets: Mapping[TopicPartition, int]) -> dict[Any, Any]:
    return {KafkaTopicPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}


def _close_producer(client: Any) -> None:
    """Close a producer whose records are settled; its own close raises, and leaves its thread, if some are not."""
    client._sender.force_close()
    client._sender.join(_CLOSE_S)
    with suppress(kafka_errors.KafkaError):
        client.close(timeout=0)


def _quieten() -> None:
    """kafka-python logs as errors what it then retries; what is final is raised. A level set by the user stands."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
