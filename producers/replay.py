"""The replay program: a data set's rows as contexts, at a pace."""

from collections.abc import Callable
from dataclasses import dataclass

from producers.datasets.base import Dataset
from stream.brokers.partitioner import partition_for
from stream.brokers.port import Broker
from stream.brokers.reading import read_partition
from stream.wire import codec
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is replayed, and how fast."""

    events: int  # positions of the schedule to be replayed, from the first on
    rate_per_s: float = 1_000.0  # inf: as fast as the broker takes them
    shuffle_seed: int | None = None  # None: in the order of the rows
    partitions: int = 1
    start: int = 0  # position to begin with
    batch_max: int = 1_000  # events sent before the program looks at the clock again


class ReplayProgram:
    """One replay. The loop is `step` until `finished`."""

    def __init__(
        self, broker: Broker, topics: Topics, dataset: Dataset, options: ReplayOptions, now_ms: Callable[[], int]
    ) -> None:
        self._topics = topics
        self._dataset = dataset
        self._options = options
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._schedule = dataset.schedule(options.start, options.events, options.shuffle_seed)
        self._producer = broker.producer()
        self.position = options.start  # of the next event

    @property
    def finished(self) -> bool:
        """Whether all events are sent."""
        return self.position >= self._options.events

    def next_due_ms(self) -> int | None:
        """When the next event is to be sent; None after the last one."""
        return None if self.finished else self._due_ms(self.position)

    def _due_ms(self, position: int) -> int:
        return self._started_ms + int((position - self._options.start) * 1_000 / self._options.rate_per_s)

    def step(self, timeout_ms: int) -> int:
        """Send the events that are due; how many were sent.

        Raises:
            BrokerUnavailableError: the broker did not take them in time; they may or may not be in the topic.
        """
        options, now_ms, first = self._options, self._now_ms(), self.position
        last = min(options.events, first + options.batch_max)
        while self.position < last and self._due_ms(self.position) <= now_ms:
            event_id, row = next(self._schedule)
            value = codec.encode_context(event_id, self._dataset.row(row).x)
            key = event_id.encode()
            self._producer.send(
                self._topics.contexts, partition_for(key, options.partitions), key, value, codec.HEADERS
            )
            self.position += 1
        if self.position > first:
            self._producer.flush()
        return self.position - first

    def close(self) -> None:
        """Flush and release."""
        self._producer.close()


def resume_position(broker: Broker, topics: Topics, dataset: Dataset, options: ReplayOptions) -> int:
    """The first position of this replay whose event is not in the topic.

    A replay that was killed may have left out some events of its last batch and written later ones: those are then
    sent again, and the join drops them. After one that came to its end nothing is sent twice.
    """
    written = {
        record.key.decode(errors="replace")
        for partition in range(options.partitions)
        for record in read_partition(broker, TopicPartition(topics.contexts, partition))
        if record.key is not None
    }
    schedule = dataset.schedule(0, options.events, options.shuffle_seed)
    for position, slot in enumerate(schedule):
        if slot.event_id not in written:
            return position
    return options.events
