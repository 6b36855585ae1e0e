"""The embedded broker: topics, transactions, groups and fencing in one process.

It keeps time with a virtual clock that only its owner moves.
"""

from collections.abc import Iterable, Mapping, Sequence

from stream.kafka.clocks import VirtualClock
from stream.kafka.port import (
    RECORD_BYTES_MAX,
    BrokerError,
    BrokerUnavailableError,
    Consumer,
    Ends,
    FencedError,
    RebalanceListener,
    StaleMemberError,
)
from stream.kafka.refusals import check_co_partitioned, check_settings, replaced, thrown_out
from stream.wire.records import Headers as Headers
from stream.wire.records import Record as Record
from stream.wire.records import TopicPartition as TopicPartition
from stream.wire.records import make
from stream.wire.topics import TopicDescription, TopicSpec


class _Transaction:
    """An open transaction: what it has appended where."""

    __slots__ = ("flushed", "offsets", "touched")

    def __init__(self) -> None:
        self.touched: dict[_Log, list[int]] = {}
        self.flushed: dict[_Log, int] = {}  # the last offset in each that a flush has told of
        self.offsets: dict[tuple[str, TopicPartition], int] = {}  # (group, partition) -> next offset

    def flush(self) -> dict[TopicPartition, int]:
        """The latest append time in each partition that was written to since the last flush."""
        appended_ms = {}
        for log, offsets in self.touched.items():
            last = offsets[-1]
            if last > self.flushed.get(log, -1):
                self.flushed[log] = last
                record = log.at(last)
                appended_ms[TopicPartition(record.topic, record.partition)] = record.append_ms
        return appended_ms

    def check_replicated(self) -> None:
        """Raise when one of its records is beyond a held high watermark."""
        for log, offsets in self.touched.items():
            log.check_replicated(offsets[-1])

    def last_ms(self) -> int:
        """The append time of its last record; -1 when it has none."""
        return max((log.at(offsets[-1]).append_ms for log, offsets in self.touched.items()), default=-1)


_HOLD = _Transaction()
"""Stays open in each partition whose high watermark is held."""


class _Log:
    """One partition: its records, and which of them are not (or not yet) visible."""

    __slots__ = ("aborted", "first", "open", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.first = 0  # the offset of records[0]
        self.open: dict[_Transaction, int] = {}  # first offset of each open transaction
        self.aborted: set[int] = set()

    def at(self, offset: int) -> Record:
        return self.records[offset - self.first]

    def end(self) -> int:
        return self.first + len(self.records)

    def stable(self) -> int:
        return min(self.open.values()) if self.open else self.first + len(self.records)

    def ends(self) -> Ends:
        return Ends(self.open.get(_HOLD, self.end()), self.stable())

    def check_replicated(self, offset: int) -> None:
        """Raise as a producer with acks=all does, when a record is beyond the held high watermark."""
        if offset >= self.open.get(_HOLD, offset + 1):
            record = self.at(offset)
            raise BrokerUnavailableError(
                f"could not write the record at offset {offset} of {record.topic}/{record.partition}: a follower did "
                "not answer in time; see that all brokers run"
            )


class _Group:
    """A consumer group: who is in it, and since which generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, EmbeddedConsumer] = {}
        self.committed: dict[TopicPartition, int] = {}


class EmbeddedBroker:
    """Topics, transactions, groups and fencing in one process, in virtual time.

    Unlike Kafka it writes no commit markers, so offsets have no gaps.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock if clock is not None else VirtualClock()
        self._specs: dict[str, TopicSpec] = {}
        self._topic_ids: dict[str, str] = {}
        self._topics_made = 0
        self._logs: dict[tuple[str, int], _Log] = {}
        self._groups: dict[str, _Group] = {}
        self._epochs: dict[str, int] = {}
        self._open: dict[str, _Transaction] = {}  # by transactional id

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        check_settings(specs, self.describe_topics([spec.name for spec in specs]))
        for spec in specs:
            if spec.name not in self._specs:
                self._topics_made += 1
                self._topic_ids[spec.name] = str(self._topics_made)
            self._specs[spec.name] = spec
            for partition in range(spec.partitions):
                self._logs.setdefault(TopicPartition(spec.name, partition), _Log())

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        return {
            name: TopicDescription(
                name, spec.partitions, append_time=True, compacted=spec.compacted,
                retention_ms=spec.retention_ms, replication=spec.replication, topic_id=self._topic_ids[name],
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

    def stable_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return {tp: self._log(tp).stable() for tp in tps}

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return {tp: self._log(tp).first for tp in tps}

    def committed(self, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        committed = self._groups[group].committed if group in self._groups else {}
        return {tp: committed[tp] for tp in tps if tp in committed}

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """See Broker."""
        members = self._groups[group].members if group in self._groups else {}
        return {name: consumer.next_assignment for name, consumer in members.items()}

    def close(self) -> None:
        """See Broker."""

    def log_end(self, tp: TopicPartition) -> int:
        """The offset of the next record that is appended; beyond the high watermark while that is held."""
        return self._log(tp).end()

    def hold(self, tp: TopicPartition) -> None:
        """Keep a partition's high watermark where its log ends now, until it is released.

        Records appended later are in the log, but cannot be read. A flush of them raises BrokerUnavailableError, as
        with acks=all when a follower does not answer in time.
        """
        log = self._log(tp)
        log.open.setdefault(_HOLD, log.end())

    def release(self, tp: TopicPartition) -> None:
        """Let a held high watermark catch up with the end of the log."""
        self._log(tp).open.pop(_HOLD, None)

    def delete_records(self, tp: TopicPartition, before: int) -> None:
        """Forget the records below an offset, as retention does."""
        log = self._log(tp)
        count = min(before, log.stable()) - log.first
        if count > 0:
            del log.records[:count]
            log.first += count
            log.aborted = {offset for offset in log.aborted if offset >= log.first}

    def append_ms_at(self, tp: TopicPartition, offset: int) -> int:
        """The append time of one record."""
        return self._log(tp).at(offset).append_ms

    def _log(self, tp: tuple[str, int]) -> _Log:
        log = self._logs.get(tp)
        if log is None:
            raise BrokerError(f"there is no partition {tp[1]} of topic {tp[0]}; create the topics first")
        return log

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers,
        transaction: _Transaction | None,
    ) -> _Log:  # fmt: skip
        """Append one record at the clock's time; returns the log that has it."""
        log = self._logs.get((topic, partition)) or self._log((topic, partition))
        if value is not None:
            if len(value) > RECORD_BYTES_MAX:
                raise BrokerError(
                    f"could not send a record of {len(value)} bytes to {topic}/{partition}: at most {RECORD_BYTES_MAX}"
                )
            # An encoder's bytes still lie in the buffer that they were written to, a page of memory for each record.
            value = b"%b" % value
        records = log.records
        offset = log.first + len(records)
        records.append(make(Record, (topic, partition, offset, self.clock.now_ms, key, value, headers)))
        if transaction is not None:
            offsets = transaction.touched.get(log)
            if offsets is None:
                log.open[transaction] = offset
                transaction.touched[log] = [offset]
            else:
                offsets.append(offset)
        return log

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
        self._unstable: dict[_Log, int] = {}  # last offset in partitions with a hold or an open transaction

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Producer."""
        log = self._broker.append(topic, partition, key, value, headers, None)
        self._last_ms = self._broker.clock.now_ms
        if log.open:
            self._unstable[log] = log.end() - 1

    def flush(self) -> int:
        """See Producer."""
        last_ms, self._last_ms = self._last_ms, -1
        unstable, self._unstable = self._unstable, {}
        for log, offset in unstable.items():
            log.check_replicated(offset)
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

    def rest(self) -> None:
        """See TransactionalProducer; a commit is done when it is answered."""

    def begin(self) -> None:
        """See TransactionalProducer."""
        self._broker.check_epoch(self._id, self._epoch)
        if self._transaction is not None:
            raise BrokerError(f"a transaction of {self._id} is open already: commit or abort it first")
        self._transaction = self._broker.begin(self._id)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See TransactionalProducer."""
        broker = self._broker
        broker.check_epoch(self._id, self._epoch)
        broker.append(topic, partition, key, value, headers, self._transaction or self._current())

    def flush(self) -> Mapping[TopicPartition, int]:
        """See TransactionalProducer."""
        self._broker.check_epoch(self._id, self._epoch)
        transaction = self._current()
        transaction.check_replicated()
        return transaction.flush()

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
        transaction.check_replicated()
        self._broker.commit(self._id)
        self._transaction = None
        return transaction.last_ms()

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
        read, paused = self._broker.read, self._paused
        for tp, position in self._positions.items():
            if len(records) < records_max and tp not in paused:
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

    def lag(self, tp: TopicPartition) -> int:
        """See Consumer; every answer is that of a fetch made now."""
        return max(0, self._broker.stable_ends((tp,))[tp] - self._positions[tp])

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
