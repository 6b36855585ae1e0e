"""A process's connection to the embedded broker, with faults from a schedule.

The connection implements the Broker interface and checks for faults before every operation that uses the network. It
simulates only network and process failures. The embedded broker does everything else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar

from stream.kafka.embedded import EmbeddedBroker, EmbeddedConsumer, EmbeddedMember
from stream.kafka.port import (
    FETCH_WAIT_MS,
    BrokerUnavailableError,
    Ends,
    Member,
    RebalanceListener,
    TransactionalProducer,
)
from stream.wire.records import Headers, Record, TopicPartition


class CrashError(Exception):
    """Raised when the process dies. None of its code runs afterwards, and nothing is closed."""


class Fate(Enum):
    """A transaction's state."""

    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction as its client wrote it, whether or not its records are visible on the broker."""

    transactional_id: str
    process: str
    commit: Callable[[], object]  # commits on the embedded broker, even after the process has died
    fate: Fate = Fate.OPEN
    records: list[tuple[TopicPartition, int]] = field(default_factory=list)  # partitions and offsets

    def end(self, fate: Fate) -> None:
        """Set the transaction's final state, if the transaction is still open."""
        if self.fate is Fate.OPEN:
            self.fate = fate


Consult = Callable[[str], None]
"""A callback that is called with an operation's name before each operation. It can raise CrashError or
BrokerUnavailableError.
"""


def _forwarded(name: str) -> Any:
    """Return an operation that checks for faults and then calls the embedded broker."""

    def operation(self: "FaultyBroker", *arguments: Any) -> Any:
        self.consult(name)
        return getattr(self.broker, name)(*arguments)

    return operation


@dataclass(eq=False)
class FaultyBroker:
    """See Broker. Each process has its own broker object."""

    broker: EmbeddedBroker
    process: str
    consult: Consult
    transactions: list[Transaction] = field(default_factory=list)  # all processes' transactions, in order
    observe: Callable[[Transaction], None] = lambda transaction: None  # called after every acknowledged commit
    lingers: bool = False  # True if records are queued until a flush
    poll_max: int = 1_000_000  # limit on the records that a poll returns
    dry_every: int = 0  # N if every Nth poll returns nothing; 0 if there are no such polls
    old_lags: bool = False  # True if lags are reported as of the last fetch, as in Kafka clients
    may_be_dry: bool = True  # False if polls must return the available records
    moved: int = 0  # number of polls that advanced, even if only past invisible records
    member: EmbeddedMember | None = None  # the process's member in the group
    # The process's last transaction.
    transaction: Transaction = field(default_factory=lambda: Transaction("", "", lambda: None, Fate.ABORTED))
    late_end: Callable[[bool], None] = lambda commits: None  # delivers the first request of the last repeated commit
    _old_ends: dict[TopicPartition, list[Ends]] = field(default_factory=dict)  # ends to report instead of the true ones

    create_topics: ClassVar[Any] = _forwarded("create_topics")
    describe_topics: ClassVar[Any] = _forwarded("describe_topics")
    alter_topics: ClassVar[Any] = _forwarded("alter_topics")
    delete_topics: ClassVar[Any] = _forwarded("delete_topics")
    producer: ClassVar[Any] = _forwarded("producer")
    beginnings: ClassVar[Any] = _forwarded("beginnings")
    committed: ClassVar[Any] = _forwarded("committed")
    members: ClassVar[Any] = _forwarded("members")

    def transactional_producer(self, transactional_id: str) -> "FaultyTransactionalProducer":
        """See Broker."""
        self.consult("transactional_producer")
        inner = self.broker.transactional_producer(transactional_id)
        for transaction in self.transactions:
            if transaction.transactional_id == transactional_id:
                transaction.end(Fate.ABORTED)
        return FaultyTransactionalProducer(self, inner, transactional_id)

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> "FaultyConsumer":
        """See Broker."""
        self.consult("group_consumer")
        self.member = self.broker.group_consumer(group, member, topics, listener, rejoins=rejoins)
        return FaultyConsumer(self, self.member, "poll")

    def reader(self, tps: Sequence[TopicPartition], fetch_wait_ms: int = FETCH_WAIT_MS) -> "FaultyConsumer":
        """See Broker."""
        return FaultyConsumer(self, self.broker.reader(tps, fetch_wait_ms), "read")

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        self.consult("ends")
        return {tp: old.pop() if (old := self._old_ends.get(tp)) else end for tp, end in self.broker.ends(tps).items()}

    def lag(self, tp: TopicPartition, times: int) -> None:
        """Report a partition's current end to this process's next `times` requests, even if the end advances later."""
        self._old_ends[tp] = [self.broker.ends([tp])[tp]] * times

    def end_lag(self) -> None:
        """Report the true ends of partitions from now on."""
        self._old_ends.clear()

    def repeat_commit(self) -> None:
        """Have the client repeat its current commit. `late_end` then delivers the first request."""
        self.late_end = self.broker.repeat_end(self.transaction.transactional_id)

    def is_open_in(self, topic: str) -> bool:
        """Return whether the process has an open transaction with records in a topic."""
        transaction = self.transaction
        return transaction.fate is Fate.OPEN and any(tp.topic == topic for tp, _ in transaction.records)

    def is_ahead_of_followers(self) -> bool:
        """Return whether the process's transaction has a record at or beyond its partition's high watermark."""
        return any(self.broker.ends([tp])[tp].high_watermark <= offset for tp, offset in self.transaction.records)

    def close(self) -> None:
        """See Broker."""


SENDS_SNAPSHOT = "send snapshot"
SENDS_MODEL = "send snapshot of the model"
REPLICATE = "replicate"
COMMIT_STEP = "commit step "


def _name_of_send(topic: str, key: bytes | None) -> str:
    if not topic.endswith("snapshots"):
        return "send record"
    return SENDS_MODEL if (key or b"").startswith(b"0/model/") else SENDS_SNAPSHOT


class FaultyTransactionalProducer:
    """See TransactionalProducer."""

    def __init__(self, broker: FaultyBroker, inner: TransactionalProducer, transactional_id: str) -> None:
        self._broker = broker
        self._inner = inner
        self._id = transactional_id
        self._queue: list[tuple[TopicPartition, bytes | None, bytes | None, Headers]] = []

    def begin(self, check_place: Callable[[], None] = lambda: None) -> None:
        """See TransactionalProducer."""
        self._broker.consult("begin")
        self._inner.begin(check_place)
        self._broker.transaction = Transaction(self._id, self._broker.process, self._finish)
        self._broker.transactions.append(self._broker.transaction)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See TransactionalProducer."""
        self._broker.consult(_name_of_send(topic, key))
        self._queue.append((TopicPartition(topic, partition), key, value, headers))
        if not self._broker.lingers:
            self._drain(len(self._queue))

    def _drain(self, count: int) -> None:
        for tp, key, value, headers in self._queue[:count]:
            offset = self._broker.broker.log(tp).end()
            self._inner.send(tp.topic, tp.partition, key, value, headers)
            self._broker.transaction.records.append((tp, offset))
        del self._queue[:count]

    def flush(self) -> Mapping[TopicPartition, int]:
        """See TransactionalProducer. A crash can occur when half of the records are in the log.

        Waits at most the schedule's `replication_timeout_ms` for followers.
        """
        self._drain(len(self._queue) // 2)
        self._broker.consult("flush")
        self._drain(len(self._queue))
        if self._broker.is_ahead_of_followers():
            self._broker.consult(REPLICATE)
        return self._inner.flush()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: Member) -> None:
        """See TransactionalProducer."""
        self._broker.consult("send_offsets")
        assert isinstance(consumer, FaultyConsumer)
        assert isinstance(consumer.inner, EmbeddedMember)
        self._inner.send_offsets(offsets, consumer.inner)

    def commit(self) -> None:
        """See TransactionalProducer."""
        self._drain(len(self._queue))
        self._broker.consult("commit")
        self._finish()

    def _finish(self) -> None:
        self._inner.commit()
        self._broker.transaction.end(Fate.COMMITTED)
        self._broker.observe(self._broker.transaction)

    def abort(self) -> None:
        """See TransactionalProducer."""
        self._broker.consult("abort")
        self._queue.clear()
        self._inner.abort()
        self._broker.transaction.end(Fate.ABORTED)

    def close(self) -> None:
        """See TransactionalProducer."""
        self._broker.consult("close")
        self._inner.close()
        self._broker.transaction.end(Fate.ABORTED)


class FaultyConsumer:
    """See Consumer."""

    def __init__(self, broker: FaultyBroker, inner: EmbeddedConsumer, call: str) -> None:
        self._broker = broker
        self._call = call
        self.inner = inner
        # These methods are called without faults, because they do not use the network.
        self.position = inner.position
        self.seek = inner.seek
        self.pause = inner.pause
        self.resume = inner.resume
        self.assignment = inner.assignment
        self._polls = 0
        self._fetched: dict[TopicPartition, int] = {}  # the partitions' ends at the last fetch

    def lag(self, tp: TopicPartition) -> int:
        """See Consumer."""
        if not self._broker.old_lags:
            return self.inner.lag(tp)
        return max(0, self._fetched.get(tp, 0) - self.inner.position(tp))

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer."""
        self._broker.consult(self._call)
        self._polls += 1
        every = self._broker.dry_every
        is_dry = every > 0 and self._broker.may_be_dry and self._polls % every == 0
        records_max = 0 if is_dry else min(records_max, self._broker.poll_max)
        if self._call == "read":
            return self.inner.poll(timeout_ms, records_max)
        before = self._positions()
        records = self.inner.poll(timeout_ms, records_max)
        self._broker.moved += is_dry or self._positions() != before
        if not is_dry:
            self._fetched = {tp: position + self.inner.lag(tp) for tp, position in self._positions().items()}
        return records

    def _positions(self) -> dict[TopicPartition, int]:
        return {tp: self.inner.position(tp) for tp in self.inner.assignment()}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Consumer."""
        self._broker.consult("commit offsets")
        assert isinstance(self.inner, EmbeddedMember)
        self.inner.commit(offsets)

    def check_place(self) -> None:
        """See Consumer. During an outage, there is no response."""
        try:
            self._broker.consult("check_place")
        except BrokerUnavailableError:
            return
        assert isinstance(self.inner, EmbeddedMember)
        self.inner.check_place()

    def close(self) -> None:
        """See Consumer. A reader is closed without faults, because garbage collection can close it after a crash."""
        if self._call != "read":
            self._broker.consult("close")
        self.inner.close()
