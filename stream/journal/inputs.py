"""The two inputs of a task, read again step by step as its journal records them."""

from collections import deque
from collections.abc import Generator

from stream.journal.format import JournalStep, UnrecoverableError
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.task.task import merge
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


class Inputs:
    """Contexts and feedback of one task for a range of steps."""

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: JournalStep, last: JournalStep) -> None:
        contexts, feedback = TopicPartition(topics.contexts, partition), TopicPartition(topics.feedback, partition)
        check_kept(broker, contexts, first.contexts[0], last.contexts[1])
        check_kept(broker, feedback, first.feedback[0], last.feedback[1])
        self._contexts = Portions(read_partition(broker, contexts, start=first.contexts[0]))
        self._feedback = Portions(read_partition(broker, feedback, start=first.feedback[0]))

    def of(self, step: JournalStep) -> list[Record]:
        """The records of the next step, in the order in which the step applied them."""
        contexts = self._contexts.up_to(step.contexts[1])
        feedback = self._feedback.up_to(step.feedback[1])
        return merge(contexts, feedback, contexts_lag=0, feedback_lag=0, records_max=len(contexts) + len(feedback))

    def close(self) -> None:
        """Release the connections."""
        self._contexts.close()
        self._feedback.close()


def check_kept(broker: Broker, tp: TopicPartition, offset: int, end: int) -> None:
    """Check that an input still has the required records.

    Raises:
        UnrecoverableError: the input begins after `offset`, or ends before `end`.
    """
    beginning = broker.beginnings([tp])[tp]
    if beginning > offset:
        raise UnrecoverableError(
            f"recovery needs {tp.topic}/{tp.partition} from offset {offset}; it begins at {beginning}. Increase its "
            "retention.ms"
        )
    kept_to = broker.ends([tp])[tp].stable
    if kept_to < end:
        raise UnrecoverableError(
            f"recovery needs {tp.topic}/{tp.partition} up to offset {end}; it ends at {kept_to}. The topic was "
            "recreated"
        )


class Portions:
    """The records of a partition, in portions."""

    def __init__(self, records: Generator[Record, None, None]) -> None:
        self._records = records
        self._next: Record | None = None

    def up_to(self, end: float) -> deque[Record]:
        """The records before an offset that have not been returned yet."""
        found: deque[Record] = deque()
        while (record := self._next or next(self._records, None)) is not None:
            self._next = record
            if record.offset >= end:
                break
            self._next = None
            found.append(record)
        return found

    def close(self) -> None:
        """Release the connection."""
        self._records.close()
