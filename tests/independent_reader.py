"""A reader for a pipeline's topics. It shares no code with Onebit and uses only the documented formats."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

READ_S = 120.0


def committed(bootstrap: str, topic: str) -> Iterator[Message]:
    """Read all committed records in a topic, partition by partition."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        for partition in reader.list_topics(topic, READ_S).topics[topic].partitions:
            reader.assign([TopicPartition(topic, partition, 0)])
            deadline_s = time.monotonic() + READ_S
            while True:
                assert time.monotonic() < deadline_s, f"{topic}/{partition} was not read to its end within {READ_S:g} s"
                message = reader.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    break
                yield message
    finally:
        reader.close()


def header(message: Message, name: str) -> bytes | None:
    """The value of the last header with this name, or None."""
    found: bytes | None = dict(message.headers() or ()).get(name)  # type: ignore[assignment]
    return found


def value(message: Message) -> dict[str, Any]:
    """The JSON object in a record's value."""
    found = json.loads(message.value() or b"")
    assert isinstance(found, dict), found
    return found


class Deadlines(NamedTuple):
    """Each decision's outcome, and its feedback's append time."""

    lateness_ms: dict[str, int]  # append time of the feedback minus deadline; at most 0 if in time
    appended_ms: dict[str, int]  # append time of the feedback; decisions without feedback are in neither dict
    outcomes: dict[str, str]

    def wrong(self) -> dict[str, tuple[int, str]]:
        """Decisions whose outcome contradicts the append time of their feedback."""
        never_ms = sys.maxsize
        lateness_ms = {event_id: self.lateness_ms.get(event_id, never_ms) for event_id in self.outcomes}
        return {
            event_id: (late_ms, self.outcomes[event_id])
            for event_id, late_ms in lateness_ms.items()
            if self.outcomes[event_id] != ("matched" if late_ms <= 0 else "expired")
        }

    def in_time_between(self, from_ms: int, to_ms: int) -> int:
        """Number of decisions whose feedback was in time and was appended between `from_ms` and `to_ms`."""
        return sum(
            late_ms <= 0 and from_ms <= self.appended_ms[event_id] <= to_ms
            for event_id, late_ms in self.lateness_ms.items()
        )


def judge_deadlines(bootstrap: str, prefix: str, window_ms: int) -> Deadlines:
    """Compare the append time of each decision's first feedback with the decision's deadline.

    A decision's time is the append time of its step's tick. Append times can decrease when a different broker becomes
    the partition's leader. This function therefore uses the largest append time so far.
    """
    steps = {value(one)["id"]: header(one, "onebit-step") for one in committed(bootstrap, f"{prefix}predictions")}
    ticks: dict[bytes, int] = {}
    lateness_ms: dict[str, int] = {}
    appended_ms: dict[str, int] = {}
    stream_ms = 0
    for message in committed(bootstrap, f"{prefix}feedback"):
        stream_ms = max(stream_ms, message.timestamp()[1])
        tick = header(message, "onebit-tick")
        if tick is not None:
            ticks.setdefault(tick, stream_ms)
            continue
        event_id = value(message)["id"]
        step = steps[event_id]
        assert step is not None
        if event_id not in lateness_ms:
            lateness_ms[event_id] = stream_ms - ticks[step] - window_ms
            appended_ms[event_id] = message.timestamp()[1]
    outcomes = [(value(one)["id"], value(one)["outcome"]) for one in committed(bootstrap, f"{prefix}examples")]
    settled = Counter(event_id for event_id, _ in outcomes)
    assert settled == Counter(steps.keys()), "some decisions have no outcome, or more than one"
    return Deadlines(lateness_ms, appended_ms, dict(outcomes))
