"""The embedded broker: topics, transactions, groups and fencing in one process, in virtual time.

In virtual time, the clock jumps to the next time at which work is due. The programs are the same as with Kafka, but
they use the embedded broker. No program sleeps, and the order of all events depends only on the seed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakSet

from stream.kafka.port import (
    FETCH_WAIT_MS,
    RECORD_BYTES_MAX,
    BrokerError,
    BrokerUnavailableError,
    Ends,
    FencedError,
    Member,
    RebalanceListener,
)
from stream.kafka.producers import PlainProducer, TransactionProducer
from stream.kafka.refusals import Subscription, check_co_partitioned, check_settings, description_of_spec
from stream.wire.records import Headers, Record, TopicPartition, make
from stream.wire.topics import TopicDescription, TopicSpec


class VirtualClock:
    """The embedded broker's time in milliseconds. Only its owner advances it, and it never runs backwards."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def advance_to(self, now_ms: int) -> None:
        """Advance to a later time. An earlier time has no effect."""
        self.now_ms = max(self.now_ms, now_ms)


class Program(Protocol):
    """A program in the pipeline, such as the replay or the learner."""

    def step(self, timeout_ms: int) -> int:
        """Do the work that is possible now and return the amount of work done."""

    def next_due_ms(self) -> int | None:
        """Return the next time at which work is due even if no records arrive, or None."""


def run_until_settled(clock: VirtualClock, sources: Sequence[Program], learner: Program, poll_ms: int = 0) -> None:
    """Run the programs until no work is left.

    The sources run a step at every due time. The learner runs a step once records have waited for poll_ms, like a
    learner that polls a real broker at intervals. With a poll_ms of 0, the learner also runs a step at every due time.
    It then makes each decision at the context's time and learns from feedback before the next event. Append times,
    record order and the model are the same for every poll_ms up to the shortest feedback delay.
    """
    waits = False  # True if the learner has unread records
    next_poll_ms = clock.now_ms
    learner_due_ms = learner.next_due_ms()  # changes only when the learner runs a step
    while True:
        for source in sources:
            if source.step(0):
                waits = True
        now_ms = clock.now_ms
        if (waits and now_ms >= next_poll_ms) or (learner_due_ms is not None and now_ms >= learner_due_ms):
            while learner.step(0) or sum(source.step(0) for source in sources):
                pass
            waits = False
            next_poll_ms = now_ms + poll_ms
            learner_due_ms = learner.next_due_ms()
        dues = [due_ms for source in sources if (due_ms := source.next_due_ms()) is not None]
        if learner_due_ms is not None:
            dues.append(learner_due_ms)
        if waits:
            dues.append(next_poll_ms)
        if not dues:
            return
        clock.advance_to(min(dues))


_HOLD = object()
"""The key in `_Log.open` for a held high watermark."""


class _Log:
    """One partition's log. It records which offsets belong to open or aborted transactions."""

    __slots__ = ("aborted", "first", "open", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.first = 0  # offset of the first item in `records`
        # The first offset of each producer's open transaction. The key _HOLD contains the held high watermark.
        self.open: dict[object, int] = {}
        self.aborted: set[int] = set()

    def at(self, offset: int) -> Record:
        """Return the record at an offset."""
        return self.records[offset - self.first]

    def end(self) -> int:
        """Return the offset of the next record to be appended. It can be beyond a held high watermark."""
        return self.first + len(self.records)

    def stable(self) -> int:
        return min(self.open.values()) if self.open else self.first + len(self.records)

    def ends(self) -> Ends:
        return Ends(self.open.get(_HOLD, self.end()), self.stable())

    def check_replicated(self, offset: int) -> None:
        """Raise the error that a producer with acks=all receives if the record is not replicated in time."""
        if offset >= self.open.get(_HOLD, offset + 1):
            record = self.at(offset)
            raise BrokerUnavailableError(
                f"could not write the record at offset {offset} of {record.topic}/{record.partition}: a follower did "
                "not respond in time; check that all brokers are running"
            )


class _Group:
    """A consumer group."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, EmbeddedMember] = {}
        self.committed: dict[TopicPartition, int] = {}


class EmbeddedBroker:
    """Topics, transactions, groups and fencing in one process, in virtual time.

    Unlike Kafka, this broker writes no commit markers, so offsets have no gaps.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock if clock is not None else VirtualClock()
        self.clock_ahead_ms = 0  # the broker's time minus virtual time; tests set it to simulate a wrong clock
        self._topics: dict[str, TopicDescription] = {}
        self._topics_made = 0
        self._logs: dict[tuple[str, int], _Log] = {}
        self._groups: dict[str, _Group] = {}
        self._sinks: dict[str, _TransactionSink] = {}  # the newest producer for each transactional id

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        check_settings(specs, self._topics)
        for spec in specs:
            if spec.name not in self._topics:
                self._topics_made += 1
                made = description_of_spec(spec, str(self._topics_made))
                self._topics[spec.name] = made._replace(leader_epochs=(0,) * spec.partitions)
                self._logs.update({TopicPartition(spec.name, number): _Log() for number in range(spec.partitions)})

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        return {name: self._topics[name] for name in names if name in self._topics}

    def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        for spec in specs:
            self._topics[spec.name] = self._topics[spec.name]._replace(retention_ms=spec.retention_ms)

    def delete_topics(self, names: Sequence[str]) -> None:
        """See Broker."""
        for name in names:
            if self._topics.pop(name, None) is not None:
                for tp in [tp for tp in self._logs if tp[0] == name]:
                    del self._logs[tp]
                    for group in self._groups.values():
                        group.committed.pop(TopicPartition(*tp), None)

    def producer(self) -> PlainProducer:
        """See Broker."""
        return PlainProducer(lambda: EmbeddedSink(self), clients=WeakSet())

    def transactional_producer(self, transactional_id: str) -> TransactionProducer:
        """See Broker."""
        return TransactionProducer(partial(self._take_over, transactional_id), clients=WeakSet())

    def _take_over(self, transactional_id: str) -> "_TransactionSink":
        if transactional_id in self._sinks:
            self._sinks[transactional_id].fence()
        sink = self._sinks[transactional_id] = _TransactionSink(self, transactional_id)
        return sink

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> "EmbeddedMember":
        """See Broker."""
        check_co_partitioned(group, topics, self._topics)
        subscription = Subscription(group, member, topics, listener, rejoins)
        joined = EmbeddedMember(self, self._groups.setdefault(group, _Group()), subscription)
        self.join(joined)
        return joined

    def reader(self, tps: Sequence[TopicPartition], fetch_wait_ms: int = FETCH_WAIT_MS) -> "EmbeddedConsumer":
        """See Broker. In virtual time, fetches never wait."""
        return EmbeddedConsumer(self, tps)

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        return {tp: self.log(tp).ends() for tp in tps}

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return {tp: self.log(tp).first for tp in tps}

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

    def hold(self, tp: TopicPartition) -> None:
        """Hold a partition's high watermark at the current end of its log until `release` is called.

        Records appended later are in the log but cannot be read. A flush of such records raises BrokerUnavailableError,
        as with acks=all when a follower does not respond in time.
        """
        log = self.log(tp)
        log.open.setdefault(_HOLD, log.end())

    def release(self, tp: TopicPartition) -> None:
        """Advance a held high watermark to the end of the log."""
        self.log(tp).open.pop(_HOLD, None)

    def repeat_end(self, transactional_id: str) -> Callable[[bool], None]:
        """Have a producer repeat the end of its transaction, as a client does after losing a connection.

        Returns a function that delivers the first request, which commits or aborts. As on Kafka, it ends the part of a
        later transaction that has been written, unless the producer has a new epoch.
        """
        sink = self._sinks[transactional_id]
        sink.is_exposed = True
        return sink.end_late

    def delete_records(self, tp: TopicPartition, before: int) -> None:
        """Delete the records below an offset, as retention does."""
        log = self.log(tp)
        count = min(before, log.stable()) - log.first
        if count > 0:
            del log.records[:count]
            log.first += count
            log.aborted = {offset for offset in log.aborted if offset >= log.first}

    def delete_expired(self) -> None:
        """Delete the records that exceed their topic's retention. Compacted topics keep their records."""
        for tp, log in self._logs.items():
            topic = self._topics[tp[0]]
            if topic.retention_ms >= 0 and not topic.compacted:
                oldest_ms = self.clock.now_ms + self.clock_ahead_ms - topic.retention_ms
                times_ms = [record.append_ms for record in log.records]
                self.delete_records(TopicPartition(*tp), log.first + bisect_left(times_ms, oldest_ms))

    def truncate(self, tp: TopicPartition, end: int) -> None:
        """Delete the records from an offset on, as an unclean leader election does. The partition gets a new leader."""
        log = self.log(tp)
        del log.records[end - log.first :]
        topic = self._topics[tp.topic]
        epochs = list(topic.leader_epochs)
        epochs[tp.partition] += 1
        self._topics[tp.topic] = topic._replace(leader_epochs=tuple(epochs))

    def log(self, tp: tuple[str, int]) -> _Log:
        """Return a partition's log."""
        log = self._logs.get(tp)
        if log is None:
            raise BrokerError(f"topic {tp[0]} has no partition {tp[1]}; create the topics first")
        return log

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> _Log:
        """Append a record, with the clock's time as its append time, and return its partition's log."""
        log = self._logs.get((topic, partition)) or self.log((topic, partition))
        if value is not None:
            if len(value) > RECORD_BYTES_MAX:
                raise BrokerError(
                    f"could not send a record of {len(value)} bytes to {topic}/{partition}: the limit is "
                    f"{RECORD_BYTES_MAX}"
                )
            # Copy the value, because the bytes from an encoder keep the encoder's whole buffer alive. Without the copy,
            # each record would use a page of memory.
            value = b"%b" % value
        offset = log.first + len(log.records)
        log.records.append(
            make(Record, (topic, partition, offset, self.clock.now_ms + self.clock_ahead_ms, key, value, headers))
        )
        return log

    def join(self, member: "EmbeddedMember") -> None:
        """Add a member to its group. Replacing a member with the same name causes no rebalance."""
        before = member.current()
        member.group.members[member.subscription.member] = member
        if before is not None and list(before.subscription.topics) == list(member.subscription.topics):
            member.next_assignment = before.next_assignment
        else:
            self._rebalance(member.group)

    def leave(self, member: "EmbeddedMember") -> None:
        """Remove a member from its group."""
        if member.current() is member:
            del member.group.members[member.subscription.member]
            self._rebalance(member.group)

    def expel(self, group: str, member: str) -> None:
        """Remove a member from its group, as a session timeout does. The member's next poll reports the removal."""
        self.leave(self._groups[group].members[member])

    def _rebalance(self, group: _Group) -> None:
        """Assign ranges of partition numbers to the members, which receive them at their next poll."""
        group.generation += 1
        members = [group.members[name] for name in sorted(group.members)]
        for consumer in members:
            consumer.next_assignment = frozenset()
        counts = {
            topic: self._topics[topic].partitions for topic in (members[0].subscription.topics if members else ())
        }
        for topic, count in counts.items():
            for partition in range(count):
                owner = members[partition * len(members) // max(counts.values())]
                owner.next_assignment |= {TopicPartition(topic, partition)}

    def read(self, tp: TopicPartition, offset: int, records_max: int) -> tuple[list[Record], int]:
        """Return the visible records starting at an offset, and the offset after the last record examined."""
        log = self.log(tp)
        if offset < log.first:
            raise BrokerError(f"offset {offset} of {tp} has been deleted: the first offset is {log.first}")
        stable = min(log.open.values()) if log.open else log.first + len(log.records)
        if offset >= stable:
            return [], offset
        start = offset - log.first
        stop = min(stable - log.first, start + records_max)
        records = log.records[start:stop]
        if log.aborted:
            records = [record for record in records if record.offset not in log.aborted]
        return records, log.first + stop


class EmbeddedSink:
    """See Sink."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._unsettled: dict[_Log, int] = {}  # last offset written to each partition since the last flush

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Sink."""
        log = self._broker.append(topic, partition, key, value, headers)
        self._unsettled[log] = log.first + len(log.records) - 1

    def flush(self) -> dict[TopicPartition, int]:
        """See Sink."""
        for log, offset in self._unsettled.items():
            log.check_replicated(offset)
        records = [log.at(offset) for log, offset in self._unsettled.items()]
        self._unsettled = {}
        return {TopicPartition(record.topic, record.partition): record.append_ms for record in records}

    def close(self) -> None:
        """See Sink."""


class _TransactionSink(EmbeddedSink):
    """See TransactionSink."""

    def __init__(self, broker: EmbeddedBroker, transactional_id: str) -> None:
        super().__init__(broker)
        self.failure: BrokerError | None = None
        self.is_exposed = False
        self._id = transactional_id
        self._written: dict[_Log, list[int]] = {}  # offsets written to each partition
        self._offsets: list[tuple[_Group, Mapping[TopicPartition, int]]] = []

    def fence(self) -> None:
        """Abort the producer's open transaction. Every later call raises FencedError."""
        self.failure = FencedError(f"another producer with the transactional id {self._id} has taken over")
        self.abort()

    def begin(self) -> None:
        """See TransactionSink."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """See Sink."""
        log = self._broker.append(topic, partition, key, value, headers)
        offset = self._unsettled[log] = log.first + len(log.records) - 1
        offsets = self._written.get(log)
        if offsets is None:
            log.open[self] = offset
            self._written[log] = [offset]
        else:
            offsets.append(offset)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: Member) -> None:
        """See TransactionSink."""
        assert isinstance(member, EmbeddedMember)
        member.check_membership()
        self._offsets.append((member.group, offsets))

    def commit(self) -> None:
        """See TransactionSink."""
        for group, offsets in self._offsets:
            group.committed.update(offsets)
        self._end()

    def end_late(self, commits: bool) -> None:
        """Receive a delayed request. It is rejected if a newer producer has fenced this one."""
        if self.failure is None:
            (self.commit if commits else self.abort)()

    def abort(self) -> None:
        """See TransactionSink."""
        for log, offsets in self._written.items():
            log.aborted.update(offsets)
        self._end()

    def _end(self) -> None:
        for log in self._written:
            del log.open[self]
        self._unsettled, self._written, self._offsets = {}, {}, []


class EmbeddedConsumer:
    """See Consumer."""

    def __init__(self, broker: EmbeddedBroker, tps: Sequence[TopicPartition]) -> None:
        self._broker = broker
        self._positions = broker.beginnings(tps)
        self._paused: set[TopicPartition] = set()

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return frozenset(self._positions)

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer. In virtual time, the call never waits."""
        records: list[Record] = []
        read, paused = self._broker.read, self._paused
        for tp, position in self._positions.items():
            if len(records) < records_max and tp not in paused:
                found, end = read(tp, position, records_max - len(records))
                if end != position:
                    self._positions[tp] = end
                    records += found
        return records

    def position(self, tp: TopicPartition) -> int:
        """See Consumer."""
        return self._positions[tp]

    def lag(self, tp: TopicPartition) -> int:
        """See Consumer. The result is always current."""
        return max(0, self._broker.log(tp).stable() - self._positions[tp])

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """See Consumer."""
        if tp not in self._positions:
            raise BrokerError(f"{tp} is not assigned to this consumer")
        self._positions[tp] = offset

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._paused.update(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._paused.difference_update(tps)

    def close(self) -> None:
        """See Consumer."""


class EmbeddedMember(EmbeddedConsumer):
    """See Member."""

    def __init__(self, broker: EmbeddedBroker, group: _Group, subscription: Subscription) -> None:
        super().__init__(broker, ())
        self.group = group
        self.subscription = subscription
        self.next_assignment: frozenset[TopicPartition] = frozenset()
        self._generation = 0
        self._closed = False

    def current(self) -> "EmbeddedMember | None":
        """Return the group's current member with this member's name, or None."""
        return self.group.members.get(self.subscription.member)

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer."""
        if self.current() is not self:
            if self._closed:
                raise BrokerError(f"member {self.subscription.member} has left group {self.subscription.group}")
            self.check_place()
            self._broker.join(self)
        if self._generation != self.group.generation:
            self._take_over()
        return super().poll(timeout_ms, records_max)

    def _take_over(self) -> None:
        if self._positions:
            self.subscription.listener.on_revoked(frozenset(self._positions))
        self._generation, committed = self.group.generation, self.group.committed
        beginnings = self._broker.beginnings(sorted(self.next_assignment))
        self._positions = {tp: committed.get(tp, first) for tp, first in beginnings.items()}
        self._paused.clear()
        self.subscription.listener.on_assigned(frozenset(self._positions))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See Member."""
        self.check_membership()
        self.group.committed.update(offsets)

    def check_membership(self) -> None:
        """Raise an error if this consumer is not a member of the group's current generation."""
        self.check_place()
        if self.current() is None or self._generation != self.group.generation:
            raise self.subscription.not_joined()

    def check_place(self) -> None:
        """See Member."""
        current = self.current()
        if current is not None and current is not self:
            raise self.subscription.replaced()
        if current is None and not self.subscription.rejoins:
            raise self.subscription.removed()

    def close(self) -> None:
        """See Consumer."""
        self._closed = True
        self._broker.leave(self)
