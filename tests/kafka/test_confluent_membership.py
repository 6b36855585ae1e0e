"""A confluent-kafka member that its group no longer recognises after a pause or a broker outage."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from stream.kafka.confluent.connection import ConfluentConnection
from stream.kafka.confluent.membership import _METADATA_TAG, GroupConsumer
from stream.kafka.connection import ConnectionSettings
from stream.kafka.port import BrokerUnavailableError, FencedError
from stream.kafka.refusals import Subscription
from stream.wire.records import TopicPartition

CONTEXTS = TopicPartition("contexts", 0)
METADATA = _METADATA_TAG + bytes(4)


def _message() -> Any:
    given = {
        "topic": CONTEXTS.topic, "partition": CONTEXTS.partition, "error": None, "offset": 7, "key": b"a",
        "timestamp": (TIMESTAMP_LOG_APPEND_TIME, 5), "value": b"{}", "headers": [],
    }  # fmt: skip
    return SimpleNamespace(**{name: lambda value=value: value for name, value in given.items()})


def _client(**calls: Any) -> Any:
    """Return a client whose group responds with the given calls, and that receives a record in each poll."""
    calls = {"memberid": lambda: "new", "consumer_group_metadata": lambda: METADATA, **calls}
    return SimpleNamespace(
        **{"subscribe": lambda *topics, **callbacks: None, "consume": lambda count, timeout_s: [_message()], **calls}
    )


def _member(
    connection: ConfluentConnection,
    others: dict[str, frozenset[TopicPartition]],
    client: Any = None,
    listener: Any = None,
) -> GroupConsumer:
    client = client or _client()
    admin: Any = SimpleNamespace(
        members=lambda group: others,
        member_ids=lambda group: {},
        beginnings=lambda tps: dict.fromkeys(tps, 0),
        committed=lambda group, tps: dict.fromkeys(tps, 7),
        leave=lambda subscription, member_id: None,
    )
    subscription = Subscription("learners", "learner-1", ("contexts",), listener, rejoins=False)
    with patch("confluent_kafka.Consumer", lambda properties: client):
        member = GroupConsumer(connection, admin, subscription)
    member._positions = {CONTEXTS: 7}
    return member


@pytest.fixture
def connection() -> ConfluentConnection:
    return ConfluentConnection(ConnectionSettings("127.0.0.1:1", request_timeout_ms=50))


@pytest.mark.parametrize(
    ("others", "since_outage"),
    [
        ({}, None),
        ({}, GroupConsumer.on_offsets_accepted),
        ({"learner-2": frozenset((CONTEXTS,))}, lambda member: None),
    ],
    ids=["no outage", "commit after the outage", "partitions reassigned"],
)
def test_unknown_member_is_fenced_if_an_outage_does_not_explain_it(
    connection: ConfluentConnection,
    others: dict[str, frozenset[TopicPartition]],
    since_outage: Callable[[GroupConsumer], None] | None,
) -> None:
    member = _member(connection, others)
    if since_outage is not None:
        connection.cut_off_s = time.monotonic()
        since_outage(member)
    with pytest.raises(FencedError):
        member.on_unknown_member()


def test_unknown_member_after_an_outage_is_not_fenced(connection: ConfluentConnection) -> None:
    member = _member(connection, {})
    connection.cut_off_s = time.monotonic()
    assert [record.offset for record in member.poll(0, 10)] == [7]

    member.on_unknown_member()


def test_member_checks_producer_errors_before_it_is_fenced(connection: ConfluentConnection) -> None:
    def poll(timeout_s: float) -> None:
        connection._on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    member = _member(connection, {})
    # Polling the producer reports the outage. Requests by the member do not poll the producer.
    connection.producers.append(SimpleNamespace(poll=poll))

    member.on_unknown_member()


def test_member_checks_its_own_errors_before_it_is_fenced(connection: ConfluentConnection) -> None:
    def consume(count: int, timeout_s: float) -> list[Any]:
        connection._on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        return [_message()]

    client = _client(consume=consume)
    member = _member(connection, {}, client)
    member._member_id = "old"

    member.check_place()  # the broker was unreachable during a step, in which the consumer is not polled
    client.consume = lambda count, timeout_s: []
    assert [record.offset for record in member.poll(0, 10)] == [7]


def test_error_reported_between_polls_is_raised_by_the_next_poll(connection: ConfluentConnection) -> None:
    fatal = KafkaError(KafkaError._FATAL, "fenced", True)
    event = SimpleNamespace(topic=lambda: None, partition=lambda: None, error=lambda: fatal)
    client = _client(consume=lambda count, timeout_s: [event])
    member = _member(connection, {}, client)
    member._member_id, member._positions = "old", {}
    connection.cut_off_s = time.monotonic()
    member.check_place()
    client.consume = lambda count, timeout_s: []
    with pytest.raises(BrokerUnavailableError):
        member.poll(0, 10)


def test_offset_commit_without_a_response_times_out(
    connection: ConfluentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    member = _member(connection, {}, _client(commit=lambda offsets, asynchronous: ended.wait(60)))
    connection.patience_s = 0.2
    monkeypatch.setattr(member, "membership", lambda: b"")
    with pytest.raises(BrokerUnavailableError):
        member.commit({CONTEXTS: 8})
    ended.set()
    member.on_unknown_member()  # does not fence the member, because the broker has not responded


def test_buffered_records_of_revoked_partitions_are_discarded(connection: ConfluentConnection) -> None:
    member = _member(connection, {})
    member.pause([CONTEXTS])
    member._positions = {}
    assert member._receive(0.0, 10) == []
    member._positions = {CONTEXTS: 3}
    member.resume([CONTEXTS])
    assert member._take_aside(10) == []


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_member_that_the_client_rejoined_is_fenced_unless_the_broker_was_down(
    connection: ConfluentConnection, *, is_cut_off: bool
) -> None:
    assigned: list[frozenset[TopicPartition]] = []
    listener = SimpleNamespace(on_assigned=assigned.append)
    member = _member(connection, {"learner-1": frozenset((CONTEXTS,))}, listener=listener)
    member._member_id = "old"
    if is_cut_off:
        connection.cut_off_s = time.monotonic()
        member._take_over(frozenset((CONTEXTS,)))
        assert assigned == [{CONTEXTS}]
    else:
        with pytest.raises(FencedError):
            member._take_over(frozenset((CONTEXTS,)))
        assert assigned == []


@pytest.mark.parametrize("callback", ["on_assign", "on_revoke"])
@pytest.mark.parametrize("has_partitions", [False, True])
def test_callback_returns_to_a_closing_client_only_if_the_client_waits_for_it(
    connection: ConfluentConnection, monkeypatch: pytest.MonkeyPatch, callback: str, *, has_partitions: bool
) -> None:
    returned: list[str] = []
    callbacks: dict[str, Any] = {}

    def close() -> None:
        callbacks[callback](client, [])
        returned.append(callback)

    client = _client(
        subscribe=lambda topics, **given: callbacks.update(given), unsubscribe=lambda: None, unassign=lambda: None,
        consume=lambda count, timeout_s: [], close=close,
    )  # fmt: skip
    member = _member(connection, {}, client)
    member._positions = {CONTEXTS: 7} if has_partitions else {}
    monkeypatch.setattr("stream.kafka.confluent.consumers._CLOSED_WITHIN_S", 0.2)
    member.close()
    assert returned == ([callback] if has_partitions else [])
