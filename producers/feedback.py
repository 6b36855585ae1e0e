"""The feedback program: the environment, which knows the labels, answers every prediction, late.

Of a log it knows the bit of the action that was played then, and answers a prediction of that one; where the log has
the true class, any.

It writes at least once. What it has sent is not written down anywhere: it commits an offset of the predictions only
when all feedback before it is sent, and after a restart answers again from there. The join drops what comes twice.
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
from stream.wire.events import Answer, Feedback
from stream.wire.records import Record, TopicPartition, make
from stream.wire.topics import Topics


class _Due(NamedTuple):
    """Feedback that waits to be sent; in a heap, which orders it by its time, and then as it came."""

    due_ms: int
    sequence: int
    partition: int
    offset: int  # of the prediction that it answers
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class FeedbackOptions:
    """How the program runs."""

    group: str = "onebit-feedback"
    instance: str = "feedback-1"  # the name of this process across restarts; each process has its own
    with_label: bool = False  # tell the true class too, for full-information baselines
    speed: float = 1.0  # of a log's time: its delays are shorter by this factor
    records_max: int = 5_000  # predictions taken in one poll
    waiting_max: int = 1_000_000  # feedback waiting to be sent; beyond it no predictions are read
    commit_interval_ms: int = 1_000


class FeedbackProgram:
    """One feedback process. The loop is `step` again and again."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        known_of: Callable[[str], Known],
        plan: FeedbackPlan,
        options: FeedbackOptions,
        now_ms: Callable[[], int],
        *,
        heard: Callable[[int], None] = lambda append_ms: None,
        observe: Callable[[Answer, Known, int], None] = lambda answer, known, decided_ms: None,
        decided_ms: Callable[[Answer, Record], int] = lambda answer, record: record.append_ms,
        announce: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Join the group.

        Args:
            broker: where predictions come from and feedback goes to.
            topics: their names.
            known_of: what is known of the outcome of an event id; raises UnknownEventError when the data set does not
                hold it.
            plan: how often and how late each event's feedback is sent.
            options: see FeedbackOptions.
            now_ms: the broker's time, as far as this process can tell.
            heard: told every append time that comes by, so that the caller can tell the broker's time.
            observe: receives every prediction, what is known of its outcome, and the time of the decision.
            decided_ms: the time of a decision, from which delays count; by default its prediction's append time.
            announce: told what people should know.
        """
        self._broker = broker
        self._topics = topics
        self._known_of = known_of
        self._plan = plan
        self._options = options
        self._now_ms = now_ms
        self._heard = heard
        self._observe = observe
        self._decided_ms = decided_ms
        self._announce = announce
        self._sequence = 0
        self._untimed = 0  # outcomes of a log without their times
        self._paused = False
        self._due: list[_Due] = []  # a heap
        # For each partition the predictions whose feedback is not all sent, with the number still to be sent.
        self._unsent: dict[int, OrderedDict[int, int]] = {}
        self._committed_at_ms = now_ms()
        self._acknowledged = True  # whether all that was sent is known to be in the topic
        self._producer = broker.producer()
        self._consumer = broker.group_consumer(options.group, options.instance, (topics.predictions,), self)

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener."""
        self._paused = False
        for tp, first in self._broker.beginnings(sorted(tps)).items():
            self._unsent[tp.partition] = OrderedDict()
            offset = self._consumer.position(tp)
            if offset < first:
                self._announce(
                    f"{tp.topic}/{tp.partition}: the predictions at offsets {offset} to {first - 1} are no longer kept "
                    "and are not answered, so that their decisions expire; keep the predictions for longer"
                )
                self._consumer.seek(tp, first)

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener: whoever gets these partitions answers from the committed offset on."""
        revoked = {tp.partition for tp in tps}
        for partition in revoked:
            self._unsent.pop(partition, None)
        self._due = [due for due in self._due if due.partition not in revoked]
        heapq.heapify(self._due)

    def next_due_ms(self) -> int | None:
        """When the next feedback is to be sent."""
        return self._due[0].due_ms if self._due else None

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions whose predictions this process answers."""
        return frozenset(self._unsent)

    @property
    def waiting(self) -> int:
        """Feedback that is still to be sent."""
        return len(self._due)

    def step(self, timeout_ms: int) -> int:
        """Take in new predictions and send what is due; the number of feedback records sent.

        Raises:
            FencedError: another process has taken this one's place.
            BrokerUnavailableError: the broker is away; to be made anew.
        """
        self._pace()
        records = self._consumer.poll(timeout_ms, self._options.records_max)
        for record in records:
            self._take(record)
        if records:
            self._heard(records[-1].append_ms)
        now_ms = self._now_ms()
        sent = self._send_due(now_ms) if self._due and self._due[0].due_ms <= now_ms else 0
        if sent:
            self._acknowledged = False
            self._heard(self._producer.flush())
            self._acknowledged = True
            now_ms = self._now_ms()
        if now_ms - self._committed_at_ms >= self._options.commit_interval_ms:
            self._committed_at_ms = now_ms
            self._producer.flush()  # dead letters too are written before their predictions count as done
            self.commit()
        return sent

    def _pace(self) -> None:
        """Read no more predictions while too much waits to be sent; polling goes on, to stay in the group."""
        full = len(self._due) >= self._options.waiting_max
        if full != self._paused:
            self._paused = full
            (self._consumer.pause if full else self._consumer.resume)(self._consumer.assignment())

    def commit(self) -> None:
        """Commit how far all feedback has been sent; after a rebalance it is for the next owner to do."""
        offsets = {}
        for partition, unsent in self._unsent.items():
            tp = TopicPartition(self._topics.predictions, partition)
            offsets[tp] = next(iter(unsent)) if unsent else self._consumer.position(tp)
        if offsets:
            with suppress(StaleMemberError):  # the next poll brings the new assignment, from the last commit on
                self._consumer.commit(offsets)

    def _take(self, record: Record) -> None:
        try:
            answer = codec.decode_answer(record)
            event_id = answer.id
            known = self._known_of(event_id)
        except (MalformedError, UnknownEventError) as error:
            self._refuse(record, str(error))
            return
        decided_ms = self._decided_ms(answer, record)
        self._observe(answer, known, decided_ms)
        reward = known.bit(answer.action)
        logged_ms = None if known.delay_ms is None else int(known.delay_ms / self._options.speed)
        delays_ms = self._plan(event_id, known.label, logged_ms)
        if reward is not None and self._plan.delay is None and logged_ms is None:
            self._untimed += 1
            if self._untimed == 1:
                self._announce(
                    f"the log has the outcome of {event_id} and not its time: such decisions get no feedback and "
                    "expire; give a model of the delay"
                )
        if reward is None or not delays_ms:
            return
        value = codec.encode_feedback(
            make(Feedback, (event_id, reward, known.label if self._options.with_label else None, None))
        )
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
        """Commit how far all feedback has been sent, and leave the group.

        After a flush that failed nothing is committed: what it was to write may not be there, and is answered again.
        """
        try:
            self._producer.close()
            if self._acknowledged:
                self.commit()
        finally:
            self._consumer.close()
