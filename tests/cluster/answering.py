"""A sender that answers each prediction near its deadline, and knows nothing of Onebit but the formats."""

import json
import random
import threading
import time
from collections import defaultdict
from functools import partial
from heapq import heappop, heappush

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.judge import header

EARLIEST_MS, LATEST_MS = -15.0, 5.0  # from the deadline, where the answer should be appended
_WEIGHT = 0.05  # of one answer, in the estimate of how long after its sending it is appended


class Answering(threading.Thread):
    """Send one feedback for each prediction, so that it is appended a few ms before or after its deadline.

    Feedback is acknowledged by the leader alone: with acks=all a follower that is behind would hold the sender up, and
    no answer would be at stake.
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
        self._due: list[tuple[float, str]] = []  # by the clock of who leads the feedback partition
        self._ahead_ms = 0.0  # from sending by this machine's clock to the append time by the leader's
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
        """Answer until all decisions are answered, or `close` is called."""
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
        """End, whatever is left to answer."""
        self._closing.set()
        if self.is_alive():
            self.join(60)

    def _leader_ms(self) -> float:
        """The append time of what is sent now."""
        return time.time() * 1_000 + self._ahead_ms

    def _read(self, message: Message) -> None:
        """Take a tick, the time of its step's decisions; or a prediction, which may come before its tick."""
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
