"""The monitor's read position. Records that Faust fetches during a table recovery must not change the position."""

import asyncio
from collections.abc import AsyncIterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP

from consumers.monitor.dashboard import Dashboard
from consumers.monitor.program import MonitorProgram, _batch, _CommittedThread, _PlacedConsumer
from stream.wire.records import Record
from tests.monitoring.test_state import prediction
from tests.pipeline import TOPICS

READ, CHANGELOG = TP(TOPICS.predictions, 0), TP("changelog", 0)


def fetched(record: Record, offset: int) -> Any:
    """Convert a record to aiokafka's record class."""
    return ConsumerRecord(
        record.topic,
        record.partition,
        offset,
        record.append_ms,
        1,
        record.key,
        record.value,
        None,
        0,
        0,
        record.headers,
    )


def consumer_of(dashboard: Dashboard) -> Any:
    """A consumer of predictions that has not fetched anything yet."""
    consumer: Any = object.__new__(_PlacedConsumer)
    consumer.transport = SimpleNamespace(in_batches=frozenset({TOPICS.predictions}), dashboard=dashboard)
    return consumer


def test_consumer_seeks_to_the_stored_offsets_but_not_in_the_changelog() -> None:
    dashboard = Dashboard(TOPICS, 1, lambda: 0)
    placed: list[Any] = []

    async def place(offsets: Any) -> None:
        placed.append(offsets)

    consumer = consumer_of(dashboard)
    consumer._thread = SimpleNamespace(place=place, assignment=lambda: {READ, CHANGELOG})
    assert asyncio.run(consumer.seek_to_committed()) == {READ: 0, CHANGELOG: None}
    dashboard.take([prediction(6)])
    assert asyncio.run(consumer.seek_to_committed()) == {READ: 7, CHANGELOG: None}
    assert placed == [{READ: 0}, {READ: 7}]


def test_records_fetched_before_the_seek_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[TP]] = []

    async def fetch(self: Any, consumer: Any, partitions: set[TP], *arguments: Any) -> Any:
        asked.append(partitions)
        return {tp: [fetched(prediction(offset), offset) for offset in (3, 4)] for tp in partitions}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    thread: Any = object.__new__(_CommittedThread)
    thread.consumer = consumer_of(Dashboard(TOPICS, 1, lambda: 0))
    found = asyncio.run(thread._fetch_records(None, {READ, CHANGELOG}))
    assert asked == [{CHANGELOG}]
    assert [one.offset for one in found[CHANGELOG]] == [3, 4]  # individual records, not a batch
    assert asyncio.run(thread._fetch_records(None, {READ})) == {}
    thread.consumer.is_placed = True
    # For an empty set of partitions, aiokafka itself would return all buffered records.
    assert asyncio.run(thread._fetch_records(None, set())) == {}
    assert asked == [{CHANGELOG}]
    (batch,) = asyncio.run(thread._fetch_records(None, {READ}))[READ]
    assert (batch.offset, len(batch.value.records), batch.value.seeks) == (4, 2, 0)


def test_consumer_has_a_valid_position_after_a_seek_but_not_during_a_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = consumer_of(Dashboard(TOPICS, 1, lambda: 0))
    seen: list[bool] = []

    async def look(self: Any, *revoked: Any) -> None:
        seen.append(consumer.is_placed)

    monkeypatch.setattr(Consumer, "perform_seek", look)
    monkeypatch.setattr(Consumer, "on_partitions_revoked", look)
    asyncio.run(consumer.perform_seek())
    assert (seen, consumer.is_placed, consumer.seeks) == ([False], True, 1)
    asyncio.run(consumer.on_partitions_revoked({READ}))
    assert (seen, consumer.is_placed) == ([False, False], False)


def test_batches_fetched_before_the_latest_seek_are_ignored() -> None:
    dashboard = Dashboard(TOPICS, 1, lambda: 0)
    program: Any = object.__new__(MonitorProgram)
    kept: list[int] = []
    program._dashboard = dashboard
    program._app = SimpleNamespace(consumer=SimpleNamespace(seeks=2))
    program._table = SimpleNamespace(send_changelog=lambda partition, key, state: kept.append(partition))

    def message(first: int, seeks: int) -> Any:
        records = [fetched(prediction(offset), offset) for offset in range(first, first + 10)]
        return SimpleNamespace(message=_batch(records, seeks))

    async def take_events(most: int, within: float) -> AsyncIterator[list[Any]]:
        yield [message(20, seeks=1)]  # Faust has discarded records 0 to 19
        yield [message(0, seeks=2), message(30, seeks=1)]

    asyncio.run(program._take(SimpleNamespace(take_events=take_events)))
    assert dashboard.next_offset_of(*READ) == 10
    assert kept == [0]


def test_reading_contexts_does_not_block_the_event_loop() -> None:
    program: Any = object.__new__(MonitorProgram)
    went_on = Event()

    def contexts_of(records: Any) -> Any:
        assert went_on.wait(10.0)
        return {}

    async def take_events(most: int, within: float) -> AsyncIterator[list[Any]]:
        asyncio.get_running_loop().call_soon(went_on.set)
        yield [SimpleNamespace(message=_batch([fetched(prediction(0), 0)], seeks=1))]

    taken: list[Record] = []

    def take(records: Any, contexts: Any) -> Any:
        taken.extend(records)
        return {}

    program._dashboard = SimpleNamespace(take=take, contexts_of=contexts_of)
    program._app = SimpleNamespace(consumer=SimpleNamespace(seeks=1))
    asyncio.run(program._take(SimpleNamespace(take_events=take_events)))
    assert [record.offset for record in taken] == [0]


def test_error_in_a_batch_stops_the_monitor() -> None:
    program: Any = object.__new__(MonitorProgram)
    crashed: list[Exception] = []

    async def crash(error: Exception) -> None:
        crashed.append(error)

    def take(records: Any, contexts: Any) -> Any:
        raise ValueError(len(list(records)))

    async def take_events(most: int, within: float) -> AsyncIterator[list[Any]]:
        yield [SimpleNamespace(message=_batch([fetched(prediction(0), 0)], seeks=1))]

    program._dashboard = SimpleNamespace(take=take, contexts_of=lambda records: {})
    program._app = SimpleNamespace(consumer=SimpleNamespace(seeks=1), crash=crash)
    with pytest.raises(ValueError, match=r"^1$") as raised:
        asyncio.run(program._take(SimpleNamespace(take_events=take_events)))
    assert crashed == [raised.value]
