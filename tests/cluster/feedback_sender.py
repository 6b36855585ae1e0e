"""Sends feedback near the deadline of each decision. This program uses only Onebit's documented formats."""

import json
import random
import threading
import time
from collections import defaultdict
from functools import partial
from heapq import heappop, heappush

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.independent_reader import header

EARLIEST_MS, LATEST_MS = -15.0, 5.0  # target range of append times, relative to the deadline
_WEIGHT = 0.05  # weight of a new measurement in the moving average of `_ahead_ms`


class FeedbackSender(threading.Thread):
    """Sends one feedback record per prediction, timed so that Kafka appends it within a few ms of the deadline.

    Only the leader acknowledges feedback (acks=1). With acks=all, a slow follower would block the sender, and no
    feedback would be sent near its deadline during a failure.
    """

    def __init__(self, bootstrap: str, prefix: str, window_ms: int, decisions: int, seed: int = 1) -> None:
        super().__init__(daemon=True)
        self._predictions, self._feedback = f"{prefix}predictions", f"{prefix}feedback"
        self._window_ms = window_ms
        self._left = decisions
        self._draw = random.Random(seed)
        self._closing = threading.Event()
        self._ticks: dict[bytes, int] = {}
        self._undated: defaultdict[bytes, list[str]] = defaultdict(list)
        self._due: list[tuple[float, str]] = []  # due times on the leader's clock, with event ids
        self._ahead_ms = 0.0  # append time on the leader's clock minus send time on this machine's clock
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "answering",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in (self._predictions, self._feedback)])
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 5})

    def run(self) -> None:
        """Send feedback until every decision has feedback, or until `close` is called."""
        while self._left and not self._closing.is_set():
            for message in self._consumer.consume(500, 0.002):
                self._read(message)
            while self._due and self._due[0][0] <= self._leader_ms():
                _, event_id = heappop(self._due)
                answer = json.dumps({"id": event_id, "reward": 1})
                sent_ms = time.time() * 1_000
                self._producer.produce(
                    self._feedback, answer, event_id, 0, on_delivery=partial(self._appended, sent_ms)
                )
                self._left -= 1
            self._producer.poll(0)
        self._producer.flush(30)
        self._consumer.close()

    def close(self) -> None:
        """Stop, even if some decisions have no feedback yet."""
        self._closing.set()
        if self.is_alive():
            self.join(60)

    def _leader_ms(self) -> float:
        """The expected append time of a record that is sent now."""
        return time.time() * 1_000 + self._ahead_ms

    def _read(self, message: Message) -> None:
        """Process a prediction or a tick. A tick's append time is the time of its step's decisions."""
        assert message.error() is None, message.error()
        if message.topic() == self._feedback:
            step = header(message, "onebit-tick")
            if step is not None:
                self._ticks[step] = message.timestamp()[1]
        else:
            step = header(message, "onebit-step")
            assert step is not None
            self._undated[step].append(json.loads(message.value() or b"")["id"])
        if step in self._ticks:
            for event_id in self._undated.pop(step, ()):
                off_ms = self._draw.uniform(EARLIEST_MS, LATEST_MS)
                heappush(self._due, (self._ticks[step] + self._window_ms + off_ms, event_id))

    def _appended(self, sent_ms: float, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._ahead_ms += _WEIGHT * (message.timestamp()[1] - sent_ms - self._ahead_ms)
