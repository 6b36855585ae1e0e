"""The Broker port: all that Onebit asks of Apache Kafka; and the embedded broker, which gives the same in one process.

The embedded broker keeps time with a virtual clock that only its owner moves. It and `stream.kafka_broker` pass the
same contract tests (`tests/contract`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from stream.records import Headers as Headers
from stream.records import Record as Record
from stream.records import TopicPartition as TopicPartition

RECORD_BYTES_MAX = 1_000_000  # of a record's value; a batch with its overhead may have 1 MiB in Kafka by default


class TopicSpec(NamedTuple):
    """What a topic must be."""

    name: str
    partitions: int
    compacted: bool = False
    retention_ms: int = -1  # -1: kept for ever
    replication: int = 1


class TopicDescription(NamedTuple):
    """What a topic is."""

    name: str
    partitions: int
    append_time: bool  # timestamps are the broker's (LogAppendTime), not the producer's
    compacted: bool
    retention_ms: int
    replication: int


class BrokerError(Exception):
    """The broker refused an operation or could not be reached."""


class BrokerUnavailableError(BrokerError):
    """No answer within the time allowed; the outcome of what was asked may be unknown."""


class FencedError(BrokerError):
    """This process is out for good: another has its transactional id or its place, or its group has thrown it out."""


class StaleMemberError(BrokerError):
    """The consumer group has moved on: the partitions of this step now belong to a newer generation."""


class TopicSettingsError(BrokerError):
    """A topic exists with settings that Onebit cannot work with."""


class Producer(Protocol):
    """Writes records, each on its own, at least once."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Queue a record."""

    def flush(self) -> int:
        """Wait until all queued records are acknowledged; the latest append time among them, -1 when none was queued.

        Raises:
            BrokerUnavailableError: not all were acknowledged in time; they may or may not have been written.
        """

    def close(self) -> None:
        """Flush and release."""


class TransactionalProducer(Protocol):
    """Writes records and consumed offsets in transactions. Making one fences all earlier ones of the same id."""

    def begin(self) -> None:
        """Open a transaction."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Queue a record in the open transaction."""

    def flush(self) -> None:
        """Wait until all queued records are in the log, where the transaction shows as an open one."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: "Consumer") -> None:
        """Make the consumer's next offsets part of the transaction, under its group membership.

        Raises:
            StaleMemberError: the group has moved on without this member.
            FencedError: another producer has taken over.
        """

    def commit(self) -> int:
        """Commit; the latest append time among the transaction's records, -1 when it held none.

        Raises:
            FencedError: another producer has taken over; nothing of the transaction will be visible.
            BrokerUnavailableError: the outcome is unknown; what was written must be read to find out.
        """

    def abort(self) -> None:
        """Abort the open transaction; nothing happens when none is open."""

    def close(self) -> None:
        """Release; an open transaction is aborted."""


class Consumer(Protocol):
    """Reads records of committed transactions, and records written outside of any, in the order of their offsets."""

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """Records from the assigned partitions, in offset order within each; empty when none came in time.

        Rebalance callbacks run in here and nowhere else.
        """

    def position(self, tp: TopicPartition) -> int:
        """The next offset to be read; past everything that will never be visible (markers, aborted records)."""

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read on from here."""

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Leave these partitions out of the following polls."""

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Take paused partitions back in."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for the group outside of a transaction, for programs that may do things twice.

        Raises:
            StaleMemberError: the group has moved on without this member.
        """

    def check_place(self) -> None:
        """Hear from the group, if it can be reached, whether this member still has its place in it.

        Raises:
            FencedError: it has not; for a member that joins again after it was thrown out, only if another has it.
        """

    def close(self) -> None:
        """Leave the group and release."""


class RebalanceListener(Protocol):
    """Hears, inside `poll`, which partitions come and go."""

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """These partitions are about to be taken away; the last commit must have been made."""

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """These partitions are now read by this consumer."""


class Ends(NamedTuple):
    """Where a partition ends at the moment of asking."""

    high_watermark: int  # one past the last record, whether its transaction is open or not
    stable: int  # one past the last record that a read-committed consumer can be given


class Broker(Protocol):
    """Apache Kafka as Onebit sees it."""

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create the topics that do not exist, all with the broker's append time.

        Raises:
            TopicSettingsError: one exists with other settings; the message says which, and what they should be.
        """

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name."""

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete the topics that exist, and wait until they are gone."""

    def producer(self) -> Producer:
        """A producer outside of transactions."""

    def transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """A producer of transactions; an open transaction of an earlier one with this id is aborted."""

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> Consumer:
        """A member of a consumer group: equal partition numbers of all topics go to the same member.

        `member` names the member across restarts: a restarted one takes its place at once and fences the one before.
        Reading starts at the committed offset, else at the beginning.

        The group throws out a member that has given no sign of life for a session: one that was paused, or cut off.
        When it hears of that it joins again in its next poll; with `rejoins` False it is fenced.
        """

    def reader(self, tps: Sequence[TopicPartition]) -> Consumer:
        """A consumer without a group, at the beginning of these partitions."""

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """Where partitions end, asked of the broker now (not remembered from an earlier answer)."""

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still kept in each partition."""

    def committed(self, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a group; partitions without one are left out."""

    def close(self) -> None:
        """Release all connections."""


def check_settings(specs: Sequence[TopicSpec], existing: Mapping[str, TopicDescription]) -> None:
    """Raise TopicSettingsError when existing topics are not what they must be."""
    wrong = []
    for spec in specs:
        if (found := existing.get(spec.name)) is None:
            continue
        expected = TopicDescription(
            spec.name, spec.partitions, append_time=True, compacted=spec.compacted,
            retention_ms=spec.retention_ms, replication=spec.replication,
        )  # fmt: skip
        wrong += [
            f"topic {spec.name}: {setting} is {getattr(found, setting)}, expected {getattr(expected, setting)}"
            for setting in TopicDescription._fields
            if getattr(found, setting) != getattr(expected, setting)
        ]
    if wrong:
        raise TopicSettingsError(f"{'; '.join(wrong)}; alter or delete these topics, or use another prefix")


def check_co_partitioned(group: str, topics: Sequence[str], existing: Mapping[str, TopicDescription]) -> None:
    """Raise BrokerError for topics of which equal partition numbers could not go to the same member."""
    missing = [topic for topic in topics if topic not in existing]
    if missing:
        raise BrokerError(f"group {group} cannot read {', '.join(missing)}: no such topics; create them first")
    partitions = {topic: existing[topic].partitions for topic in topics}
    if len(set(partitions.values())) > 1:
        raise BrokerError(f"group {group} needs topics with equal numbers of partitions; got {partitions}")


def replaced(member: str, group: str) -> str:
    """What a member is told whose place another process has taken."""
    return f"member {member} of group {group} was replaced by a newer one"


def thrown_out(member: str, group: str) -> str:
    """What a member is told that does not join again after its session has ended."""
    return (
        f"member {member} was thrown out of group {group}: for longer than its session it gave no sign of life, as a "
        "process does that is paused or cut off from the broker; others may have gone on with its partitions"
    )


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a key: murmur2 as in Kafka's own default partitioner, so that other producers agree."""
    if partitions == 1:
        return 0
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with the seed that Kafka's partitioner uses."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        k = (k ^ k >> 24) * multiplier & mask
        h = (h * multiplier & mask) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    h = (h ^ h >> 13) * multiplier & mask
    return h ^ h >> 15


class VirtualClock:
    """The embedded broker's time, in milliseconds; it moves when its owner moves it, and never back."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def advance_to(self, now_ms: int) -> None:
        """Move to a later time; an earlier one changes nothing."""
        self.now_ms = max(self.now_ms, now_ms)


class EstimatedClock:
    """A broker's time as a client can tell it: its latest known append time, and the time that went by since.

    It is never ahead of the broker's, as long as this host's clock does not run faster.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._ahead_ms: int | None = None  # the broker's time less this host's monotonic one

    def heard(self, append_ms: int) -> None:
        """Take in an append time that the broker has just given, or gave some time ago."""
        ahead_ms = append_ms - self._monotonic_ms()
        if self._ahead_ms is None or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """The broker's time, at least; 0 as long as none is known."""
        return 0 if self._ahead_ms is None else self._monotonic_ms() + self._ahead_ms


class _Transaction:
    """An open transaction: what it has appended where."""

    __slots__ = ("last_ms", "offsets", "touched")

    def __init__(self) -> None:
        self.touched: dict[_Log, list[int]] = {}
        self.last_ms = -1  # the append time of its last record
        self.offsets: dict[tuple[str, TopicPartition], int] = {}  # (group, partition) -> next offset


class _Log:
    """One partition: its records, and which of them are not (or not yet) visible."""

    __slots__ = ("aborted", "first", "open", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.first = 0  # the offset of records[0]
        self.open: dict[_Transaction, int] = {}  # first offset of each open transaction
        self.aborted: set[int] = set()

    def high_watermark(self) -> int:
        return self.first + len(self.records)

    def stable(self) -> int:
        return min(self.open.values()) if self.open else self.first + len(self.records)

    def ends(self) -> Ends:
        high_watermark = self.first + len(self.records)
        return Ends(high_watermark, min(self.open.values()) if self.open else high_watermark)


class _Group:
    """A consumer group: who is in it, and since which generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, EmbeddedConsumer] = {}
        self.committed: dict[TopicPartition, int] = {}


_tuple = tuple.__new__  # makes a Record in half the time, and four are made for each event


class EmbeddedBroker:
    """Topics, transactions, groups and fencing in one process, in virtual time.

    Unlike Kafka it writes no commit markers, so offsets have no gaps.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock if clock is not None else VirtualClock()
        self._specs: dict[str, TopicSpec] = {}
        self._logs: dict[tuple[str, int], _Log] = {}
        self._groups: dict[str, _Group] = {}
        self._epochs: dict[str, int] = {}
        self._open: dict[str, _Transaction] = {}  # by transactional id

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        check_settings(specs, self.describe_topics([spec.name for spec in specs]))
        for spec in specs:
            self._specs[spec.name] = spec
            for partition in range(spec.partitions):
                self._logs.setdefault(TopicPartition(spec.name, partition), _Log())

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        return {
            name: TopicDescription(
                name, spec.partitions, append_time=True, compacted=spec.compacted,
                retention_ms=spec.retention_ms, replication=spec.replication,
            )
            for name in names
            if (spec := self._specs.get(name)) is not None
        }  # fmt: skip

    def delete_topics(self, names: Sequence[str]) -> None:
        """See Broker."""
        for name in names:
            if self._specs.pop(name, None) is not None:
                for tp in [tp for tp in self._logs if tp[0] == name]:
                    del self._logs[tp]
                    for group in self._groups.values():
                        group.committed.pop(TopicPartition(*tp), None)

    def producer(self) -> "EmbeddedProducer":
        """See Broker."""
        return EmbeddedProducer(self)

    def transactional_producer(self, transactional_id: str) -> "EmbeddedTransactionalProducer":
        """See Broker."""
        self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        self.abort(transactional_id)
        return EmbeddedTransactionalProducer(self, transactional_id, self._epochs[transactional_id])

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> "EmbeddedConsumer":
        """See Broker."""
        check_co_partitioned(group, topics, self.describe_topics(topics))
        self._groups.setdefault(group, _Group())
        consumer = EmbeddedConsumer(
            self, [], group=group, member=member, topics=topics, listener=listener, rejoins=rejoins
        )
        self.join(consumer)
        return consumer

    def reader(self, tps: Sequence[TopicPartition]) -> "EmbeddedConsumer":
        """See Broker."""
        return EmbeddedConsumer(self, tps)

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        return {tp: self._log(tp).ends() for tp in tps}

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return {tp: self._log(tp).first for tp in tps}

    def committed(self, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        committed = self._groups[group].committed if group in self._groups else {}
        return {tp: committed[tp] for tp in tps if tp in committed}

    def close(self) -> None:
        """See Broker."""

    def delete_records(self, tp: TopicPartition, before: int) -> None:
        """Forget the records below an offset, as retention does."""
        log = self._log(tp)
        count = min(before, log.stable()) - log.first
        if count > 0:
            del log.records[:count]
            log.first += count
            log.aborted = {offset for offset in log.aborted if offset >= log.first}

    def _log(self, tp: tuple[str, int]) -> _Log:
        log = self._logs.get(tp)
        if log is None:
            raise BrokerError(f"there is no partition {tp[1]} of topic {tp[0]}; create the topics first")
        return log

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers,
        transaction: _Transaction | None,
    ) -> None:  # fmt: skip
        """Append one record at the clock's time."""
        log = self._logs.get((topic, partition)) or self._log((topic, partition))
        if value is not None:
            if len(value) > RECORD_BYTES_MAX:
                raise BrokerError(
                    f"could not send a record of {len(value)} bytes to {topic}/{partition}: at most {RECORD_BYTES_MAX}"
                )
            # An encoder's bytes still lie in the buffer that they were written to, a page of memory for each record.
            value = b"%b" % value
        offset = log.first + len(log.records)
        log.records.append(_tuple(Record, (topic, partition, offset, self.clock.now_ms, key, value, headers)))
        if transaction is not None:
            offsets = transaction.touched.get(log)
            if offsets is None:
                log.open[transaction] = offset
                transaction.touched[log] = [offset]
            else:
                offsets.append(offset)
            transaction.last_ms = self.clock.now_ms

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        """Refuse a producer that a later one of the same id has replaced."""
        if self._epochs[transactional_id] != epoch:
            raise FencedError(f"another producer with the transactional id {transactional_id} has taken over")

    def begin(self, transactional_id: str) -> _Transaction:
        """Open a transaction."""
        transaction = _Transaction()
        self._open[transactional_id] = transaction
        return transaction

    def commit(self, transactional_id: str) -> None:
        """Make an open transaction's records visible and its offsets committed."""
        transaction = self._open.pop(transactional_id)
        for log in transaction.touched:
            del log.open[transaction]
        for (group, tp), offset in transaction.offsets.items():
            self._groups[group].committed[tp] = offset

    def abort(self, transactional_id: str) -> None:
        """Drop an open transaction, if there is one."""
        transaction = self._open.pop(transactional_id, None)
        if transaction is not None:
            for log, offsets in transaction.touched.items():
                del log.open[transaction]
                log.aborted.update(offsets)

    def check_member(self, consumer: "EmbeddedConsumer") -> str:
        """The group of a consumer that is a current member of it."""
        group = self._groups.get(consumer.group)
        if group is None:
            raise BrokerError("this consumer is in no group and has no offsets to commit")
        self.check_place(consumer)
        if consumer.member not in group.members or consumer.generation != group.generation:
            raise StaleMemberError(
                f"member {consumer.member} of group {consumer.group} is of generation {consumer.generation}; "
                f"the group is at {group.generation}"
            )
        return consumer.group

    def check_place(self, consumer: "EmbeddedConsumer") -> None:
        """Refuse a member whose place another has, and one that was thrown out and does not join again."""
        current = self._groups[consumer.group].members.get(consumer.member)
        if current is not None and current is not consumer:
            raise FencedError(replaced(consumer.member, consumer.group))
        if current is None and not consumer.rejoins:
            raise FencedError(thrown_out(consumer.member, consumer.group))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Remember a group's next offsets."""
        self._groups[group].committed.update(offsets)

    def join(self, consumer: "EmbeddedConsumer") -> None:
        """Take a member into its group, in the place of an earlier one of its name: then the others hear nothing."""
        group = self._groups[consumer.group]
        before = group.members.get(consumer.member)
        group.members[consumer.member] = consumer
        if before is not None and list(before.topics) == list(consumer.topics):
            consumer.next_assignment = before.next_assignment
        else:
            self._rebalance(group)

    def leave(self, consumer: "EmbeddedConsumer") -> None:
        """Take a member out of its group."""
        group = self._groups[consumer.group]
        if group.members.get(consumer.member) is consumer:
            del group.members[consumer.member]
            self._rebalance(group)

    def expel(self, group: str, member: str) -> None:
        """Take a member out of its group as a session time-out does; its next poll tells it so."""
        self.leave(self._groups[group].members[member])

    def group_of(self, consumer: "EmbeddedConsumer") -> _Group:
        """The group that a consumer joined."""
        return self._groups[consumer.group]

    def _rebalance(self, group: _Group) -> None:
        """Deal the partition numbers in ranges over the members; each hears of it in its next poll."""
        group.generation += 1
        members = [group.members[name] for name in sorted(group.members)]
        if not members:
            return
        for consumer in members:
            consumer.next_assignment = frozenset()
        partitions = max(self._specs[topic].partitions for topic in members[0].topics)
        for topic in members[0].topics:
            for partition in range(self._specs[topic].partitions):
                owner = members[partition * len(members) // partitions]
                owner.next_assignment |= {TopicPartition(topic, partition)}

    def read(self, tp: TopicPartition, offset: int, records_max: int) -> tuple[list[Record], int]:
        """Visible records from an offset on, and the offset after the last one looked at."""
        log = self._log(tp)
        if offset < log.first:
            raise BrokerError(
                f"offset {offset} of {tp.topic}/{tp.partition} is no longer kept: the first is {log.first}"
            )
        stable = min(log.open.values()) if log.open else log.first + len(log.records)
        if offset >= stable:
            return [], offset
        start = offset - log.first
        stop = min(stable - log.first, start + records_max)
        records = log.records[start:stop]
        if log.aborted:
            records = [record for record in records if record.offset not in log.aborted]
        return records, log.first + stop


class EmbeddedProducer:
    """See Producer."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._last_ms = -1

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Producer."""
        self._broker.append(topic, partition, key, value, headers, None)
        self._last_ms = self._broker.clock.now_ms

    def flush(self) -> int:
        """See Producer."""
        last_ms, self._last_ms = self._last_ms, -1
        return last_ms

    def close(self) -> None:
        """See Producer."""


class EmbeddedTransactionalProducer:
    """See TransactionalProducer."""

    def __init__(self, broker: EmbeddedBroker, transactional_id: str, epoch: int) -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch = epoch
        self._transaction: _Transaction | None = None

    def begin(self) -> None:
        """See TransactionalProducer."""
        self._broker.check_epoch(self._id, self._epoch)
        if self._transaction is not None:
            raise BrokerError(f"a transaction of {self._id} is open already: commit or abort it first")
        self._transaction = self._broker.begin(self._id)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See TransactionalProducer."""
        self._broker.check_epoch(self._id, self._epoch)
        self._broker.append(topic, partition, key, value, headers, self._current())

    def flush(self) -> None:
        """See TransactionalProducer."""
        self._broker.check_epoch(self._id, self._epoch)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: Consumer) -> None:
        """See TransactionalProducer."""
        self._broker.check_epoch(self._id, self._epoch)
        assert isinstance(consumer, EmbeddedConsumer)
        group = self._broker.check_member(consumer)
        transaction = self._current()
        for tp, offset in offsets.items():
            transaction.offsets[group, tp] = offset

    def commit(self) -> int:
        """See TransactionalProducer."""
        self._broker.check_epoch(self._id, self._epoch)
        transaction = self._current()
        self._broker.commit(self._id)
        self._transaction = None
        return transaction.last_ms

    def abort(self) -> None:
        """See TransactionalProducer."""
        if self._transaction is not None:
            self._transaction = None
            self._broker.check_epoch(self._id, self._epoch)
            self._broker.abort(self._id)

    def close(self) -> None:
        """See TransactionalProducer."""
        try:
            self.abort()
        except FencedError:
            self._transaction = None  # the one that took over has aborted it already

    def _current(self) -> _Transaction:
        if self._transaction is None:
            raise BrokerError("no transaction is open: call begin first")
        return self._transaction


class EmbeddedConsumer:
    """See Consumer."""

    def __init__(
        self, broker: EmbeddedBroker, tps: Sequence[TopicPartition], *, group: str = "", member: str = "",
        topics: Sequence[str] = (), listener: RebalanceListener | None = None, rejoins: bool = True,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._positions = broker.beginnings(tps)
        self._paused: set[TopicPartition] = set()
        self._listener = listener
        self._closed = False
        self.group = group
        self.member = member
        self.topics = topics
        self.rejoins = rejoins
        self.generation = 0
        self.next_assignment: frozenset[TopicPartition] = frozenset(tps)

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return frozenset(self._positions)

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer; time is virtual, so that there is nothing to wait for."""
        if self._listener is not None:
            self._follow_group(self._listener)
        records: list[Record] = []
        read = self._broker.read
        for tp, position in self._positions.items():
            if tp not in self._paused and len(records) < records_max:
                found, end = read(tp, position, records_max - len(records))
                if end != position:
                    self._positions[tp] = end
                    records += found
        return records

    def _follow_group(self, listener: RebalanceListener) -> None:
        group = self._broker.group_of(self)
        if group.members.get(self.member) is not self:
            if self._closed:
                raise BrokerError(f"member {self.member} of group {self.group} has left it")
            self.check_place()
            self._broker.join(self)
        if self.generation == group.generation:
            return
        if self._positions:
            listener.on_revoked(frozenset(self._positions))
        self.generation = group.generation
        tps = sorted(self.next_assignment)
        committed = self._broker.committed(self.group, tps)
        beginnings = self._broker.beginnings(tps)
        self._positions = {tp: committed.get(tp, beginnings[tp]) for tp in tps}
        self._paused.clear()
        listener.on_assigned(frozenset(self._positions))

    def position(self, tp: TopicPartition) -> int:
        """See Consumer."""
        return self._positions[tp]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """See Consumer."""
        if tp not in self._positions:
            raise BrokerError(f"{tp.topic}/{tp.partition} is not assigned to this consumer")
        self._positions[tp] = offset

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._paused.update(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._paused.difference_update(tps)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Consumer."""
        self._broker.commit_offsets(self._broker.check_member(self), offsets)

    def check_place(self) -> None:
        """See Consumer."""
        if self._listener is not None:
            self._broker.check_place(self)

    def close(self) -> None:
        """See Consumer."""
        self._closed = True
        if self._listener is not None:
            self._broker.leave(self)
