"""The replay program: a data set's rows as contexts, at a pace, or in the time of the log that they are of.

Each event has a time at which it is due. One that is sent later than that has slipped: the schedule goes on as it was,
and what slipped is counted, so that nobody takes a replay for one in time that was not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from producers.datasets.base import Dataset
from producers.datasets.logged import decided_at_ms, time_of
from stream.kafka.partitioner import partition_for
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire import codec
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is replayed, and how fast."""

    events: int  # positions of the schedule to be replayed, from the first on
    rate_per_s: float = 1_000.0  # inf: as fast as the broker takes them
    speed: float | None = None  # in the time of the log, so many times faster; inf: at once; None: by the rate
    shuffle_seed: int | None = None  # None: in the order of the rows
    partitions: int = 1
    start: int = 0  # position to begin with
    batch_max: int = 1_000  # events sent before the program looks at the clock again


SLIP_MS = 100
"""An event that is sent later than this after it was due has slipped; less is how programs sleep and poll."""


@dataclass(slots=True)
class Slip:
    """How far a replay was behind its schedule."""

    events: int = 0  # that were sent late
    worst_ms: int = 0

    def add(self, late_ms: int) -> None:
        """Take in an event that has slipped."""
        self.events += 1
        self.worst_ms = max(self.worst_ms, late_ms)


@dataclass(slots=True)
class Timetable:
    """What a replay's schedule counts from, and how it was kept: a program that is made anew goes on with it."""

    started_ms: int
    position: int  # of the event that was due then
    slip: Slip = field(default_factory=Slip)


class ReplayProgram:
    """One replay. The loop is `step` until `finished`."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        dataset: Dataset,
        options: ReplayOptions,
        now_ms: Callable[[], int],
        timetable: Timetable | None = None,
    ) -> None:
        """Begin, or go on by the timetable of a program before."""
        self._topics = topics
        self._dataset = dataset
        self._options = options
        self._now_ms = now_ms
        self._schedule = dataset.schedule(options.start, options.events, options.shuffle_seed)
        self._producer = broker.producer()
        self.position = options.start  # of the next event
        self.timetable = timetable or Timetable(now_ms(), options.start)
        self._due = self.timetable.started_ms
        self._lap_ms = self._begun_ms = self._origin_ms = 0
        if options.speed not in (None, inf):
            self._begun_ms = decided_at_ms(dataset, 0)
            span_ms = max(0, decided_at_ms(dataset, dataset.rows - 1) - self._begun_ms)
            # The gap between two laps is a mean one.
            self._lap_ms = span_ms + max(1, span_ms // max(1, dataset.rows - 1))
            self._origin_ms = self._log_ms(self.timetable.position) or 0
        self._due = self._next_due()

    @property
    def finished(self) -> bool:
        """Whether all events are sent."""
        return self.position >= self._options.events

    def next_due_ms(self) -> int | None:
        """When the next event is to be sent; None after the last one."""
        return None if self.finished else self._due

    def _next_due(self) -> int:
        """When the event at `position` is due: never before the one before it."""
        speed, (started_ms, first) = self._options.speed, (self.timetable.started_ms, self.timetable.position)
        if speed is None:
            return started_ms + int((self.position - first) * 1_000 / self._options.rate_per_s)
        if speed == inf or self.finished:
            return started_ms
        log_ms = self._log_ms(self.position)
        return self._due if log_ms is None else max(self._due, started_ms + int((log_ms - self._origin_ms) / speed))

    def _log_ms(self, position: int) -> int | None:
        """The time of the log at a position, from its beginning; the next lap begins when the last has ended.

        None: the log does not say when this row was decided, which is then due with the one before it.
        """
        lap, row = divmod(position, self._dataset.rows)
        at_ms = time_of(self._dataset, row)
        return None if at_ms is None else lap * self._lap_ms + at_ms - self._begun_ms

    def step(self, timeout_ms: int) -> int:
        """Send the events that are due; how many were sent.

        Raises:
            BrokerUnavailableError: the broker did not take them in time; they may or may not be in the topic.
        """
        now_ms, first = self._now_ms(), self.position
        if self._due > now_ms:
            return 0
        options, dataset, send, topic = self._options, self._dataset, self._producer.send, self._topics.contexts
        last = min(options.events, first + options.batch_max)
        while self.position < last and self._due <= now_ms:
            event_id, row = next(self._schedule)
            value = codec.encode_context(event_id, dataset.row(row).x, dataset.logged(row))
            key = event_id.encode()
            send(topic, partition_for(key, options.partitions), key, value, codec.HEADERS)
            if now_ms - self._due > SLIP_MS and options.speed != inf and options.rate_per_s != inf:
                self.timetable.slip.add(now_ms - self._due)
            self.position += 1
            self._due = self._next_due()
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
