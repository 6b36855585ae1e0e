"""The contract of the Broker port: what every broker does, the embedded one and Kafka alike.

A broker may take a moment until something shows (a commit's marker, a rebalance). Such claims are tested by asking
until they hold, with a time limit.
"""

import time
from collections.abc import Callable, Iterable

import pytest
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from stream.brokers.embedded import EmbeddedBroker
from stream.brokers.local_kafka import LocalKafka
from stream.brokers.port import (
    RECORD_BYTES_MAX,
    Broker,
    BrokerError,
    Consumer,
    Ends,
    FencedError,
    StaleMemberError,
    TopicSettingsError,
)
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec

PATIENCE_S = 30.0


class Heard:
    """A listener that notes what it hears."""

    def __init__(self) -> None:
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        self.events.append(("revoked", tps))

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", tps))


def until(claim: Callable[[], bool]) -> None:
    """Ask until it holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline_s, "this did not come to hold in time"


def topic(broker: Broker, prefix: str, partitions: int = 1, name: str = "topic") -> str:
    broker.create_topics([TopicSpec(prefix + name, partitions)])
    return prefix + name


def write(broker: Broker, name: str, values: Iterable[str], partition: int = 0) -> int:
    producer = broker.producer()
    for value in values:
        producer.send(name, partition, b"key", value.encode())
    append_ms = producer.flush()
    producer.close()
    return append_ms


def read(consumer: Consumer, count: int, records_max: int = 100) -> list[Record]:
    """So many records; more than these is an error."""
    records: list[Record] = []

    def enough() -> bool:
        records.extend(consumer.poll(100, records_max))
        return len(records) >= count

    until(enough)
    records += consumer.poll(0, records_max)
    assert len(records) == count, [record.value for record in records]
    return records


def values(records: Iterable[Record]) -> list[str]:
    return [record.value.decode() for record in records if record.value is not None]


def read_to_end(broker: Broker, tp: TopicPartition) -> list[str]:
    """What a new reader is given from the beginning to the stable end."""
    reader = broker.reader([tp])
    end = broker.ends([tp])[tp].stable
    records: list[Record] = []

    def at_end() -> bool:
        records.extend(reader.poll(100, 100))
        return reader.position(tp) >= end

    until(at_end)
    reader.close()
    return values(records)


def settled(broker: Broker, tp: TopicPartition) -> None:
    """Wait until no transaction is open in a partition."""
    until(lambda: len(set(broker.ends([tp])[tp])) == 1)


def joined(*consumers: Consumer, partitions: int) -> list[Record]:
    """Poll the members of a group until all partitions are dealt; what was read meanwhile."""
    records: list[Record] = []

    def dealt() -> bool:
        for consumer in consumers:
            records.extend(consumer.poll(50, 100))
        assignments = [consumer.assignment() for consumer in consumers]
        return all(assignments) and sum(map(len, assignments)) == partitions

    until(dealt)
    return records


Expel = Callable[[str, str], None]


@pytest.fixture
def expel(request: pytest.FixtureRequest, broker: Broker) -> Expel:
    """Throws a member out of its group, as happens when its session has ended; not by the broker that is tested."""

    def throw_out(group: str, member: str) -> None:
        if isinstance(broker, EmbeddedBroker):
            broker.expel(group, member)
            return
        running: LocalKafka = request.getfixturevalue("kafka")
        admin = KafkaAdminClient(bootstrap_servers=running.bootstrap)
        admin.remove_group_members(group, [MemberToRemove(member_id="", group_instance_id=member, reason="expelled")])
        admin.close()

    return throw_out


# Topics


def test_topics_are_what_was_asked_for(broker: Broker, prefix: str) -> None:
    kept, compacted = prefix + "kept", prefix + "compacted"
    broker.create_topics([TopicSpec(kept, 3, retention_ms=86_400_000), TopicSpec(compacted, 1, compacted=True)])
    assert broker.describe_topics([kept, compacted, prefix + "none"]) == {
        kept: TopicDescription(kept, 3, append_time=True, compacted=False, retention_ms=86_400_000, replication=1),
        compacted: TopicDescription(compacted, 1, append_time=True, compacted=True, retention_ms=-1, replication=1),
    }


def test_creating_a_topic_again_changes_nothing(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, ["a"])
    broker.create_topics([TopicSpec(name, 1)])
    assert read_to_end(broker, TopicPartition(name, 0)) == ["a"]


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        (TopicSpec("", 2), "partitions is 1, expected 2"),
        (TopicSpec("", 1, compacted=True), "compacted is False, expected True"),
        (TopicSpec("", 1, retention_ms=5000), "retention_ms is -1, expected 5000"),
    ],
)
def test_a_topic_with_other_settings_is_refused_by_name_and_setting(
    broker: Broker, prefix: str, wrong: TopicSpec, setting: str
) -> None:
    name = topic(broker, prefix)
    spec = wrong._replace(name=name)
    with pytest.raises(TopicSettingsError, match=f"topic {name}: {setting}"):
        broker.create_topics([TopicSpec(prefix + "other", 1), spec])
    assert broker.describe_topics([prefix + "other"]) == {}


def test_a_deleted_topic_is_gone_with_its_records_and_offsets(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, ["a", "b"])
    consumer = broker.group_consumer(prefix, "m", [name], Heard())
    joined(consumer, partitions=1)
    consumer.commit({tp: 2})
    consumer.close()
    broker.delete_topics([name, prefix + "none"])
    assert broker.describe_topics([name]) == {}
    topic(broker, prefix)
    assert broker.ends([tp]) == {tp: Ends(0, 0)}
    until(lambda: broker.committed(prefix, [tp]) == {})


def test_what_does_not_exist_is_an_error(broker: Broker, prefix: str) -> None:
    tp = TopicPartition(prefix + "none", 0)
    with pytest.raises(BrokerError):
        broker.ends([tp])
    with pytest.raises(BrokerError):
        broker.reader([tp])
    with pytest.raises(BrokerError, match="create them first"):
        broker.group_consumer(prefix, "m", [tp.topic], Heard())


# Records


def test_records_come_in_the_order_of_their_offsets_with_all_they_had(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    producer = broker.producer()
    headers = (("version", b"1"), ("reason", b""))
    producer.send(name, 1, b"k", b"first", headers)
    producer.send(name, 1, None, b"second")
    producer.send(name, 1, b"tombstone", None)
    append_ms = producer.flush()
    producer.close()
    records = read(broker.reader([TopicPartition(name, 1)]), 3)
    assert [record._replace(append_ms=append_ms) for record in records] == [
        Record(name, 1, 0, append_ms, b"k", b"first", headers),
        Record(name, 1, 1, append_ms, None, b"second", ()),
        Record(name, 1, 2, append_ms, b"tombstone", None, ()),
    ]


def test_time_is_the_brokers_and_never_goes_back(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    acknowledged = [write(broker, name, [str(i)]) for i in range(5)]
    if isinstance(broker, EmbeddedBroker):
        broker.clock.advance_to(2_000)
        acknowledged.append(write(broker, name, ["5"]))
    records = read(broker.reader([TopicPartition(name, 0)]), len(acknowledged))
    assert [record.append_ms for record in records] == acknowledged == sorted(acknowledged)


def test_flush_of_nothing_is_no_time(broker: Broker, prefix: str) -> None:
    producer = broker.producer()
    assert producer.flush() == -1
    producer.close()


def test_many_records_keep_their_order(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, map(str, range(30_000)))
    records = read(broker.reader([TopicPartition(name, 0)]), 30_000, records_max=1_000)
    assert values(records) == [str(i) for i in range(30_000)]


def test_a_record_that_is_too_large_is_an_error_and_no_record(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.producer()
    producer.send(name, 0, b"key", b"x" * RECORD_BYTES_MAX)
    with pytest.raises(BrokerError, match="could not send a record of 1100000 bytes"):
        producer.send(name, 0, b"key", b"x" * 1_100_000)
    producer.flush()
    producer.close()
    assert len(read(broker.reader([TopicPartition(name, 0)]), 1)) == 1


def test_a_record_for_a_partition_that_is_not_there_is_an_error(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    producer = broker.producer()
    with pytest.raises(BrokerError):
        producer.send(name, 2, b"key", b"value")
    producer.close()


# Reading


def test_a_reader_seeks_to_any_offset(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "abcde")
    reader = broker.reader([tp])
    assert values(read(reader, 5)) == list("abcde")
    assert reader.position(tp) == 5
    reader.seek(tp, 3)
    assert reader.position(tp) == 3
    assert values(read(reader, 2)) == list("de")
    reader.seek(tp, 0)
    assert values(reader.poll(5_000, 2) + reader.poll(5_000, 1)) == list("abc")
    assert reader.position(tp) == 3


def test_a_paused_partition_waits_where_it_is(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    write(broker, name, "ab", partition=0)
    write(broker, name, "cd", partition=1)
    reader = broker.reader([first, second])
    reader.pause([first])
    assert values(read(reader, 2)) == list("cd")
    assert (reader.position(first), reader.position(second)) == (0, 2)
    reader.resume([first])
    assert values(read(reader, 2)) == list("ab")


def test_a_partition_that_was_paused_in_the_middle_is_read_on_though_another_was_read_to_its_end(
    broker: Broker, prefix: str
) -> None:
    name = topic(broker, prefix, partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    write(broker, name, "abcd", partition=0)
    reader = broker.reader([first, second])
    until(lambda: values(reader.poll(100, 2)) == list("ab"))
    reader.pause([first])
    assert reader.poll(100, 2) == []
    write(broker, name, "ef", partition=1)
    assert values(read(reader, 2)) == list("ef")
    reader.resume([first])
    assert values(read(reader, 2)) == list("cd")


def test_seeking_in_a_partition_of_somebody_else_is_an_error(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, partitions=2)
    reader = broker.reader([TopicPartition(name, 0)])
    with pytest.raises(BrokerError):
        reader.seek(TopicPartition(name, 1), 0)


def test_beginnings_and_ends_of_an_empty_partition_are_zero(broker: Broker, prefix: str) -> None:
    tp = TopicPartition(topic(broker, prefix), 0)
    assert broker.beginnings([tp]) == {tp: 0}
    assert broker.ends([tp]) == {tp: Ends(0, 0)}
    reader = broker.reader([tp])
    assert reader.poll(0, 10) == []
    assert reader.position(tp) == 0


# Transactions


def test_an_open_transaction_is_in_the_log_and_not_to_be_read(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"open")
    producer.flush()
    write(broker, name, "b")  # outside, but behind the open one
    reader = broker.reader([tp])
    assert values(read(reader, 1)) == ["a"]
    assert broker.ends([tp])[tp] == Ends(high_watermark=3, stable=1)
    producer.commit()
    assert values(read(reader, 2)) == ["open", "b"]
    settled(broker, tp)
    producer.close()


def test_an_aborted_transaction_is_never_to_be_read_and_is_passed(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"aborted")
    producer.flush()
    producer.abort()
    producer.abort()  # none is open: nothing happens
    settled(broker, tp)
    reader = broker.reader([tp])
    until(lambda: reader.poll(100, 10) == [] and reader.position(tp) == broker.ends([tp])[tp].stable)
    producer.begin()
    producer.send(name, 0, b"key", b"committed")
    producer.commit()
    assert values(read(reader, 1)) == ["committed"]
    producer.close()


def test_the_position_passes_commit_markers(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    producer = broker.transactional_producer(prefix)
    for value in (b"a", b"b"):
        producer.begin()
        producer.send(name, 0, b"key", value)
        producer.commit()
    producer.close()
    settled(broker, tp)
    reader = broker.reader([tp])
    assert values(read(reader, 2)) == ["a", "b"]
    until(lambda: reader.poll(100, 10) == [] and reader.position(tp) == broker.ends([tp])[tp].stable)


def test_a_commit_tells_the_append_time_of_its_last_record(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"a")
    producer.flush()
    if isinstance(broker, EmbeddedBroker):
        broker.clock.advance_to(5_000)
    append_ms = producer.commit()
    (record,) = read(broker.reader([TopicPartition(name, 0)]), 1)
    assert record.append_ms == append_ms
    producer.begin()
    assert producer.commit() == -1
    producer.close()


def test_a_flush_tells_the_latest_append_time_of_each_partition_written_to(broker: Broker, prefix: str) -> None:
    names = topic(broker, prefix, 2, "a"), topic(broker, prefix, 1, "b")
    tps = [TopicPartition(names[0], 0), TopicPartition(names[0], 1), TopicPartition(names[1], 0)]
    producer = broker.transactional_producer(prefix)
    producer.begin()
    assert producer.flush() == {}
    producer.send(*tps[0], b"key", b"1")
    producer.send(*tps[1], b"key", b"2")
    if isinstance(broker, EmbeddedBroker):
        broker.clock.advance_to(2_000)
    producer.send(*tps[1], b"key", b"3")
    first = producer.flush()
    if isinstance(broker, EmbeddedBroker):
        broker.clock.advance_to(3_000)
    producer.send(*tps[2], b"key", b"4")
    second = producer.flush()
    assert producer.flush() == {}
    latest_ms = producer.commit()
    reader = broker.reader(tps)
    append_ms = {(record.topic, record.partition): record.append_ms for record in read(reader, 4)}
    assert first == {tp: append_ms[tp] for tp in tps[:2]}
    assert second == {tps[2]: append_ms[tps[2]]}
    assert latest_ms == append_ms[tps[2]]
    producer.begin()
    producer.send(*tps[0], b"key", b"aborted")
    producer.abort()
    producer.begin()
    assert producer.flush() == {}
    producer.close()


def test_a_flush_of_more_records_than_are_queued_at_once_tells_of_all_partitions(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"first")
    for _ in range(21_000):  # the adapter waits for its queue on the way
        producer.send(name, 1, b"key", b"")
    assert producer.flush().keys() == {TopicPartition(name, 0), TopicPartition(name, 1)}
    producer.close()


def test_a_second_begin_is_an_error(broker: Broker, prefix: str) -> None:
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(BrokerError):
        producer.begin()
    producer.close()


def test_outside_of_a_transaction_nothing_can_be_sent_or_committed(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.transactional_producer(prefix)
    with pytest.raises(BrokerError, match="begin"):
        producer.send(name, 0, b"key", b"value")
    with pytest.raises(BrokerError, match="begin"):
        producer.commit()
    producer.close()


def test_a_transaction_of_which_a_record_was_refused_can_be_aborted_and_the_next_one_committed(
    broker: Broker, prefix: str
) -> None:
    name = topic(broker, prefix)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"a")
    with pytest.raises(BrokerError):
        producer.send(name, 0, b"key", b"x" * 1_100_000)
    producer.abort()
    producer.begin()
    producer.send(name, 0, b"key", b"b")
    producer.commit()
    producer.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == ["b"]


def test_closing_a_producer_aborts_its_open_transaction(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send(name, 0, b"key", b"open")
    producer.flush()
    producer.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == []


def test_a_second_producer_of_an_id_fences_the_first_and_aborts_what_it_had_open(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    zombie = broker.transactional_producer(prefix)
    zombie.begin()
    zombie.send(name, 0, b"key", b"zombie")
    zombie.flush()
    successor = broker.transactional_producer(prefix)
    successor.begin()
    successor.send(name, 0, b"key", b"successor")
    with pytest.raises(FencedError):
        zombie.commit()
    successor.commit()  # the zombie's attempt has not fenced it in its turn
    with pytest.raises(FencedError):
        zombie.abort()
    zombie.close()
    successor.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == ["successor"]


def test_a_fenced_producer_cannot_write_any_more(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    zombie = broker.transactional_producer(prefix)
    zombie.begin()
    zombie.send(name, 0, b"key", b"zombie")
    zombie.flush()
    successor = broker.transactional_producer(prefix)

    def write_on() -> None:
        zombie.send(name, 0, b"key", b"more")
        zombie.flush()

    with pytest.raises(FencedError):
        write_on()
    successor.begin()
    successor.send(name, 0, b"key", b"successor")
    successor.commit()
    zombie.close()
    successor.close()
    settled(broker, TopicPartition(name, 0))
    assert read_to_end(broker, TopicPartition(name, 0)) == ["successor"]


# Groups


def test_offsets_are_committed_with_the_transaction_alone(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "ab")
    consumer = broker.group_consumer(prefix, "m", [name], Heard())
    read(consumer, 2)
    producer = broker.transactional_producer(prefix)
    producer.begin()
    producer.send_offsets({tp: 1}, consumer)
    producer.abort()
    assert broker.committed(prefix, [tp]) == {}
    producer.begin()
    producer.send_offsets({tp: 2}, consumer)
    producer.commit()
    assert broker.committed(prefix, [tp]) == {tp: 2}
    producer.close()
    consumer.close()


def test_offsets_can_be_committed_without_a_transaction(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "ab")
    consumer = broker.group_consumer(prefix, "m", [name], Heard())
    read(consumer, 2)
    consumer.commit({tp: 1})
    assert broker.committed(prefix, [tp]) == {tp: 1}
    consumer.close()
    with pytest.raises(BrokerError, match="no group"):
        broker.reader([tp]).commit({tp: 1})


def test_a_restarted_member_goes_on_at_the_committed_offset(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, "abc")
    consumer = broker.group_consumer(prefix, "m", [name], Heard())
    assert values(read(consumer, 3)) == list("abc")
    consumer.commit({TopicPartition(name, 0): 1})
    consumer.close()
    again = broker.group_consumer(prefix, "m", [name], Heard())
    assert values(read(again, 2)) == list("bc")
    again.close()


def test_equal_partition_numbers_go_to_the_same_member_and_every_record_to_one(broker: Broker, prefix: str) -> None:
    left, right = topic(broker, prefix, 4, "left"), topic(broker, prefix, 4, "right")
    for name in (left, right):
        for partition in range(4):
            write(broker, name, [f"{name}/{partition}"], partition)
    members = [broker.group_consumer(prefix, member, [left, right], Heard()) for member in ("m0", "m1")]
    joined(*members, partitions=8)
    assert [{tp.partition for tp in member.assignment()} for member in members] == [{0, 1}, {2, 3}]
    assert all({tp.topic for tp in member.assignment()} == {left, right} for member in members)
    for member in members:
        for tp in member.assignment():
            member.seek(tp, 0)
    read_by = [sorted(values(read(member, 4))) for member in members]
    assert read_by == [sorted(f"{name}/{p}" for name in (left, right) for p in part) for part in ((0, 1), (2, 3))]
    for member in members:
        member.close()


def test_members_of_a_group_are_told_with_what_they_hold(broker: Broker, prefix: str) -> None:
    left, right = topic(broker, prefix, 2, "left"), topic(broker, prefix, 2, "right")
    assert broker.members(prefix) == {}
    members = [broker.group_consumer(prefix, member, [left, right], Heard()) for member in ("m0", "m1", "m2")]

    def dealt() -> bool:
        for member in members:
            member.poll(50, 100)
        holds = {f"m{number}": member.assignment() for number, member in enumerate(members)}
        return sorted(map(len, holds.values())) == [0, 2, 2] and broker.members(prefix) == holds

    until(dealt)
    for member in members:
        member.close()
    until(lambda: broker.members(prefix) == {})


def test_topics_with_unequal_partitions_are_refused_to_a_group(broker: Broker, prefix: str) -> None:
    left, right = topic(broker, prefix, 2, "left"), topic(broker, prefix, 3, "right")
    with pytest.raises(BrokerError, match="equal numbers of partitions"):
        broker.group_consumer(prefix, "m", [left, right], Heard())


def test_a_member_hears_what_is_revoked_before_what_is_assigned(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    heard, heard_by_other = Heard(), Heard()
    first = broker.group_consumer(prefix, "m0", [name], heard)
    joined(first, partitions=2)
    second = broker.group_consumer(prefix, "m1", [name], heard_by_other)
    joined(first, second, partitions=2)
    assert heard.events == [
        ("assigned", frozenset({zero, one})),
        ("revoked", frozenset({zero, one})),
        ("assigned", frozenset({zero})),
    ]
    assert heard_by_other.events == [("assigned", frozenset({one}))]
    second.close()
    joined(first, partitions=2)
    first.close()
    assert heard.events[3:] == [("revoked", frozenset({zero})), ("assigned", frozenset({zero, one}))]
    assert heard_by_other.events[1:] == []


def test_members_that_poll_seldom_and_shortly_join_all_the_same(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    heard = Heard(), Heard()
    members = [broker.group_consumer(prefix, f"m{number}", [name], heard[number]) for number in range(2)]

    def dealt() -> bool:
        for member in members:
            member.poll(3, 100)
            time.sleep(0.2)  # long enough for a join to be done between two polls
        return all(len(member.assignment()) == 1 for member in members)

    until(dealt)
    assert [kind for one in heard for kind, _ in one.events].count("assigned") <= 3  # the first one's, then both anew
    for member in members:
        member.close()


def test_after_a_rebalance_reading_starts_at_the_committed_offset_again(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    write(broker, name, "abc", partition=0)
    first = broker.group_consumer(prefix, "m0", [name], Heard())
    read(first, 3)
    first.commit({TopicPartition(name, 0): 1})
    second = broker.group_consumer(prefix, "m1", [name], Heard())
    records = joined(first, second, partitions=2)
    if len(records) < 2:
        records += read(first, 2 - len(records))
    assert values(records) == ["b", "c"]
    first.close()
    second.close()


def test_a_listener_may_seek_where_reading_is_to_start(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, "abc")

    class Seeks(Heard):
        def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
            assert {tp: consumer.position(tp) for tp in tps} == dict.fromkeys(tps, 0)
            for tp in tps:
                consumer.seek(tp, 2)

    consumer = broker.group_consumer(prefix, "m", [name], Seeks())
    assert values(read(consumer, 1)) == ["c"]
    consumer.close()


def test_what_is_about_to_be_revoked_is_still_there(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "abc")
    seen: list[tuple[frozenset[TopicPartition], int]] = []

    class Looks(Heard):
        def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
            seen.append((first.assignment(), first.position(tp)))

    first = broker.group_consumer(prefix, "m1", [name], Looks())
    read(first, 3)
    second = broker.group_consumer(prefix, "m0", [name], Heard())
    until(lambda: bool(first.poll(50, 100) or second.poll(50, 100)))
    assert seen == [(frozenset({tp}), 3)]
    assert first.assignment() == frozenset()
    first.close()
    second.close()


def test_what_a_listener_raises_comes_out_of_poll(broker: Broker, prefix: str) -> None:
    class Fails(Heard):
        def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
            raise LookupError("no state for these")

    consumer = broker.group_consumer(prefix, "m", [topic(broker, prefix)], Fails())
    with pytest.raises(LookupError, match="no state"):
        joined(consumer, partitions=2)
    consumer.close()


def test_a_paused_partition_of_a_group_stays_paused_until_it_is_resumed(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    write(broker, name, "a", partition=0)
    write(broker, name, "b", partition=1)

    class Pauses(Heard):
        def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
            consumer.pause([TopicPartition(name, 0)])

    consumer = broker.group_consumer(prefix, "m", [name], Pauses())
    assert values(read(consumer, 1)) == ["b"]
    consumer.resume([TopicPartition(name, 0)])
    assert values(read(consumer, 1)) == ["a"]
    consumer.close()


def test_a_restarted_member_takes_its_place_at_once_and_fences_the_one_before(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    zombie = broker.group_consumer(prefix, "m", [name], Heard())
    read(zombie, 1)
    started_s = time.monotonic()
    successor = broker.group_consumer(prefix, "m", [name], Heard())
    assert values(read(successor, 1)) == ["a"]
    assert time.monotonic() - started_s < 5  # not a session time-out later
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(FencedError):
        producer.send_offsets({tp: 1}, zombie)
    producer.abort()
    with pytest.raises(FencedError):
        zombie.commit({tp: 1})
    with pytest.raises(FencedError):
        until(lambda: bool(zombie.poll(100, 10)))
    zombie.close()
    producer.begin()
    producer.send_offsets({tp: 1}, successor)  # the zombie's end has not thrown it out
    producer.commit()
    assert broker.committed(prefix, [tp]) == {tp: 1}
    producer.close()
    successor.close()


def test_a_replaced_member_leaves_the_others_undisturbed(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    heard = Heard()
    first = broker.group_consumer(prefix, "m0", [name], Heard())
    second = broker.group_consumer(prefix, "m1", [name], heard)
    joined(first, second, partitions=2)
    before = list(heard.events)
    successor = broker.group_consumer(prefix, "m0", [name], Heard())
    joined(successor, second, partitions=2)
    assert heard.events == before
    for consumer in (first, successor, second):
        consumer.close()


def test_offsets_of_a_member_that_was_thrown_out_are_refused(broker: Broker, prefix: str, expel: Expel) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    heard = Heard()
    consumer = broker.group_consumer(prefix, "m0", [name], heard)
    read(consumer, 1)
    expel(prefix, "m0")
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(StaleMemberError):
        producer.send_offsets({tp: 1}, consumer)
    producer.abort()
    with pytest.raises(StaleMemberError):
        consumer.commit({tp: 1})
    assert broker.committed(prefix, [tp]) == {}
    until(lambda: bool(consumer.poll(100, 10)))  # it joins again, and reads from the committed offset
    assert [event for event, _ in heard.events] == ["assigned", "revoked", "assigned"]
    producer.begin()
    producer.send_offsets({tp: 1}, consumer)
    producer.commit()
    assert broker.committed(prefix, [tp]) == {tp: 1}
    producer.close()
    consumer.close()


def test_a_member_that_was_thrown_out_and_is_not_to_join_again_is_fenced(
    broker: Broker, prefix: str, expel: Expel
) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    consumer = broker.group_consumer(prefix, "m0", [name], Heard(), rejoins=False)
    read(consumer, 1)
    consumer.check_place()
    expel(prefix, "m0")
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(FencedError, match="was thrown out"):
        producer.send_offsets({tp: 1}, consumer)
    producer.abort()
    for refused in (lambda: consumer.poll(100, 10), lambda: consumer.commit({tp: 1}), consumer.check_place):
        with pytest.raises(FencedError, match="was thrown out"):
            refused()
    assert broker.committed(prefix, [tp]) == {}
    successor = broker.group_consumer(prefix, "m0", [name], Heard(), rejoins=False)
    assert values(read(successor, 1)) == ["a"]
    consumer.close()
    producer.begin()
    producer.send_offsets({tp: 1}, successor)  # the end of the one that was thrown out has not taken its place
    producer.commit()
    assert broker.committed(prefix, [tp]) == {tp: 1}
    producer.close()
    successor.close()


@pytest.mark.parametrize("rejoins", [True, False])
def test_a_member_hears_that_it_was_thrown_out_without_being_told_by_a_commit(
    broker: Broker, prefix: str, expel: Expel, *, rejoins: bool
) -> None:
    name = topic(broker, prefix, 2)
    heard = Heard()
    first = broker.group_consumer(prefix, "m0", [name], heard, rejoins=rejoins)
    second = broker.group_consumer(prefix, "m1", [name], Heard(), rejoins=False)
    joined(first, second, partitions=2)
    expel(prefix, "m0")
    if rejoins:
        first.check_place()
        joined(first, second, partitions=2)
        assert [event for event, _ in heard.events][-2:] == ["revoked", "assigned"]
    else:
        with pytest.raises(FencedError, match="was thrown out"):
            until(lambda: bool(first.poll(100, 10) or second.poll(100, 10)))
        joined(second, partitions=2)  # an ordinary rebalance does not fence those that stay
    first.close()
    second.close()


def test_a_replaced_member_that_does_not_poll_hears_of_it_when_it_asks(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, "a")
    zombie = broker.group_consumer(prefix, "m", [name], Heard(), rejoins=False)
    read(zombie, 1)
    successor = broker.group_consumer(prefix, "m", [name], Heard(), rejoins=False)
    read(successor, 1)
    with pytest.raises(FencedError, match="was replaced"):
        zombie.check_place()
    zombie.close()
    successor.close()


def test_offsets_of_a_member_that_has_not_joined_yet_are_refused(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    consumer = broker.group_consumer(prefix, "m", [name], Heard())
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(StaleMemberError):
        producer.send_offsets({TopicPartition(name, 0): 1}, consumer)
    producer.close()
    consumer.close()


def test_a_partition_of_a_member_that_leaves_goes_to_the_others_at_once(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    first = broker.group_consumer(prefix, "m0", [name], Heard())
    second = broker.group_consumer(prefix, "m1", [name], Heard())
    joined(first, second, partitions=2)
    started_s = time.monotonic()
    first.close()
    joined(second, partitions=2)
    assert time.monotonic() - started_s < 8  # the session would have lasted 10 s
    second.close()
