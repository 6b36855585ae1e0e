"""Calls to confluent-kafka that do not return, or that fail without giving a reason."""

import subprocess
import sys
import time
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from stream.kafka.confluent.connection import ConfluentConnection, bounded
from stream.kafka.confluent.membership import GroupConsumer
from stream.kafka.confluent.producers import ConfluentSink, ConfluentTransactionSink
from stream.kafka.connection import ConnectionSettings
from stream.kafka.port import BrokerUnavailableError, FencedError
from stream.kafka.producers import TransactionProducer
from stream.kafka.refusals import Subscription
from stream.wire.records import TopicPartition
from tests.limits import within


def test_bounded_call_returns_or_raises_like_the_function() -> None:
    assert bounded(lambda: 3, 10.0) == 3
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 10.0)


def test_bounded_call_times_out() -> None:
    ended = Event()
    with within(5), pytest.raises(TimeoutError):
        bounded(ended.wait, 0.05)
    ended.set()


def _producer(connection: ConfluentConnection, monkeypatch: pytest.MonkeyPatch, **methods: Any) -> TransactionProducer:
    nothing = lambda *arguments, **named: None  # noqa: E731
    client = SimpleNamespace(
        **{
            "begin_transaction": nothing, "purge": nothing, "poll": nothing, "abort_transaction": nothing,
            "flush": lambda s: 0, "init_transactions": nothing, **methods,
        }
    )  # fmt: skip
    admin: Any = None
    monkeypatch.setattr("confluent_kafka.Producer", lambda properties: client)
    return TransactionProducer(lambda: ConfluentTransactionSink(connection, admin, "learner-1"), connection.clients)


def test_cleared_fatal_error_means_fenced_only_with_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(seconds: float) -> int:
        raise SystemError("flush returned NULL without setting an exception")

    connection = ConfluentConnection(ConnectionSettings("127.0.0.1:1"))
    producer = _producer(connection, monkeypatch, flush=flush)
    producer.begin()
    with pytest.raises(FencedError):
        producer.flush()
    admin: Any = None
    with pytest.raises(BrokerUnavailableError):
        ConfluentSink(connection, admin).flush()


def test_delivery_callbacks_run_no_python_code(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks: list[Any] = []
    client = SimpleNamespace(
        produce=lambda *record, on_delivery, headers: callbacks.append(on_delivery), flush=lambda seconds: 0
    )
    monkeypatch.setattr("confluent_kafka.Producer", lambda properties: client)
    admin: Any = SimpleNamespace(partitions_of=lambda topic: 1)
    sink = ConfluentSink(ConfluentConnection(ConnectionSettings("127.0.0.1:1")), admin)
    sink.send("contexts", 0, None, None, ())
    message = SimpleNamespace(timestamp=lambda: (TIMESTAMP_LOG_APPEND_TIME, 7))
    called: list[str] = []
    sys.setprofile(lambda frame, event, argument: called.append(event))
    callbacks[0](None, message)
    sys.setprofile(None)
    assert "call" not in called
    assert sink.flush() == {TopicPartition("contexts", 0): 7}


def test_timeout_in_send_offsets_makes_the_producer_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()
    connection = ConfluentConnection(ConnectionSettings("127.0.0.1:1", request_timeout_ms=50))
    producer = _producer(connection, monkeypatch, send_offsets_to_transaction=lambda *arguments: ended.wait())
    consumer: Any = object.__new__(GroupConsumer)
    listener: Any = None
    consumer.subscription = Subscription("learners", "learner-1", (), listener, rejoins=False)
    consumer.membership = lambda: b""
    producer.begin()
    began_s = time.monotonic()
    offsets = {TopicPartition("contexts", 0): 7}
    for ask in (partial(producer.send_offsets, offsets, consumer), producer.commit, producer.begin):
        with pytest.raises(BrokerUnavailableError):
            ask()
    assert connection.cut_off_s > began_s  # the timeout counts as an outage
    producer.close()
    ended.set()


def test_call_at_the_end_of_the_interpreter_does_not_wait_for_a_thread() -> None:
    program = """
from stream.kafka.confluent.connection import bounded

def records():
    try:
        yield
    finally:
        bounded(lambda: print("closed", flush=True), 5.0)

kept = records()  # closed when the interpreter clears this module
next(kept)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "closed\n"
