"""A pipeline as a test of a service talks to it: contexts and feedback in, predictions and examples out, and the books.

What is the same on a real Kafka and in virtual time stands here; the two differ in how they wait.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from stream.journal.reading import JournalFollower
from stream.kafka.browsing import read_in_order
from stream.kafka.partitioner import partition_for
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.reporting.record_lines import event_id_of, record_line
from stream.verifying.audit import Finding, audit_partition
from stream.wire.codec import HEADERS, encode_feedback
from stream.wire.events import Feedback
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

LIVES_MAX = 5
"""Of so many events the story of a test that failed tells the life."""

Event = dict[str, Any]
"""The value of a record, as JSON has it: see docs/topics.md."""


class PipelineUnderTest(ABC):
    """Topics of a pipeline's own, a learner that works on them, and what a test wants to do and to know."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int) -> None:
        self.broker = broker
        self.topics = topics
        self.partitions = partitions
        self._touched: dict[str, None] = {}  # the events that the test asked of, in their order
        self._answers: dict[str, dict[str, Event]] = {topics.predictions: {}, topics.examples: {}}
        self._reader = broker.reader(self._partitions_of(self._answers))
        self._follower = JournalFollower(broker, topics, partitions)
        self._producer = broker.producer()

    @abstractmethod
    def _wait(self, claim: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Let the learner work until something holds.

        Raises:
            AssertionError: it did not come to hold.
        """

    @abstractmethod
    def finish(self) -> None:
        """Let the learner end, and see that the ledger adds up.

        Raises:
            AssertionError: it does not, or the learner did not end well.
        """

    def context(self, event_id: str, x: Sequence[float] | Mapping[str, Any]) -> None:
        """Ask for a prediction, as a service does."""
        self.send(self.topics.contexts, event_id, {"id": event_id, "x": x})

    def feedback(self, event_id: str, reward: int, *, action: int | None = None, label: int | None = None) -> None:
        """Tell whether the action was right, as a service does."""
        self.send(self.topics.feedback, event_id, encode_feedback(Feedback(event_id, reward, label, action)))

    def send(self, topic: str, event_id: str, value: bytes | Mapping[str, Any]) -> None:
        """Write any record, under the event's id as its key; a topic is named with or without the prefix."""
        name = topic if topic in self.topics else self.prefix + topic
        key = event_id.encode()
        data = value if isinstance(value, bytes) else orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        self._touched[event_id] = None
        self._producer.send(name, partition_for(key, self.partitions), key, data, HEADERS)
        self._producer.flush()

    def prediction(self, event_id: str, timeout_s: float = 30.0) -> Event:
        """The answer to a context, when it is there."""
        return self._answer(self.topics.predictions, event_id, timeout_s)

    def example(self, event_id: str, timeout_s: float = 30.0) -> Event:
        """The settled decision, when it is there: matched, or expired."""
        return self._answer(self.topics.examples, event_id, timeout_s)

    def _answer(self, topic: str, event_id: str, timeout_s: float) -> Event:
        self._touched[event_id] = None
        answers = self._answers[topic]

        def is_there() -> bool:
            for record in self._reader.poll(0 if event_id in answers else self._poll_ms, 10_000):
                self._answers[record.topic].setdefault(event_id_of(record) or "", orjson.loads(record.value or b"{}"))
            return event_id in answers

        self._wait(is_there, f"{event_id} is among the {topic.removeprefix(self.prefix)}", timeout_s)
        return answers[event_id]

    _poll_ms = 0

    def wait_until(self, claim: Callable[[Ledger], bool], what: str, timeout_s: float = 30.0) -> None:
        """Wait until the sum of the tasks' ledgers is so: `lambda ledger: ledger.matched == 3`."""
        self._wait(lambda: claim(self.ledger()), what, timeout_s)

    def ledger(self) -> Ledger:
        """What the learners have counted in all their steps so far."""
        return self._follower.read(self._poll_ms)

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        """The committed records of a partition of a topic, which is named with its prefix."""
        return list(read_partition(self.broker, TopicPartition(topic, partition)))

    def life(self, event_id: str) -> list[str]:
        """All records of an event in the order of their times, a line each."""
        starts = self.broker.beginnings(self._partitions_of(self.topics.of_events()))
        found = read_in_order(self.broker, starts)
        return [record_line(one, self.topics) for one in found if event_id_of(one) == event_id]

    def audits(self) -> list[Finding]:
        """What an audit finds that counts again from the topics alone."""
        return [audit_partition(self.broker, self.topics, partition) for partition in range(self.partitions)]

    def verify(self) -> None:
        """See that the ledger adds up.

        Raises:
            AssertionError: it does not; the message has what differs.
        """
        wrong = [found for found in self.audits() if not found.ok]
        assert not wrong, "the ledger does not add up:\n" + "\n".join(map(str, wrong))

    def story(self) -> str:
        """What to know when a test has failed: the ledger, and the lives of the events that it asked of last."""
        asked = list(self._touched)[-LIVES_MAX:]
        lives = [f"{event_id}:\n" + "".join(f"  {line}\n" for line in self.life(event_id)) for event_id in asked]
        follower = JournalFollower(self.broker, self.topics, self.partitions, from_end=True)
        try:
            ledger = follower.read(0)
        finally:
            follower.close()
        return "\n".join((f"topics {self.prefix}*, {ledger}", *lives))

    @property
    def prefix(self) -> str:
        """What the names of the topics begin with."""
        return self.topics.contexts.removesuffix("contexts")

    def close(self) -> None:
        """Release what was opened."""
        self._producer.close()
        self._reader.close()
        self._follower.close()

    def _partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for topic in topics for partition in range(self.partitions)]
