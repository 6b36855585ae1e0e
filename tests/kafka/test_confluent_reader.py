"""The reader based on confluent-kafka, tested without a broker."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from stream.kafka.confluent.connection import ConfluentConnection
from stream.kafka.confluent.consumers import Reader, make_consumer
from stream.kafka.connection import ConnectionSettings

NO_BROKER = "127.0.0.1:1"


@pytest.fixture
def reader() -> Iterator[Reader]:
    connection = ConfluentConnection(ConnectionSettings(NO_BROKER, request_timeout_ms=1_000))
    admin: Any = None  # the reader uses the admin client only after it has read records
    with closing(Reader(connection, admin, make_consumer(connection, group_id="nobody"), {})) as reader:
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
