"""Contract tests for consumer groups, rebalances and membership, run on every implementation of Broker."""

import time
from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker, BrokerError, FencedError, StaleMemberError
from stream.wire.records import TopicPartition
from tests.contract.records import RebalanceLog, joined, read, topic, until, values, write
from tests.limits import within

Expel = Callable[[str, str], None]


@pytest.fixture
def expel(request: pytest.FixtureRequest, broker: Broker) -> Expel:
    """Return a function that removes a member from its group, as a session timeout does."""

    def remove_member(group: str, member: str) -> None:
        if isinstance(broker, EmbeddedBroker):
            broker.expel(group, member)
            return
        running: LocalKafka = request.getfixturevalue("kafka")
        admin = KafkaAdminClient(bootstrap_servers=running.bootstrap)
        admin.remove_group_members(group, [MemberToRemove(member_id="", group_instance_id=member, reason="expelled")])
        admin.close()

    return remove_member


def test_offsets_are_committed_only_with_the_transaction(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "ab")
    consumer = broker.group_consumer(prefix, "m", [name], RebalanceLog())
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


def test_restarted_member_continues_at_the_committed_offset(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, "abc")
    consumer = broker.group_consumer(prefix, "m", [name], RebalanceLog())
    assert values(read(consumer, 3)) == list("abc")
    consumer.commit({TopicPartition(name, 0): 1})
    assert broker.committed(prefix, [TopicPartition(name, 0)]) == {TopicPartition(name, 0): 1}
    consumer.close()
    again = broker.group_consumer(prefix, "m", [name], RebalanceLog())
    assert values(read(again, 2)) == list("bc")
    again.close()


def test_equal_partition_numbers_are_assigned_to_the_same_member(broker: Broker, prefix: str) -> None:
    left, right = topic(broker, prefix, 4, "left"), topic(broker, prefix, 4, "right")
    for name in (left, right):
        for partition in range(4):
            write(broker, name, [f"{name}/{partition}"], partition)
    members = [broker.group_consumer(prefix, member, [left, right], RebalanceLog()) for member in ("m0", "m1")]
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


def test_members_of_a_group_are_listed_with_their_partitions(broker: Broker, prefix: str) -> None:
    left, right = topic(broker, prefix, 2, "left"), topic(broker, prefix, 2, "right")
    assert broker.members(prefix) == {}
    members = [broker.group_consumer(prefix, member, [left, right], RebalanceLog()) for member in ("m0", "m1", "m2")]

    def is_assigned() -> bool:
        for member in members:
            member.poll(50, 100)
        holds = {f"m{number}": member.assignment() for number, member in enumerate(members)}
        return sorted(map(len, holds.values())) == [0, 2, 2] and broker.members(prefix) == holds

    until(is_assigned)
    for member in members:
        member.close()
    until(lambda: broker.members(prefix) == {})


def test_group_rejects_topics_with_unequal_partition_counts(broker: Broker, prefix: str) -> None:
    left, right = topic(broker, prefix, 2, "left"), topic(broker, prefix, 3, "right")
    with pytest.raises(BrokerError):
        broker.group_consumer(prefix, "m", [left, right], RebalanceLog())


def test_member_receives_revocations_before_assignments(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    rebalances, heard_by_other = RebalanceLog(), RebalanceLog()
    first = broker.group_consumer(prefix, "m0", [name], rebalances)
    joined(first, partitions=2)
    second = broker.group_consumer(prefix, "m1", [name], heard_by_other)
    joined(first, second, partitions=2)
    assert rebalances.events == [
        ("assigned", frozenset({zero, one})),
        ("revoked", frozenset({zero, one})),
        ("assigned", frozenset({zero})),
    ]
    assert heard_by_other.events == [("assigned", frozenset({one}))]
    second.close()
    joined(first, partitions=2)
    first.close()
    assert rebalances.events[3:] == [("revoked", frozenset({zero})), ("assigned", frozenset({zero, one}))]
    assert heard_by_other.events[1:] == []


def test_members_that_poll_rarely_and_briefly_join_the_group(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    rebalances = RebalanceLog(), RebalanceLog()
    members = [broker.group_consumer(prefix, f"m{number}", [name], rebalances[number]) for number in range(2)]

    def is_assigned() -> bool:
        for member in members:
            member.poll(3, 100)
            time.sleep(0.2)  # long enough for a join to complete between two polls
        return all(len(member.assignment()) == 1 for member in members)

    until(is_assigned)
    # The first member gets one assignment before the other joins. After the join, each member gets one more.
    assert [kind for one in rebalances for kind, _ in one.events].count("assigned") <= 3
    for member in members:
        member.close()


def test_reading_restarts_at_the_committed_offset_after_a_rebalance(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    write(broker, name, "abc", partition=0)
    first = broker.group_consumer(prefix, "m0", [name], RebalanceLog())
    read(first, 3)
    first.commit({TopicPartition(name, 0): 1})
    second = broker.group_consumer(prefix, "m1", [name], RebalanceLog())
    records = joined(first, second, partitions=2)
    if len(records) < 2:
        records += read(first, 2 - len(records))
    assert values(records) == ["b", "c"]
    first.close()
    second.close()


def test_listener_can_seek_on_assignment(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, "abc")

    class SeekingListener(RebalanceLog):
        def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
            assert {tp: consumer.position(tp) for tp in tps} == dict.fromkeys(tps, 0)
            for tp in tps:
                consumer.seek(tp, 2)

    consumer = broker.group_consumer(prefix, "m", [name], SeekingListener())
    assert values(read(consumer, 1)) == ["c"]
    consumer.close()


def test_assignment_and_position_are_still_available_in_on_revoked(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "abc")
    seen: list[tuple[frozenset[TopicPartition], int]] = []

    class PositionLog(RebalanceLog):
        def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
            seen.append((first.assignment(), first.position(tp)))

    first = broker.group_consumer(prefix, "m1", [name], PositionLog())
    read(first, 3)
    second = broker.group_consumer(prefix, "m0", [name], RebalanceLog())
    until(lambda: bool(first.poll(50, 100) or second.poll(50, 100)))
    assert seen == [(frozenset({tp}), 3)]
    assert first.assignment() == frozenset()
    first.close()
    second.close()


def test_poll_raises_errors_of_the_listener(broker: Broker, prefix: str) -> None:
    class FailingListener(RebalanceLog):
        def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
            raise LookupError("no state for these")

    consumer = broker.group_consumer(prefix, "m", [topic(broker, prefix)], FailingListener())
    with pytest.raises(LookupError):
        joined(consumer, partitions=2)
    consumer.close()


def test_paused_partition_of_a_group_stays_paused_until_resumed(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    write(broker, name, "a", partition=0)
    write(broker, name, "b", partition=1)

    class PausingListener(RebalanceLog):
        def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
            consumer.pause([TopicPartition(name, 0)])

    consumer = broker.group_consumer(prefix, "m", [name], PausingListener())
    assert values(read(consumer, 1)) == ["b"]
    consumer.resume([TopicPartition(name, 0)])
    assert values(read(consumer, 1)) == ["a"]
    consumer.close()


def test_restarted_member_fences_its_predecessor_immediately(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    zombie = broker.group_consumer(prefix, "m", [name], RebalanceLog())
    read(zombie, 1)
    with within(5):  # the successor does not wait for the session timeout
        successor = broker.group_consumer(prefix, "m", [name], RebalanceLog())
        assert values(read(successor, 1)) == ["a"]
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
    producer.send_offsets({tp: 1}, successor)  # closing the zombie did not remove its successor
    producer.commit()
    assert broker.committed(prefix, [tp]) == {tp: 1}
    producer.close()
    successor.close()


def test_replacing_a_member_does_not_rebalance_the_others(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    rebalances = RebalanceLog()
    first = broker.group_consumer(prefix, "m0", [name], RebalanceLog())
    second = broker.group_consumer(prefix, "m1", [name], rebalances)
    joined(first, second, partitions=2)
    before = list(rebalances.events)
    successor = broker.group_consumer(prefix, "m0", [name], RebalanceLog())
    joined(successor, second, partitions=2)
    assert rebalances.events == before
    for consumer in (first, successor, second):
        consumer.close()


def test_offsets_of_a_removed_member_are_rejected(broker: Broker, prefix: str, expel: Expel) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    rebalances = RebalanceLog()
    consumer = broker.group_consumer(prefix, "m0", [name], rebalances)
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
    until(lambda: bool(consumer.poll(100, 10)))  # the member rejoins and reads from the committed offset
    assert [event for event, _ in rebalances.events] == ["assigned", "revoked", "assigned"]
    producer.begin()
    producer.send_offsets({tp: 1}, consumer)
    producer.commit()
    assert broker.committed(prefix, [tp]) == {tp: 1}
    producer.close()
    consumer.close()


def test_removed_member_that_must_not_rejoin_is_fenced(broker: Broker, prefix: str, expel: Expel) -> None:
    name = topic(broker, prefix)
    tp = TopicPartition(name, 0)
    write(broker, name, "a")
    consumer = broker.group_consumer(prefix, "m0", [name], RebalanceLog(), rejoins=False)
    read(consumer, 1)
    consumer.check_place()
    expel(prefix, "m0")
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(FencedError):
        producer.send_offsets({tp: 1}, consumer)
    producer.abort()
    for raised in (lambda: consumer.poll(100, 10), lambda: consumer.commit({tp: 1}), consumer.check_place):
        with pytest.raises(FencedError):
            raised()
    assert broker.committed(prefix, [tp]) == {}
    successor = broker.group_consumer(prefix, "m0", [name], RebalanceLog(), rejoins=False)
    assert values(read(successor, 1)) == ["a"]
    consumer.close()
    producer.begin()
    producer.send_offsets({tp: 1}, successor)  # closing the removed member did not remove its successor
    producer.commit()
    assert broker.committed(prefix, [tp]) == {tp: 1}
    producer.close()
    successor.close()


@pytest.mark.parametrize("rejoins", [True, False])
def test_member_detects_its_removal_without_a_commit(
    broker: Broker, prefix: str, expel: Expel, *, rejoins: bool
) -> None:
    name = topic(broker, prefix, 2)
    rebalances = RebalanceLog()
    first = broker.group_consumer(prefix, "m0", [name], rebalances, rejoins=rejoins)
    second = broker.group_consumer(prefix, "m1", [name], RebalanceLog(), rejoins=False)
    joined(first, second, partitions=2)
    expel(prefix, "m0")
    if rejoins:
        first.check_place()
        joined(first, second, partitions=2)
        assert [event for event, _ in rebalances.events][-2:] == ["revoked", "assigned"]
    else:
        with pytest.raises(FencedError):
            until(lambda: bool(first.poll(100, 10) or second.poll(100, 10)))
        joined(second, partitions=2)  # an ordinary rebalance does not fence the remaining members
    first.close()
    second.close()


def test_check_place_detects_replacement_without_a_poll(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    write(broker, name, "a")
    zombie = broker.group_consumer(prefix, "m", [name], RebalanceLog(), rejoins=False)
    read(zombie, 1)
    successor = broker.group_consumer(prefix, "m", [name], RebalanceLog(), rejoins=False)
    read(successor, 1)
    with pytest.raises(FencedError):
        zombie.check_place()
    zombie.close()
    successor.close()


def test_offsets_of_a_member_that_has_not_joined_are_rejected(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    consumer = broker.group_consumer(prefix, "m", [name], RebalanceLog())
    producer = broker.transactional_producer(prefix)
    producer.begin()
    with pytest.raises(StaleMemberError):
        producer.send_offsets({TopicPartition(name, 0): 1}, consumer)
    producer.close()
    consumer.close()


def test_partition_of_a_closed_member_is_reassigned_immediately(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix, 2)
    first = broker.group_consumer(prefix, "m0", [name], RebalanceLog())
    second = broker.group_consumer(prefix, "m1", [name], RebalanceLog())
    joined(first, second, partitions=2)
    with within(8):  # `second` does not wait for the session timeout of 10 s
        first.close()
        joined(second, partitions=2)
    second.close()


@pytest.mark.timeout(60)
def test_member_can_be_closed_at_any_time_during_its_join(broker: Broker, prefix: str) -> None:
    name = topic(broker, prefix)
    for hundredths in range(12):
        consumer = broker.group_consumer(prefix, "m", [name], RebalanceLog())
        time.sleep(hundredths / 100)
        consumer.close()
