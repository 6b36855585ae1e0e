"""The replay program, which writes the rows of a data set as contexts, at a fixed rate or at the times in a log.

Each event has a scheduled time. An event that is sent after its scheduled time is counted as late ("slipped"), but does
not shift the schedule. The number of late events shows whether a replay kept to its schedule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from producers.datasets.base import Dataset
from producers.replay.options import ReplayOptions
from stream.kafka.port import Broker
from stream.kafka.reading import read_partition
from stream.wire import codec
from stream.wire.actions import Action
from stream.wire.records import Features, TopicPartition
from stream.wire.topics import Topics, partition_for

SLIP_MS = 100
"""Delay after which an event is counted as late. Shorter delays are normal, because the program sleeps and polls."""


@dataclass(slots=True)
class Slip:
    """The number of late events, and the largest delay."""

    events: int = 0  # number of late events
    worst_ms: int = 0

    def add(self, late_ms: int) -> None:
        """Add a late event."""
        self.events += 1
        self.worst_ms = max(self.worst_ms, late_ms)


@dataclass(slots=True)
class Timetable:
    """The start of a replay's schedule, and statistics on late events. A restarted program keeps the same timetable."""

    started_ms: int
    position: int  # position of the event that was due at `started_ms`
    slip: Slip = field(default_factory=Slip)


class ReplayProgram:
    """A replay. Call `step` until it is `finished`."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        dataset: Dataset,
        options: ReplayOptions,
        now_ms: Callable[[], int],
        timetable: Timetable | None = None,
    ) -> None:
        """Start a replay, or continue with an earlier program's timetable."""
        self._topics = topics
        self._dataset = dataset
        self._options = options
        self._now_ms = now_ms
        self._schedule = dataset.schedule(options.start, options.events, options.shuffle_seed)
        self._producer = broker.producer()
        self.position = options.start  # position of the next event
        self.timetable = timetable or Timetable(now_ms(), options.start)
        self._due = self.timetable.started_ms
        self._lap_ms = self._begun_ms = self._origin_ms = 0
        if options.speed not in (None, inf):
            self._begun_ms = dataset.decided_at_ms(0)
            span_ms = max(0, dataset.decided_at_ms(dataset.rows - 1) - self._begun_ms)
            # The pause between two laps is the mean time between events.
            self._lap_ms = span_ms + max(1, span_ms // max(1, dataset.rows - 1))
            self._origin_ms = self._log_ms(self.timetable.position) or 0
        self._due = self._next_due()

    @property
    def finished(self) -> bool:
        """Whether all events have been sent."""
        return self.position >= self._options.events

    def next_due_ms(self) -> int | None:
        """Return the scheduled time of the next event, or None after the last one."""
        return None if self.finished else self._due

    def _next_due(self) -> int:
        """Return the scheduled time of the event at `position`. Scheduled times never decrease."""
        speed, (started_ms, first) = self._options.speed, (self.timetable.started_ms, self.timetable.position)
        if speed is None:
            return started_ms + int((self.position - first) * 1_000 / self._options.rate_per_s)
        if speed == inf or self.finished:
            return started_ms
        log_ms = self._log_ms(self.position)
        return self._due if log_ms is None else max(self._due, started_ms + int((log_ms - self._origin_ms) / speed))

    def _log_ms(self, position: int) -> int | None:
        """Return the log time at a position, measured from the start of the first pass over the log.

        The result is None if the log has no time for this row. The row's event is then sent together with the previous
        event.
        """
        lap, row = divmod(position, self._dataset.rows)
        at_ms = self._dataset.time_of(row)
        return None if at_ms is None else lap * self._lap_ms + at_ms - self._begun_ms

    def step(self, timeout_ms: int) -> int:
        """Send the events that are due, and return how many were sent.

        Raises:
            BrokerUnavailableError: the broker did not acknowledge the events in time. Some or all of them may be in the
                topic.
        """
        now_ms, first = self._now_ms(), self.position
        if self._due > now_ms:
            return 0
        options, dataset, send, topic = self._options, self._dataset, self._producer.send, self._topics.contexts
        last = min(options.events, first + options.batch_max)
        while self.position < last and self._due <= now_ms:
            event_id, row = next(self._schedule)
            x, actions = offer_of(dataset, row)
            value = codec.encode_context(
                event_id, x, dataset.logged(row), dataset.eligible(row), baseline=dataset.baseline(row), actions=actions
            )
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
        """Flush and close the producer."""
        self._producer.close()


def offer_of(dataset: Dataset, row: int) -> tuple[Features, list[Action] | None]:
    """Return the features of a row's context, and its actions; None if the data set has classes."""
    x, ids, blocks = dataset.row(row).x, dataset.actions(row), dataset.blocks
    if ids is None or blocks is None:
        return x, None
    x, actions = blocks.split(x)
    return x, [Action(name, own) for name, own in zip(ids, actions, strict=True)]


def resume_position(broker: Broker, topics: Topics, dataset: Dataset, options: ReplayOptions) -> int:
    """Return the first position in the replay whose event is not in the topic.

    A killed replay may have written only some of the events in its last batch. All events from the first missing event
    on are sent again, and the join drops the duplicates. After a complete replay, no event is sent again.
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
