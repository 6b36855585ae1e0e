"""Calls of confluent-kafka that do not return."""

import time
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from stream.kafka.confluent.connection import ConfluentConnection, bounded
from stream.kafka.confluent.membership import GroupConsumer
from stream.kafka.confluent.producers import ConfluentTransactionSink
from stream.kafka.connection import ConnectionSettings
from stream.kafka.port import BrokerUnavailableError
from stream.kafka.producers import TransactionProducer
from stream.kafka.refusals import Subscription
from stream.wire.records import TopicPartition


def test_what_a_call_gives_or_raises_is_its_caller_s() -> None:
    assert bounded(lambda: 3, 10.0) == 3
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 10.0)


def test_call_that_does_not_come_back_is_not_waited_for() -> None:
    ended = Event()
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        bounded(ended.wait, 0.05)
    assert time.monotonic() - began_s < 5.0
    ended.set()


def test_offsets_whose_sending_does_not_come_back_leave_the_outcome_unknown_and_the_producer_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = Event()
    nothing = lambda *arguments, **named: None  # noqa: E731
    client: Any = SimpleNamespace(
        begin_transaction=nothing, purge=nothing, poll=nothing, abort_transaction=nothing, flush=lambda s: 0,
        init_transactions=nothing, send_offsets_to_transaction=lambda *arguments: ended.wait(),
    )  # fmt: skip
    connection = ConfluentConnection(ConnectionSettings("127.0.0.1:1", request_timeout_ms=50))
    admin: Any = None
    monkeypatch.setattr("confluent_kafka.Producer", lambda properties: client)
    producer = TransactionProducer(connection, ConfluentTransactionSink(connection, admin, "learner-1"))
    consumer: Any = object.__new__(GroupConsumer)
    listener: Any = None
    consumer.subscription = Subscription("learners", "learner-1", (), listener, rejoins=False)
    consumer.membership = lambda: b""
    producer.begin()
    began_s = time.monotonic()
    offsets = {TopicPartition("contexts", 0): 7}
    for ask in (lambda: producer.send_offsets(offsets, consumer), producer.commit, producer.begin):
        with pytest.raises(BrokerUnavailableError, match=r"learner-1 .* is unknown: could not send the offsets"):
            ask()
    assert connection.cut_off_s > began_s  # the timeout counts as an outage
    producer.close()
    ended.set()
