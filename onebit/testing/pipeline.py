"""Base class for pipelines under test: sends contexts and feedback, and reads predictions, examples and the ledger.

The subclasses, for a Kafka broker and for virtual time, implement waiting for a condition.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import float_info
from typing import Any

import numpy as np
import orjson

from stream.errors import OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import read_in_order, read_partition
from stream.recovery.steps import JournalFollower
from stream.reporting.record_lines import event_id_of, record_line
from stream.verifying.audit import Finding, audit_partition
from stream.wire.codec import HEADERS, encode_feedback
from stream.wire.ledger import Ledger
from stream.wire.records import Feedback, Record, Shown, TopicPartition
from stream.wire.topics import Topics, partition_for

LIVES_MAX = 5
"""Maximum number of events in the report for a failed test."""

EventFields = dict[str, Any]
"""A record's value as JSON; see docs/topics.md."""


class NotSendableError(OnebitError, TypeError):
    """An event id is not a string, a reward is not a number, or another value has the wrong type."""


def feedback_of(
    event_id: str,
    reward: float,
    action: int | str | None = None,
    label: int | None = None,
    part: str | None = None,
    *,
    final: bool = False,
) -> Feedback:
    """Create feedback from values that may be numpy scalars, or floats such as 1.0.

    Raises:
        NotSendableError: a value has the wrong type.
    """
    if part is not None and not isinstance(part, str):
        raise NotSendableError(f"part: expected a string, such as 'purchase'; got {part!r}")
    if not isinstance(final, bool | np.bool_):
        raise NotSendableError(f"final: expected True or False; got {final!r}")
    played = action if isinstance(action, str) else _optional("action", action)
    return Feedback(checked_id(event_id), _reward(reward), _optional("label", label), played, part, bool(final))


def checked_id(event_id: str) -> str:
    """Return an event id.

    Raises:
        NotSendableError: the id is not a string.
    """
    if not isinstance(event_id, str):
        raise NotSendableError(f"event id: expected a string, such as 'visit-7'; got {event_id!r}")
    return event_id


def _optional(name: str, value: object) -> int | None:
    return None if value is None else _whole(name, value)


def _reward(value: object) -> float:
    """Return a reward as a Python number: an int if it is whole, as a bit is, and not too large for orjson."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool | int | float) and abs(plain) <= float_info.max:
        return int(plain) if plain == plain // 1 and abs(plain) < 2**53 else float(plain)
    raise NotSendableError(f"reward: expected a finite number, such as 1; got {value!r}")


def _whole(name: str, value: object) -> int:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool | int | float) and plain == plain // 1:
        return int(plain)
    raise NotSendableError(f"{name}: expected a whole number, such as 1; got {value!r}")


def _plain(value: object) -> object:
    """Convert values that `orjson` does not convert, such as a column of a matrix."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


class PipelineUnderTest(ABC):
    """A pipeline with its own topics and a learner, and methods for tests."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int) -> None:
        self.broker = broker
        self.topics = topics
        self.partitions = partitions
        self._touched: dict[str, None] = {}  # ids of the events that the test used, in order
        self._answers: dict[str, dict[str, EventFields]] = {topics.predictions: {}, topics.examples: {}}
        self._reader = broker.reader(self._partitions_of(self._answers))
        self._follower = JournalFollower(broker, topics, partitions)
        self._producer = broker.producer()

    @abstractmethod
    def _wait(self, claim: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Run the learner until a condition is true.

        Raises:
            AssertionError: the condition did not become true.
        """

    @abstractmethod
    def finish(self) -> None:
        """Stop the learner and verify the ledger.

        Raises:
            AssertionError: the ledger does not balance, or the learner failed.
        """

    def context(self, event_id: str, x: Sequence[float] | Mapping[str, Any], **fields: Any) -> None:
        """Send a context, as a service would, with optional fields such as `eligible`."""
        self.send(self.topics.contexts, event_id, {"id": event_id, "x": x, **fields})

    def feedback(
        self,
        event_id: str,
        reward: float,
        *,
        action: int | str | None = None,
        label: int | None = None,
        part: str | None = None,
        final: bool = False,
    ) -> None:
        """Send feedback, as a service would."""
        feedback = feedback_of(event_id, reward, action, label, part, final=final)
        self.send(self.topics.feedback, event_id, encode_feedback(feedback))

    def shown(self, event_id: str) -> None:
        """Report that a deferred decision was shown, as a service would."""
        self.send(self.topics.feedback, event_id, encode_feedback(Shown(event_id)))

    def send(self, topic: str, event_id: str, value: bytes | Mapping[str, Any]) -> None:
        """Write any record with the event id as its key. The topic's name may omit the prefix."""
        name = topic if topic in self.topics else self.prefix + topic
        key = checked_id(event_id).encode()
        data = value if isinstance(value, bytes) else orjson.dumps(value, _plain, orjson.OPT_SERIALIZE_NUMPY)
        self._touched[event_id] = None
        self._producer.send(name, partition_for(key, self.partitions), key, data, HEADERS)
        self._producer.flush()

    def prediction(self, event_id: str, timeout_s: float = 30.0) -> EventFields:
        """Wait for an event's prediction and return it."""
        return self._answer(self.topics.predictions, event_id, timeout_s)

    def example(self, event_id: str, timeout_s: float = 30.0) -> EventFields:
        """Wait until the decision is settled (for example, matched or expired), and return its example."""
        return self._answer(self.topics.examples, event_id, timeout_s)

    def _answer(self, topic: str, event_id: str, timeout_s: float) -> EventFields:
        self._touched[event_id] = None
        answers = self._answers[topic]

        def is_there() -> bool:
            for record in self._reader.poll(0 if event_id in answers else self._poll_ms, 10_000):
                self._answers[record.topic].setdefault(event_id_of(record) or "", orjson.loads(record.value or b"{}"))
            return event_id in answers

        self._wait(is_there, f"{event_id} is in the topic {topic.removeprefix(self.prefix)}", timeout_s)
        return answers[event_id]

    _poll_ms = 0

    def wait_until(self, claim: Callable[[Ledger], bool], what: str, timeout_s: float = 30.0) -> None:
        """Wait for a condition on the sum of all tasks' ledgers, such as `lambda ledger: ledger.matched == 3`."""
        self._wait(lambda: claim(self.ledger()), what, timeout_s)

    def ledger(self) -> Ledger:
        """Return the learners' current counts."""
        return self._follower.read(self._poll_ms)

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        """Return the committed records in a partition. The topic's name must include the prefix."""
        return list(read_partition(self.broker, TopicPartition(topic, partition)))

    def life(self, event_id: str) -> list[str]:
        """Return one line for each of an event's records, in time order."""
        starts = self.broker.beginnings(self._partitions_of(self.topics.of_events()))
        found = read_in_order(self.broker, starts)
        return [record_line(one, self.topics) for one in found if event_id_of(one) == event_id]

    def audits(self) -> list[Finding]:
        """Recompute the ledger of each partition from the topics and return the results."""
        return [audit_partition(self.broker, self.topics, partition) for partition in range(self.partitions)]

    def verify(self) -> None:
        """Verify the ledger.

        Raises:
            AssertionError: the ledger is wrong; the message lists the differences.
        """
        wrong = [found for found in self.audits() if not found.ok]
        assert not wrong, "the ledger does not add up:\n" + "\n".join(map(str, wrong))

    def story(self) -> str:
        """Return the report for a failed test: the ledger, and the records of the most recently used events."""
        asked = list(self._touched)[-LIVES_MAX:]
        lives = [f"{event_id}:\n" + "".join(f"  {line}\n" for line in self.life(event_id)) for event_id in asked]
        follower = JournalFollower(self.broker, self.topics, self.partitions)
        try:
            ledger = follower.read(0)
        finally:
            follower.close()
        return "\n".join((f"topics {self.prefix}*, {ledger}", *lives))

    @property
    def prefix(self) -> str:
        """The topics' prefix."""
        return self.topics.contexts.removesuffix("contexts")

    def close(self) -> None:
        """Close the clients."""
        self._producer.close()
        self._reader.close()
        self._follower.close()

    def _partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for topic in topics for partition in range(self.partitions)]
