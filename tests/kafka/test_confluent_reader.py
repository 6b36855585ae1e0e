"""The reader based on confluent-kafka, tested without a broker."""

import json
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from stream.kafka.confluent.connection import ConfluentConnection
from stream.kafka.confluent.consumers import Reader
from stream.kafka.connection import ConnectionSettings
from stream.kafka.port import BrokerUnavailableError

NO_BROKER = "127.0.0.1:1"


@pytest.fixture
def reader() -> Iterator[Reader]:
    connection = ConfluentConnection(ConnectionSettings(NO_BROKER, request_timeout_ms=1_000))
    admin: Any = None  # the reader uses the admin client only after it has read records
    with closing(Reader(connection, admin, {}, group_id="nobody")) as reader:
        yield reader


def test_poll_waits_without_busy_polling(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    receive, asked = reader._receive, 0

    def asking(timeout_s: float, count: int) -> list[Any]:
        nonlocal asked
        asked += 1
        return receive(timeout_s, count)

    monkeypatch.setattr(reader, "_receive", asking)
    for _ in range(10):
        reader.poll(5, 100)
    assert asked <= 30


@pytest.mark.parametrize(
    ("brokers", "is_usable"),
    [
        ({"127.0.0.1:1/bootstrap": "configured", "GroupCoordinator": "logical"}, True),
        ({"127.0.0.1:1/1": "learned", "GroupCoordinator": "logical"}, True),
        ({"GroupCoordinator": "logical"}, False),
    ],
    ids=["before the first connection", "connected", "every broker forgotten"],
)
def test_client_that_has_forgotten_every_broker_is_replaced(
    monkeypatch: pytest.MonkeyPatch, brokers: dict[str, str], *, is_usable: bool
) -> None:
    given: dict[str, Any] = {}
    client = SimpleNamespace(assign=lambda tps: None, consume=lambda count, timeout_s: [])
    monkeypatch.setattr("confluent_kafka.Consumer", lambda properties: given.update(properties) or client)
    connection = ConfluentConnection(ConnectionSettings(NO_BROKER))
    admin: Any = None
    reader = Reader(connection, admin, {}, group_id="nobody")
    given["stats_cb"](json.dumps({"brokers": {name: {"source": source} for name, source in brokers.items()}}))
    if is_usable:
        assert reader.poll(0, 10) == []
    else:
        with pytest.raises(BrokerUnavailableError):
            reader.poll(0, 10)
    assert (connection.cut_off_s > 0) == (not is_usable)  # a group member that is removed after this is not fenced
