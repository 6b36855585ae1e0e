"""Helpers for the contract tests: topics, records, and polling until a condition is met.

Polling is necessary because a broker may apply changes such as commit markers and rebalances after a delay.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import admin as confluent_admin

from stream.kafka.port import Broker, Consumer
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import TopicSpec

confluent: Any = confluent_admin  # mypy does not recognize the names that the module exports

TIMEOUT_S = 60.0


class RebalanceLog:
    """A rebalance listener that records every call."""

    def __init__(self) -> None:
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        self.events.append(("revoked", tps))

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", tps))


def until(claim: Callable[[], bool]) -> None:
    """Wait until a condition is met."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not claim():
        assert time.monotonic() < deadline_s, f"condition not met within {TIMEOUT_S:g} s"


def set_config(admin: Any, topic: str, name: str, value: str) -> None:
    """Change a setting of a topic on a Kafka broker, using confluent-kafka's admin client."""
    entry = confluent.ConfigEntry(name, value, incremental_operation=confluent.AlterConfigOpType.SET)
    resource = confluent.ConfigResource(confluent.ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)


def topic(broker: Broker, prefix: str, partitions: int = 1, name: str = "topic") -> str:
    broker.create_topics([TopicSpec(prefix + name, partitions)])
    return prefix + name


def write(broker: Broker, name: str, values: Iterable[str], partition: int = 0) -> int:
    producer = broker.producer()
    for value in values:
        producer.send(name, partition, b"key", value.encode())
    appended_ms = producer.flush()
    producer.close()
    return max(appended_ms.values(), default=-1)


def read(consumer: Consumer, count: int, records_max: int = 100) -> list[Record]:
    """Poll until `count` records are read. Fail if the consumer returns more."""
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
    """Return the values that a new reader reads, from the beginning to the last stable offset."""
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
    """Wait until a partition has no open transaction."""
    until(lambda: len(set(broker.ends([tp])[tp])) == 1)


def joined(*consumers: Consumer, partitions: int) -> list[Record]:
    """Poll the members of a group until all partitions are assigned. Return the polled records."""
    records: list[Record] = []

    def is_assigned() -> bool:
        for consumer in consumers:
            records.extend(consumer.poll(50, 100))
        assignments = [consumer.assignment() for consumer in consumers]
        return all(assignments) and sum(map(len, assignments)) == partitions

    until(is_assigned)
    return records
