"""The two inputs of a task, read again in the portions that its journal names."""

from collections import deque

from stream.journal.format import JournalStep, UnrecoverableError
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.task.task import merge
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


class Inputs:
    """Contexts and feedback of one task, from one step of its journal to another."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: JournalStep, last: JournalStep) -> None:
        contexts, feedback = TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)
        self._contexts = _Input(broker, contexts, first.contexts[0], last.contexts[1])
        self._feedback = _Input(broker, feedback, first.feedback[0], last.feedback[1])

    def of(self, step: JournalStep) -> list[Record]:
        """The records of the next step, in the order in which it applied them."""
        contexts = self._contexts.up_to(step.contexts[1])
        feedback = self._feedback.up_to(step.feedback[1])
        return merge(contexts, feedback, contexts_lag=0, feedback_lag=0, records_max=len(contexts) + len(feedback))

    def close(self) -> None:
        """Release the connections."""
        self._contexts.close()
        self._feedback.close()


def check_kept(broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
    """Refuse to go on when records of an input that are still needed were deleted.

    Raises:
        JournalError: the input is not kept from the offset on, or ends before the other one.
    """
    beginning = broker.beginnings([tp])[tp]
    if beginning > offset:
        raise UnrecoverableError(
            f"recovery needs {tp.topic}/{tp.partition} from offset {offset}; it is kept from {beginning} on: raise "
            "its retention.ms"
        )
    kept_to = broker.ends([tp])[tp].stable
    if kept_to < end:
        raise UnrecoverableError(
            f"recovery needs {tp.topic}/{tp.partition} up to offset {end}; it ends at {kept_to}: the topic was "
            "made anew since"
        )


class _Input:
    def __init__(self, broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
        check_kept(broker, tp, offset, end)
        self._records = read_partition(broker, tp, start=offset)
        self._next = next(self._records, None)

    def up_to(self, end: int) -> deque[Record]:
        """The records before an offset that were not returned yet."""
        found: deque[Record] = deque()
        while self._next is not None and self._next.offset < end:
            found.append(self._next)
            self._next = next(self._records, None)
        return found

    def close(self) -> None:
        self._records.close()
