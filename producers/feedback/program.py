"""The feedback program, which simulates the environment by sending delayed feedback for predictions.

For a data set with labels, every prediction gets feedback. For a log, a prediction gets feedback only if its action is
the logged action or the log contains the true class.

Delivery is at least once. The program stores no record of sent feedback. It commits an offset in the predictions topic
only after the feedback for all earlier predictions has been sent. After a restart, it resumes from that offset. The
join drops duplicates.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from producers.datasets.base import Known, UnknownEventError
from stream.kafka.port import Broker, StaleMemberError
from stream.randomness.delays import FeedbackPlan
from stream.wire import codec
from stream.wire.codec import MalformedError
from stream.wire.dead_letters import DEAD_LETTER_MALFORMED, encode_dead_letter
from stream.wire.records import Feedback, Record, TopicPartition, make
from stream.wire.rewards import FeedbackRule
from stream.wire.topics import Topics
from stream.wire.typed_fields import PredictionFields


class _Due(NamedTuple):
    """A scheduled feedback record. A heap orders the records by time, then by arrival."""

    due_ms: int
    sequence: int
    partition: int
    offset: int  # position of the prediction
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class FeedbackOptions:
    """The program's options."""

    group: str = "onebit-feedback"
    instance: str = "feedback-1"  # name of this process, unique and constant across restarts
    with_label: bool = False  # include the true class, for full-information baselines
    speed: float = 1.0  # factor by which a log's delays are divided
    rule: FeedbackRule = "first"  # how the pipeline combines feedback; each decision gets only one reward
    records_max: int = 5_000  # maximum number of predictions per poll
    waiting_max: int = 1_000_000  # limit on scheduled feedback; at the limit, no predictions are read
    commit_interval_ms: int = 1_000


class FeedbackProgram:
    """A feedback process. Call `step` repeatedly."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        known_of: Callable[[str], Known],
        plan: FeedbackPlan,
        options: FeedbackOptions,
        now_ms: Callable[[], int],
        *,
        on_append_time: Callable[[int], None] = lambda append_ms: None,
        observe: Callable[[PredictionFields, Known, int], None] = lambda prediction, known, decided_ms: None,
        decided_ms: Callable[[PredictionFields, Record], int] = lambda prediction, record: record.append_ms,
        announce: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Join the consumer group.

        Args:
            broker: The broker for predictions and feedback.
            topics: The topic names.
            known_of: Returns the known outcome for an event id. It raises UnknownEventError if the data set does not
            contain the event.
            plan: Determines the number and the delays of each event's feedback records.
            options: See FeedbackOptions.
            now_ms: Returns the estimated broker time.
            on_append_time: Called with every append time, to estimate the broker time.
            observe: Called with every prediction, its known outcome, and the decision time.
            decided_ms: Returns the decision time, from which delays are measured. The default is the prediction's
            append time.
            announce: Called with messages for the user.
        """
        self._broker = broker
        self._topics = topics
        self._known_of = known_of
        self._plan = plan
        self._options = options
        self._now_ms = now_ms
        self._on_append_time = on_append_time
        self._observe = observe
        self._decided_ms = decided_ms
        self._announce = announce
        self._sequence = 0
        self._untimed = 0  # number of logged outcomes without a time
        self._paused = False
        self._due: list[_Due] = []  # a heap
        # Number of unsent feedback records, by partition and offset of the prediction.
        self._unsent: dict[int, OrderedDict[int, int]] = {}
        self._committed_at_ms = now_ms()
        self._acknowledged = True  # whether all sent records have been acknowledged
        self._producer = broker.producer()
        self._consumer = broker.group_consumer(options.group, options.instance, (topics.predictions,), self)

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """See `RebalanceListener.on_assigned`."""
        self._paused = False
        for tp, first in self._broker.beginnings(sorted(tps)).items():
            self._unsent[tp.partition] = OrderedDict()
            offset = self._consumer.position(tp)
            if offset < first:
                self._announce(
                    f"{tp}: predictions at offsets {offset} to {first - 1} have been deleted, so "
                    "their decisions receive no feedback and expire. Increase the topic's retention.ms"
                )
                self._consumer.seek(tp, first)

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """See `RebalanceListener.on_revoked`. The new owner continues from the committed offset."""
        revoked = {tp.partition for tp in tps}
        for partition in revoked:
            self._unsent.pop(partition, None)
        self._due = [due for due in self._due if due.partition not in revoked]
        heapq.heapify(self._due)

    def next_due_ms(self) -> int | None:
        """Return the time of the next feedback, or None if none is scheduled."""
        return self._due[0].due_ms if self._due else None

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions assigned to this process."""
        return frozenset(self._unsent)

    @property
    def waiting(self) -> int:
        """The number of scheduled feedback records."""
        return len(self._due)

    def step(self, timeout_ms: int) -> int:
        """Read new predictions, send the feedback that is due, and return the number of records sent.

        Raises:
            FencedError: another process with the same instance name has started.
            BrokerUnavailableError: the broker is unavailable. Create the program again.
        """
        self._pace()
        records = self._consumer.poll(timeout_ms, self._options.records_max)
        for record in records:
            self._take(record)
        if records:
            self._on_append_time(records[-1].append_ms)
        now_ms = self._now_ms()
        sent = self._send_due(now_ms) if self._due and self._due[0].due_ms <= now_ms else 0
        if sent:
            self._acknowledged = False
            self._on_append_time(max(self._producer.flush().values()))
            self._acknowledged = True
            now_ms = self._now_ms()
        if now_ms - self._committed_at_ms >= self._options.commit_interval_ms:
            self._committed_at_ms = now_ms
            self._producer.flush()  # dead letters must be written before the offsets of their predictions are committed
            self.commit()
        return sent

    def _pace(self) -> None:
        """Pause the consumption of predictions while too much feedback is scheduled.

        Polling continues, so that the process stays in the group.
        """
        full = len(self._due) >= self._options.waiting_max
        if full != self._paused:
            self._paused = full
            (self._consumer.pause if full else self._consumer.resume)(self._consumer.assignment())

    def commit(self) -> None:
        """Commit offsets up to the first unsent feedback record. Skip the commit if a rebalance has begun."""
        offsets = {}
        for partition, unsent in self._unsent.items():
            tp = TopicPartition(self._topics.predictions, partition)
            offsets[tp] = next(iter(unsent)) if unsent else self._consumer.position(tp)
        if offsets:
            with suppress(StaleMemberError):  # the next poll returns the new assignment
                self._consumer.commit(offsets)

    def _take(self, record: Record) -> None:
        try:
            prediction = codec.decode_prediction_fields(record)
            event_id = prediction.id
            known = self._known_of(event_id)
        except (MalformedError, UnknownEventError) as error:
            self._refuse(record, str(error))
            return
        decided_ms = self._decided_ms(prediction, record)
        self._observe(prediction, known, decided_ms)
        reward = known.reward_of(prediction.action)
        logged_ms = None if known.delay_ms is None else int(known.delay_ms / self._options.speed)
        delays_ms = self._plan(event_id, known.label, logged_ms)
        if reward is not None and self._plan.delay is None and logged_ms is None:
            self._untimed += 1
            if self._untimed == 1:
                self._announce(
                    f"the log has an outcome without a time for {event_id}; such decisions receive no feedback "
                    "and expire. Set a delay, for example fixed:10s"
                )
        if reward is None or not delays_ms:
            return
        rule, label = self._options.rule, known.label if self._options.with_label else None
        part = event_id if rule == "sum" else None
        value = codec.encode_feedback(make(Feedback, (event_id, reward, label, None, part, rule != "first")))
        partition, offset, key = record.partition, record.offset, record.key or event_id.encode()
        self._unsent[partition][offset] = len(delays_ms)
        for delay_ms in delays_ms:
            self._sequence += 1
            due_ms = decided_ms + delay_ms
            heapq.heappush(self._due, make(_Due, (due_ms, self._sequence, partition, offset, key, value)))

    def _send_due(self, now_ms: int) -> int:
        due, send, topic, sent = self._due, self._producer.send, self._topics.feedback, 0
        while due and due[0].due_ms <= now_ms:
            _, _, partition, offset, key, value = heapq.heappop(due)
            send(topic, partition, key, value, codec.HEADERS)
            sent += 1
            unsent = self._unsent[partition]
            if unsent[offset] > 1:
                unsent[offset] -= 1
            else:
                del unsent[offset]
        return sent

    def _refuse(self, record: Record, reason: str) -> None:
        letter = encode_dead_letter(record, DEAD_LETTER_MALFORMED, reason)
        self._producer.send(self._topics.dead_letter, record.partition, *letter)

    def close(self) -> None:
        """Commit offsets up to the first unsent feedback record and leave the group.

        After a failed flush, nothing is committed, because feedback records may be missing. They are sent again after
        the next start.
        """
        try:
            self._producer.close()
            if self._acknowledged:
                self.commit()
        finally:
            self._consumer.close()
