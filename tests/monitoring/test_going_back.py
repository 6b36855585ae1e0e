"""Where the monitor reads on when its table is recovered: Faust has thrown away what it fetched meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

from consumers.monitor import _CommittedThread


def test_it_goes_back_to_the_beginning_where_no_offset_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = {TP("contexts", 0): None, TP("contexts", 1): 7, TP("changelog", 0): None}
    begun: list[TP] = []

    async def seek_to_committed(self: Any) -> Any:
        return committed

    async def seek_to_beginning(self: Any, *tps: TP) -> None:
        begun.extend(tps)

    monkeypatch.setattr(AIOKafkaConsumerThread, "seek_to_committed", seek_to_committed)
    monkeypatch.setattr(AIOKafkaConsumerThread, "seek_to_beginning", seek_to_beginning)
    thread: Any = object.__new__(_CommittedThread)
    thread.consumer = SimpleNamespace(transport=SimpleNamespace(in_batches=frozenset({"contexts"})))
    assert asyncio.run(thread.seek_to_committed()) == committed
    assert begun == [TP("contexts", 0)]
