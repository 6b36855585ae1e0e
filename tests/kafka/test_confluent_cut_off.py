"""A member of confluent-kafka whose group does not know it any more: it was paused, or its broker was out of reach."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from stream.kafka.client_config import ClientConfig
from stream.kafka.confluent.connection import Connection
from stream.kafka.confluent.membership import GroupConsumer
from stream.kafka.port import BrokerUnavailableError, FencedError
from stream.wire.records import TopicPartition

CONTEXTS = TopicPartition("contexts", 0)


def _message() -> Any:
    given = {
        "topic": CONTEXTS.topic, "partition": CONTEXTS.partition, "error": None, "offset": 7, "key": b"a",
        "timestamp": (TIMESTAMP_LOG_APPEND_TIME, 5), "value": b"{}", "headers": [],
    }  # fmt: skip
    return SimpleNamespace(**{name: lambda value=value: value for name, value in given.items()})


def _member(connection: Connection, others: dict[str, frozenset[TopicPartition]]) -> GroupConsumer:
    client: Any = SimpleNamespace(
        subscribe=lambda *topics, **callbacks: None, consume=lambda count, timeout_s: [_message()]
    )
    admin: Any = SimpleNamespace(members=lambda group: others)
    listener: Any = None
    member = GroupConsumer(connection, admin, client, "learners", "learner-1", ("contexts",), listener, rejoins=False)
    member._positions = {CONTEXTS: 7}
    return member


@pytest.fixture
def connection() -> Connection:
    return Connection("127.0.0.1:1", 50, ClientConfig())


def test_member_whose_broker_was_always_in_reach_was_paused_and_is_out(connection: Connection) -> None:
    with pytest.raises(FencedError, match="learner-1 was thrown out"):
        _member(connection, {}).hear_thrown_out()


def test_member_that_was_cut_off_is_not_out_although_it_has_read_what_came_before(connection: Connection) -> None:
    member = _member(connection, {})
    connection.cut_off_s = time.monotonic()
    assert [record.offset for record in member.poll(0, 10)] == [7]

    member.hear_thrown_out()


def test_member_hears_what_a_producer_has_to_say_of_the_broker_before_it_is_out(connection: Connection) -> None:
    class Producer:
        def listen(self) -> None:
            connection._hear(KafkaError(KafkaError._ALL_BROKERS_DOWN))

        def close(self) -> None:
            raise AssertionError

    member = _member(connection, {})
    connection.opened(Producer())  # nobody listens to it while a question is put

    member.hear_thrown_out()


def test_commit_of_offsets_that_does_not_come_back_is_given_up(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = _member(connection, {})
    ended = threading.Event()
    monkeypatch.setattr(connection, "patience_s", 0.2)
    monkeypatch.setattr(member, "membership", lambda: b"")
    monkeypatch.setattr(member, "_client", SimpleNamespace(commit=lambda offsets, asynchronous: ended.wait(60)))
    with pytest.raises(BrokerUnavailableError, match=r"could not commit offsets of group learners"):
        member.commit({CONTEXTS: 8})
    ended.set()
    member.hear_thrown_out()  # nobody heard of the broker meanwhile


def test_records_of_partitions_that_were_taken_back_meanwhile_are_not_kept(connection: Connection) -> None:
    member = _member(connection, {})
    member.pause([CONTEXTS])
    member._positions = {}
    assert member._receive(0.0, 10) == []
    member._positions = {CONTEXTS: 3}
    member.resume([CONTEXTS])
    assert member._take_aside(10) == []


def test_member_that_was_cut_off_and_then_paused_is_out(connection: Connection) -> None:
    member = _member(connection, {})
    connection.cut_off_s = time.monotonic()
    member.hear_offsets_taken()

    with pytest.raises(FencedError, match="learner-1 was thrown out"):
        member.hear_thrown_out()


def test_member_that_was_cut_off_while_another_took_its_partitions_is_out(connection: Connection) -> None:
    member = _member(connection, {"learner-2": frozenset((CONTEXTS,))})
    connection.cut_off_s = time.monotonic()

    with pytest.raises(FencedError, match="learner-1 was thrown out"):
        member.hear_thrown_out()
