"""The number of input records that no step has applied yet.

Offsets also count ticks and transaction markers, which are not waiting: the step that appends them is complete, and a
step is not required to apply them. After each step of an idle pipeline, there are two such offsets. If few offsets are
waiting, the records are therefore read and counted. If many offsets are waiting, ticks and markers are a small part of
them.
"""

from collections.abc import Mapping

from stream.kafka.port import SHORT_FETCH_WAIT_MS, Broker, Ends
from stream.kafka.reading import read_towards
from stream.recovery.steps import JournalStep
from stream.wire.codec import is_tick
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

FEW_MAX = 10
"""Maximum number of waiting offsets whose records are read. More offsets are counted as records."""


def applied_offsets(topics: Topics, partitions: int, steps: Mapping[int, JournalStep]) -> dict[TopicPartition, int]:
    """Return the offsets up to which the tasks have applied their inputs."""
    applied = {}
    for partition in range(partitions):
        step = steps.get(partition)
        contexts, feedback = (0, 0) if step is None else (step.contexts[1], step.feedback[1])
        applied[TopicPartition(topics.contexts, partition)] = contexts
        applied[TopicPartition(topics.feedback, partition)] = feedback
    return applied


class WaitingRecords:
    """Counts the waiting records in all inputs of a pipeline."""

    def __init__(self, broker: Broker, topics: Topics, partitions: int) -> None:
        self._topics = topics
        self._partitions = partitions
        inputs = list(applied_offsets(topics, partitions, {}))
        self._reader = broker.reader(inputs, SHORT_FETCH_WAIT_MS)
        for tp, ends in broker.ends(inputs).items():
            self._reader.seek(tp, ends.stable)
        self._reader.pause(inputs)
        self._counted: dict[TopicPartition, tuple[int, int, int]] = {}  # applied offset, end offset, and record count

    def count(self, ends: Mapping[TopicPartition, Ends], steps: Mapping[int, JournalStep]) -> dict[TopicPartition, int]:
        """Return the number of waiting records in each input. Records in an open transaction are not counted.

        Args:
            ends: The inputs' end offsets, read after the steps.
            steps: Each task's last step.

        Raises:
            BrokerUnavailableError: the records cannot be read.
        """
        applied = applied_offsets(self._topics, self._partitions, steps)
        waiting = {tp: max(0, ends[tp].high_watermark - start) for tp, start in applied.items()}
        few = {tp for tp, offsets in waiting.items() if 0 < offsets <= FEW_MAX}
        self._read({tp: (applied[tp], ends[tp].stable) for tp in few})
        return waiting | {tp: self._counted[tp][2] for tp in few}

    def _read(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Count the records in these spans, unless they are already counted."""
        spans = {tp: span for tp, span in spans.items() if self._counted.get(tp, ())[:2] != span}
        for tp, (start, _) in spans.items():
            self._reader.seek(tp, start)
        self._reader.resume(spans)
        counts = dict.fromkeys(spans, 0)
        while left := {tp: end for tp, (_, end) in spans.items() if self._reader.position(tp) < end}:
            for record in read_towards(self._reader, left):
                tp = TopicPartition(record.topic, record.partition)
                counts[tp] += record.offset < spans[tp][1] and not is_tick(record)
        self._reader.pause(spans)
        self._counted |= {tp: (*span, counts[tp]) for tp, span in spans.items()}

    def close(self) -> None:
        """Release the connection."""
        self._reader.close()
