"""One partition in a learner process: its inputs, task, journal position and next step."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import le

from consumers.learner.clock import STEP_MS, BrokerClock, shift_of
from consumers.learner.shared_model import SharedModel
from stream.kafka.port import Consumer
from stream.recovery.chunks import Stored
from stream.recovery.commit import Commit, predictions_digest
from stream.recovery.inputs import record_digest
from stream.recovery.schedule import Source
from stream.recovery.state import take
from stream.recovery.steps import JournalStep, LogStep
from stream.shared.view import View, names_max
from stream.task.carry import Models, no_models
from stream.task.changes import Changed
from stream.task.task import Effects, Task, merge
from stream.wire.codec import encode_prediction, is_framed, is_tick
from stream.wire.records import Record, TopicPartition


@dataclass(slots=True)
class Input:
    """The reading position in one partition of the contexts or feedback topic, and the records buffered from it."""

    tp: TopicPartition
    offset: int  # offset after the last applied record
    buffer: deque[Record] = field(default_factory=deque)  # records read but not yet applied
    is_paused: bool = False
    read_to: int = 0  # if above `offset`: offset of the first unapplied record; the offsets in between have no records

    def start(self, consumer: Consumer) -> None:
        """Start reading at the first unapplied record."""
        self.buffer.clear()
        self.is_paused = False
        consumer.resume((self.tp,))
        consumer.seek(self.tp, max(self.offset, self.read_to))

    def applied(self, record: Record) -> None:
        """Advance the position after a record was applied."""
        self.offset = self.read_to = record.offset + 1

    def skip(self, consumer: Consumer) -> int:
        """Skip offsets without records, and return their number."""
        if not self.buffer:
            self.read_to = max(self.read_to, consumer.position(self.tp))
        return max(0, self.read_to - self.offset)

    def pace(self, consumer: Consumer, records_max: int) -> None:
        """Pause the input while its buffer is full, so that a backlog does not exhaust memory."""
        is_full = len(self.buffer) >= records_max
        if is_full != self.is_paused:
            (consumer.pause if is_full else consumer.resume)((self.tp,))
            self.is_paused = is_full

    def lag(self, consumer: Consumer) -> int:
        """Return the number of unapplied records as of the last fetch, excluding buffered ticks."""
        return sum(not is_tick(record) for record in self.buffer) + consumer.lag(self.tp)


@dataclass(slots=True, kw_only=True)
class Partition:
    """A task and its position in its topics."""

    task: Task
    last_step: JournalStep  # the last committed step; its number is 0 before the first step
    contexts: Input
    feedback: Input
    partitions: int  # number of partitions in each input topic
    snapshots: Stored
    imported: str | None  # digest of the imported model with which the task started
    applied_at_ms: int  # host time of the last step
    moved_at_ms: int  # host time at which a tick was last written or feedback last applied
    uncommitted: Commit | None = None  # the last step, if it is not known to be committed
    reported_ms: int = -1  # stream time at which this process last reported the shared model; -1 if never
    reported_version: int = -1  # model version in the last report
    new_names: list[str] = field(default_factory=list)  # open classes added to the log since the last step
    awaited: frozenset[str] = frozenset()  # open classes written to the log but not yet read from it
    clock: BrokerClock = field(default_factory=BrokerClock)
    clock_shift_ms: int = 0  # shift for the next step; see `JournalStep`
    planned: tuple[tuple[int, int], Changed] | None = None  # the first and last offset of the due requests; the result
    logged_control: int = 0  # offset in the control topic up to which this task has written requests to the log

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.contexts.tp.partition

    @property
    def newest_step(self) -> JournalStep:
        """The task's newest step, committed or not."""
        return self.last_step if self.uncommitted is None else self.uncommitted.step

    def take(self, record: Record) -> None:
        """Add a record to its input's buffer."""
        self._input_of(record).buffer.append(record)

    def _input_of(self, record: Record) -> Input:
        return self.contexts if record.topic == self.contexts.tp.topic else self.feedback

    def needs_tick(self, records: Sequence[Record], now_ms: int, idle_ms: int) -> bool:
        """Return whether to write a tick.

        A tick is due if a decision or orphan is waiting and stream time has not advanced for `idle_ms`. No tick is
        needed if the step contains feedback, which advances stream time.
        """
        if not self.task.join.waits or now_ms - self.moved_at_ms < idle_ms:
            return False
        return all(record.topic == self.contexts.tp.topic for record in records)

    def next_due_ms(self) -> int | None:
        """Return the stream time just after the next deadline, or None if no decision or orphan is waiting.

        If the tick that sets a decision's time is still in the buffer, the deadline is computed from that tick.
        """
        join, limits = self.task.join, self.task.settings.join
        due_ms = [join.next_deadline_ms()]
        tick = next(filter(is_tick, self.feedback.buffer), None)
        if tick is not None and join.pending:
            due_ms.append(tick.append_ms - self.clock_shift_ms + limits.window_ms)
        if tick is not None and join.deferred:
            due_ms.append(tick.append_ms - self.clock_shift_ms + limits.activation_limit_ms)
        return min((one + 1 for one in due_ms if one is not None), default=None)

    def next_records(self, consumer: Consumer, records_max: int) -> list[Record]:
        """Remove and return the next records.

        Ticks stay in the buffer until one of them reaches a deadline, other records arrive, or the buffer is full.
        """
        contexts, feedback = self.contexts.buffer, self.feedback.buffer
        if not contexts and 0 < len(feedback) < records_max and all(map(is_tick, feedback)):
            due_ms = self.next_due_ms()
            if due_ms is None or feedback[-1].append_ms - self.clock_shift_ms < due_ms:
                return []
        return merge(
            contexts,
            feedback,
            contexts_lag=consumer.lag(self.contexts.tp),
            feedback_lag=consumer.lag(self.feedback.tp),
            records_max=records_max,
        )

    def hold_back(
        self, records: list[Record], names: Sequence[str], *, starts: bool
    ) -> tuple[list[Record], Sequence[str]]:
        """Return the records before the first context with a new open class, and the class names to add to the log.

        That context and all later records go back to the buffers until the log assigns an index to the class. This
        method also passes new names from the log to the task, whose next step writes them to the journal.

        Args:
            records: the next records.
            names: the names in the log so far.
            starts: whether the task takes its first step even if there are no records.
        """
        waited, self.awaited = self.awaited, frozenset()
        if records or starts or self.newest_step.number > 0:
            self._add_names(names)
        for place, record in enumerate(records):
            if record.topic == self.contexts.tp.topic and (new := self.task.new_classes(record)):
                for later in reversed(records[place:]):
                    self._input_of(later).buffer.appendleft(later)
                adds = [name for name in new if name not in waited][: names_max(self.task.learner)]
                self.awaited = waited & frozenset(new) | frozenset(adds)
                return records[:place], adds
        return records, ()

    def _add_names(self, names: Sequence[str]) -> None:
        """Pass new names of open classes from the log to the task."""
        known = self.task.classes.names or ()
        if added := names[len(known) : self.task.settings.n_classes]:
            self.task.classes.add(added)
            self.new_names += added

    def until_clock_step(self, records: list[Record], now_ms: int) -> list[Record]:
        """Return the records before the next step of the broker's clock. The other records go back to the buffers.

        If the first feedback record follows a step, the shift for this task's next step changes instead.
        """
        stream_ms, has_feedback = self.task.join.stream_ms, False
        times_ms = [record.append_ms for record in records if record.topic == self.feedback.tp.topic]
        if not times_ms or (
            all(map(le, times_ms, times_ms[1:]))
            and not self.clock.ahead_ms(times_ms[-1], now_ms)
            and times_ms[0] - self.clock_shift_ms > stream_ms - STEP_MS
        ):
            return records
        for place, record in enumerate(records):
            if record.topic == self.contexts.tp.topic:
                continue
            ahead_ms = self.clock.ahead_ms(record.append_ms, now_ms)
            shift_ms = shift_of(self.clock_shift_ms, stream_ms, record.append_ms, ahead_ms)
            if shift_ms != self.clock_shift_ms and has_feedback:
                for later in reversed(records[place:]):
                    self._input_of(later).buffer.appendleft(later)
                return records[:place]
            if shift_ms != self.clock_shift_ms:
                self.clock_shift_ms = shift_ms
                self.clock.stepped(ahead_ms)
            stream_ms, has_feedback = max(stream_ms, record.append_ms - shift_ms), True
        return records

    def idle_ticks(self, consumer: Consumer) -> list[Record]:
        """Remove and return buffered ticks, for a step without other records.

        Returns an empty list if there are unapplied contexts, because these may precede the ticks.
        """
        ticks: list[Record] = []
        if not self.contexts.buffer and consumer.lag(self.contexts.tp) == 0:
            while self.feedback.buffer and is_tick(self.feedback.buffer[0]):
                ticks.append(self.feedback.buffer.popleft())
        return ticks

    def waits_for_records(self, consumer: Consumer) -> bool:
        """Return whether buffered records from one input are waiting for unread records from the other input."""
        contexts, feedback = self.contexts, self.feedback
        if contexts.buffer:
            return not feedback.buffer and consumer.lag(feedback.tp) > 0
        return bool(feedback.buffer) and consumer.lag(contexts.tp) > 0

    def step(
        self,
        records: Sequence[Record],
        shared: SharedModel | None,
        consumer: Consumer,
        *,
        ticks: bool,
        reports: bool,
        adds: Sequence[str] = (),
        change: Changed | None = None,
        models: Models = no_models,
        logs: int = 0,
    ) -> Commit:
        """Apply records and return the step's output.

        Args:
            records: the next records. The list is empty if only a tick, a change or a snapshot is due.
            shared: the process's shared model; None if each task has its own model.
            consumer: the consumer of the inputs.
            ticks: whether to write a tick even if the step makes no decision.
            reports: whether to include the replica's digest in the journal record.
            adds: open classes to add to the shared model's log.
            change: the settings from this step on, and the requests that led to them; None if no request is due.
            models: the models with which new challengers start.
            logs: the offset in the control topic before which all requests are in force after an entry that is added to
                the shared model's log; 0 adds no entry.
        """
        task, before = self.task, self.newest_step
        number = before.number + 1
        changes = number == 1 or (change is not None and change.settings != task.settings)
        if change is not None and change.settings != task.settings:
            task.change_settings(change.settings, models)
        if change is not None and shared is not None and task.settings.open_classes:
            self._add_names(shared.replica.names)
        self.logged_control = max(self.logged_control, logs)
        contexts_from, feedback_from = self.contexts.offset, self.feedback.offset
        applied = task.join.records
        effects = task.step(records, number, self.partitions, adds, self.clock_shift_ms, logs)
        contexts_ms, framed = [], 0
        last: dict[str, Record] = {}  # the last record of each input
        for record in records:
            last[record.topic] = record
            framed += is_framed(record)
            if record.topic == self.contexts.tp.topic:
                self.contexts.applied(record)
                contexts_ms.append(record.append_ms)
            else:
                self.feedback.applied(record)
        step = JournalStep(
            number,
            (contexts_from, self.contexts.offset),
            (feedback_from, self.feedback.offset),
            task.version,
            task.join.ledger(),
            number if changes else before.settings_from,
            self.partitions,
            task.alarms,
            self._log_step(effects, before, adds, logs),
            shared.digest() if shared is not None and reports else None,
            task.settings if changes else None,
            _digest(last.get(self.contexts.tp.topic), before.last_context),
            _digest(last.get(self.feedback.tp.topic), before.last_feedback),
            self.imported if number == 1 else None,
            self.clock_shift_ms,
            before.control if change is None else change.control,
            () if change is None else change.refused,
            (self.contexts.skip(consumer), self.feedback.skip(consumer)),
        )
        if step.replica is not None:
            self.reported_ms, self.reported_version = task.join.stream_ms, task.version
        self.uncommitted = Commit(
            self.partition, step, effects, (), contexts_ms, ticks or bool(effects.predictions),
            task.join.records - applied, framed, step.clock_shift_ms != before.clock_shift_ms,
        )  # fmt: skip
        return self.uncommitted

    def committed(self, now_ms: int, appended: Mapping[TopicPartition, int], sent_ms: int) -> None:
        """Mark the last step as committed.

        Args:
            now_ms: this host's time.
            appended: the latest append time per partition of the transaction's records.
            sent_ms: this host's time before they were sent.
        """
        commit = self.uncommitted
        if commit is not None and commit.ticks:
            self.clock.ticked(appended[self.feedback.tp], sent_ms)
        if commit is not None:
            self.last_step, self.uncommitted, self.applied_at_ms = commit.step, None, now_ms
            if commit.ticks or commit.step.feedback[0] < commit.step.feedback[1]:
                self.moved_at_ms = now_ms

    def resume(self, last: JournalStep | None) -> bool:
        """Return whether the task can continue from the last step in its journal without a recovery.

        The last commit may have failed, or its outcome may be unknown. If the step is not in the journal, it will be
        committed again.
        """
        if self.uncommitted is not None:
            if last == self.uncommitted.step:
                self.last_step, self.uncommitted = last, None
            else:
                self.uncommitted = self.uncommitted._replace(snapshot=())
        return self.last_step.number == 0 if last is None else last == self.last_step

    def sources(self, shared: SharedModel | None) -> list[Source]:
        """Return the sources of this partition's snapshots: the task, once it has started, and a trained shared model.

        If the model was trained by other tasks only, this partition's task starts in order to write its snapshot.
        """
        step = self.newest_step
        sources: list[Source] = []
        if shared is not None and (step.number > 0 or shared.replica.version > 0):
            sources += shared.sources(self.partition)
        if step.number > 0:
            sources.append(
                Source(self.partition, self.snapshots, step.ledger, step.number, partial(take, self.task, step))
            )
        return sources

    def _log_step(self, effects: Effects, before: JournalStep, adds: Sequence[str], change: int) -> LogStep | None:
        """Return the step's position in the shared model's log."""
        if not isinstance(self.task.model, View):
            return None
        values = [encode_prediction(prediction, offset) for prediction, offset in effects.predictions]
        names, self.new_names = tuple(self.new_names), []
        return LogStep(
            self.task.model.offset, before.wrote, len(effects.updates), len(values), predictions_digest(values), names,
            tuple(adds), change,
        )  # fmt: skip


def _digest(record: Record | None, before: str) -> str:
    """Return the digest of an input's last applied record. If the step applied no record, `before` is unchanged."""
    return before if record is None else record_digest(record)
