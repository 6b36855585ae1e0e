"""The learner program: contexts and feedback in, through its tasks, to predictions, examples and the journal.

It moves records and time to and fro. What is decided, learned or expired is settled by the task's step.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from consumers.following import Following
from consumers.input_ends import InputEnds
from consumers.model_lag import Hold, HoldBack, ModelLag
from consumers.recovering import Recovering
from consumers.running_task import RunningTask
from consumers.snapshots import SnapshotOptions, SnapshotWriting
from consumers.starting import Found, Starting
from consumers.telling import Telling
from stream.brokers.port import (
    AccessError,
    Broker,
    BrokerError,
    Consumer,
    StaleMemberError,
    TransactionalProducer,
)
from stream.joining.task import Effects, Task, merge
from stream.joining.task_settings import TaskSettings
from stream.recovery.broker_time import BrokerTime, Portion, tolerance_ms
from stream.recovery.commit import Commit, CrashPoint, OutdatedError, commit, predictions_digest
from stream.recovery.journal import JournalStep, LogStep, Opening, SettingsChange
from stream.recovery.resolve import Given
from stream.recovery.snapshot_chunks import CHUNK_BYTES
from stream.sharing.replica import Replica
from stream.sharing.view import View
from stream.wire.codec import encode_prediction
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """How the program runs; nothing of this changes what is learned from a given order of inputs."""

    group: str = "onebit-learner"
    instance: str = "learner-1"  # the name of this process across restarts; each process has its own
    records_max: int = 2_000  # records of one transaction, at most, for each task
    step_max_ms: int = 500  # of work in one step, at most: what the last record of a backlog's step waits for
    idle_ms: int = 1_000  # with decisions waiting and nothing coming, how often the broker is asked for its time
    poll_ms: int = 100
    snapshot_interval_ms: int = 60_000  # from one snapshot of a task to the next, by the broker's time; 0: none
    snapshot_bytes_max: int = 2_000_000  # of a snapshot in one transaction: what decisions may have to wait for
    snapshot_chunk_bytes: int = CHUNK_BYTES  # of a snapshot in one record
    model_lag_max_ms: int = -1  # of a shared model: how long it may be held up and be decided on; -1: for ever
    ahead_max: int = 10_000  # decisions of a task that its shared model has not observed, at most
    dates_by_contexts: bool = False  # in virtual time: a learner that polls seldom stands for one that always polls

    @property
    def snapshots(self) -> SnapshotOptions:
        """How often snapshots are taken, and how they are cut."""
        return SnapshotOptions(self.snapshot_interval_ms, self.snapshot_bytes_max, self.snapshot_chunk_bytes)


STANDBY_MS = 10_000
"""After so long without a partition a learner says who holds them."""


class LearnerProgram:
    """One learner process: the tasks of the partitions that are assigned to it.

    The loop is `step` again and again. After a BrokerError the program must be closed and made anew: it then recovers
    from the topics, which alone know whether its last commit took place.
    """

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        settings: TaskSettings,
        options: LearnerOptions,
        host_ms: Callable[[], int],
        announce: Callable[[str], None] = lambda message: None,
        crash_point: CrashPoint = lambda number: None,
        stop: Callable[[], bool] = lambda: False,
        *,
        given: Given = None,
        change_settings: bool = False,
        committed: Callable[[Sequence[Commit]], None] = lambda commits: None,
    ) -> None:
        """Join the group; nothing is recovered or written before the first step.

        Args:
            broker: where the topics are.
            topics: the topics.
            settings: of all tasks that have not begun; for the others, see `given`.
            options: how the program runs.
            host_ms: a clock of this host, for intervals; it must run on while the machine is suspended.
            announce: is told what people should know, a line at a time.
            crash_point: see CrashPoint.
            stop: whether to stop: it is asked during a recovery, which may take long.
            given: the names of the settings that a task that has begun must have, and else is refused; None: all.
            change_settings: whether it takes the given ones over, from its next step on, where that is possible.
            committed: is told what each transaction has published.
        """
        settings.make_learner()  # refuses what cannot work before anything is read
        self._broker = broker
        self._topics = topics
        self._options = options
        self._host_ms = host_ms
        self._announce = announce
        self._crash_point = crash_point
        self._stop = stop
        self._committed = committed
        self._running: dict[int, RunningTask] = {}
        self._assigned: set[int] = set()
        self._revocations = 0  # of partitions so far: a task that is recovered meanwhile may have gone on elsewhere
        self._starting = Starting(
            broker,
            topics,
            settings,
            host_ms,
            lambda told: self._announce(told),
            given=given,
            change_settings=change_settings,
        )
        tolerated_ms = tolerance_ms(options.idle_ms, settings.join.window_ms)
        self._time = BrokerTime(host_ms, None if options.dates_by_contexts else tolerated_ms)
        work_ms = min(tolerated_ms, 2 * options.step_max_ms)
        self._portion = Portion(options.records_max, None if options.dates_by_contexts else work_ms)
        self._began_ms = 0  # to apply the records of the step that is being made, by the host's clock
        self._most_records = 0  # of one of its tasks
        self._asks = False  # whether the step that is being made is to tell the time
        self._has_asked = False  # whether the one before has told it, just now
        self._standby_since_ms: int | None = host_ms()  # without a partition; None: it has one, or has told
        self._snapshots = SnapshotWriting(broker, topics, options.snapshots, self._time)
        self._producer: TransactionalProducer = broker.transactional_producer(f"{options.group}-{options.instance}")
        self._lag = ModelLag(host_ms, options.model_lag_max_ms)
        self._hold_back = HoldBack(options.ahead_max, lambda told: self._announce(told))
        self._telling = Telling(options.instance, options.snapshot_interval_ms, self._time)
        self._consumer: Consumer = broker.group_consumer(
            options.group, options.instance, (topics.contexts, topics.feedback), self, rejoins=False
        )
        self._ends = InputEnds(broker, self._consumer, self._running)

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener: the tasks are recovered by the next step, outside of the poll, and not read before."""
        self._assigned |= {tp.partition for tp in tps}
        self._consumer.pause([tp for tp in tps if tp.partition not in self._running])

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener: every step commits before it polls again, so there is nothing left to commit."""
        for tp in tps:
            self._assigned.discard(tp.partition)
            self._revocations += 1
            self._running.pop(tp.partition, None)
            self._snapshots.give_up(tp.partition)
            self._hold_back.forget(tp.partition)
            self._starting.forget(tp.partition)

    @property
    def tasks(self) -> dict[int, Task]:
        """The tasks that run in this process, by partition."""
        return {partition: running.task for partition, running in self._running.items()}

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions of this process; their tasks run, or are being recovered."""
        return frozenset(self._assigned)

    @property
    def ready(self) -> bool:
        """Whether this process has partitions, and all of them are recovered and run."""
        return bool(self._assigned) and self._assigned <= self._running.keys()

    @property
    def broker_ms(self) -> int:
        """The broker's time, as far as this process can tell; 0 before it has heard of it."""
        return self._time.now_ms and self._time.now_ms + self._time.silent_ms

    def lag(self) -> dict[TopicPartition, int]:
        """How many records of each input are not applied; the broker is asked, between two steps."""
        self._ends.forget()
        return {
            tp: len(waiting) + max(0, self._ends.high_watermark(tp) - self._consumer.position(tp))
            for running in self._running.values()
            for tp, waiting in ((running.contexts_tp, running.contexts), (running.feedback_tp, running.feedback))
        }

    @property
    def outdated(self) -> int:
        """Decisions that stand although they are dated too long before their predictions: the broker is slow."""
        return self._time.outdated

    @property
    def replica(self) -> Replica | None:
        """The shared model, as far as this process has read its log; None: tasks have models of their own."""
        return None if self._following is None else self._following.replica

    def read_log(self, for_ms: int | None = None) -> None:
        """Read the log of a shared model to where it ends now, or for a while; decisions are made on what was read."""
        if self._following is not None:
            began_ms = self._host_ms()
            self._following.read_on(lambda offset, end: for_ms is None or self._host_ms() - began_ms < for_ms)
            self._lag.sees(self._following.ends)

    @property
    def model_hold(self) -> Hold | None:
        """The open transaction that holds up what is read of a shared model's log; None: none does."""
        return self._lag.hold

    def tell_replica(self) -> None:
        """Have the journal of a task tell the model once more, as far as its log can be read now: before the end."""
        for partition, running in [] if self._following is None else [*self._running.items()][:1]:
            running.told_ms = -1
            if commits := self._apply_to({partition: running}):
                self._commit(commits)

    @property
    def _following(self) -> Following | None:
        return self._starting.following

    def next_due_ms(self) -> int | None:
        """The broker's time at which something will be due although no record comes."""
        deadlines = [running.task.join.next_deadline_ms() for running in self._running.values()]
        due = [deadline + 1 for deadline in deadlines if deadline is not None]
        return max(min(due), self._time.heard_at_ms + self._options.idle_ms) if due else None

    def step(self, timeout_ms: int) -> int:
        """Poll once and apply what can be applied, in one transaction; how much was done.

        Raises:
            FencedError: another process has taken this one's place, or its group has thrown it out.
            AccessError: the broker does not allow what the step needs.
            BrokerError: the outcome of the commit is unknown, or the broker is away.
        """
        try:
            return self._step(timeout_ms)
        except AccessError:
            raise
        except BrokerError:
            # A process that was paused may find, when it wakes up, that nothing was answered in time or that its
            # transaction was ended. Its group knows better why, and whether it may go on.
            self._consumer.check_place()
            raise

    def _step(self, timeout_ms: int) -> int:
        asked, self._asks = self._asks, False
        # A slow broker does not answer the next question sooner; after a pause since the answer came, it does.
        self._has_asked = asked and not self._time.has_paused
        if not any(running.contexts or running.feedback for running in self._running.values()):
            self._producer.rest()
        self._read(0 if asked else timeout_ms)
        self._tell_standby()
        recovered = self._recover_assigned() if len(self._running) < len(self._assigned) else 0
        commits = self._apply_to(self._running)
        if commits and not self._commit(commits):
            return 1
        for running in self._running.values():
            self._pace(running.paused, running.contexts_tp, running.contexts)
            self._pace(running.paused, running.feedback_tp, running.feedback)
        return len(commits) + recovered

    def _apply_to(self, tasks: Mapping[int, RunningTask]) -> list[Commit]:
        """Apply what can be applied now: a step of each task that has something to do."""
        self.read_log(self._options.step_max_ms)
        self._ends.forget()
        self._began_ms, self._most_records = self._host_ms(), 0
        steps = (self._apply(partition, running) for partition, running in tasks.items())
        return [step for step in steps if step is not None]

    def _commit(self, commits: Sequence[Commit]) -> bool:
        """Publish a step; or give it up, and have its tasks recovered."""
        begin = (part.partition for part in commits if isinstance(part.before, Opening))
        if any(self._starting.is_overtaken(partition, self._running[partition]) for partition in begin):
            self._announce("a model was imported before the first step: the tasks are recovered, and begin with it")
            self._give_up(self._running)
            self._starting.follow_anew()
            self._telling.forget()
            return False
        try:
            append_ms = commit(
                self._producer, self._consumer, self._topics, commits, self._after_commit_step, self._time.accepts
            )
        except StaleMemberError as error:
            self._announce(f"the group has moved on, this step is given up and its tasks recovered: {error}")
            self._producer.abort()
            self._give_up(self._running)
            return False
        except OutdatedError as error:
            self._announce(f"{error}; this step is given up, its tasks are recovered, and it is made again")
            self._give_up(part.partition for part in commits)
            return False
        self._snapshots.finish(self._running)
        self._time.hears(append_ms)
        self._committed(commits)
        return True

    def _after_commit_step(self, number: int) -> None:
        self._crash_point(number)
        if number == 2:  # what a step sends last follows
            self._time.sends()
            if self._most_records:
                self._portion.took(self._most_records, self._host_ms() - self._began_ms)

    def _give_up(self, partitions: Iterable[int]) -> None:
        """Let tasks be recovered, which are ahead of their journals."""
        for partition in list(partitions):
            del self._running[partition]
            self._snapshots.give_up(partition)

    def _read(self, timeout_ms: int) -> None:
        for record in self._consumer.poll(timeout_ms, self._options.records_max):
            running = self._running.get(record.partition)
            if running is not None:  # else: of a task that is not recovered yet, and read again when it is
                (running.contexts if record.topic == self._topics.contexts else running.feedback).append(record)

    def _tell_standby(self) -> None:
        """Say who holds the partitions, when this member has been without one for a while."""
        if self._assigned:
            self._standby_since_ms = self._host_ms()
        elif self._standby_since_ms is not None and self._host_ms() - self._standby_since_ms >= STANDBY_MS:
            self._standby_since_ms = None
            members = self._broker.members(self._options.group)
            holders = sorted(name for name, tps in members.items() if tps) or ["nobody"]
            self._announce(
                f"no partition is assigned: {', '.join(holders)} {'holds' if len(holders) == 1 else 'hold'} them; "
                f"{self._options.instance} waits for one to be free"
            )

    def _pace(self, paused: set[TopicPartition], tp: TopicPartition, waiting: deque[Record]) -> None:
        """Read an input on only while little of it waits: else a backlog of one fills the memory before the other."""
        full = len(waiting) >= self._options.records_max
        if full and tp not in paused:
            self._consumer.pause((tp,))
            paused.add(tp)
        elif paused and not full and tp in paused:
            self._consumer.resume((tp,))
            paused.remove(tp)

    def _apply(self, partition: int, running: RunningTask) -> Commit | None:
        """Apply the records that are next, or the time that has passed without any."""
        decides = self._time.is_known and not self._lag.stops_decisions
        records = merge(
            running.contexts,
            running.feedback,
            contexts_ended=lambda: self._ends.is_read(running.contexts_tp),
            feedback_ended=lambda: self._ends.is_read(running.feedback_tp),
            records_max=self._hold_back.allowed(self._portion.records, running, self._following) if decides else 0,
        )
        asks = self._time_is_asked_for(running) or self._dates_need_time(records)
        if asks:  # and then apply them
            for record in reversed(records):
                (running.contexts if record.topic == self._topics.contexts else running.feedback).appendleft(record)
            records = []
        feedback_end_ms = self._feedback_end_ms(running, records)
        if not records and not (
            asks
            or feedback_end_ms >= 0
            or self._time_is_due(running.task)
            or self._snapshots.is_writing(partition)
            or self._snapshots.waits(partition, running)
            or self._telling.waits(running)
            or (running.number > 0 and running.task.settings != running.settings)
        ):
            return None
        self._asks |= asks
        self._most_records = max(self._most_records, len(records))
        before = self._before_next_step(running)
        effects = running.task.step(records, self._time.now_ms, feedback_end_ms, running.reading)
        contexts_from, feedback_from = running.contexts_offset, running.feedback_offset
        contexts_ms = []
        for record in records:
            if record.topic == self._topics.contexts:
                running.contexts_offset = record.offset + 1
                running.context_ms = record.append_ms
                contexts_ms.append(record.append_ms)
            else:
                running.feedback_offset = record.offset + 1
        running.number += 1
        step = JournalStep(
            running.number,
            (contexts_from, running.contexts_offset),
            (feedback_from, running.feedback_offset),
            self._time.now_ms,
            feedback_end_ms,
            running.task.updates,
            running.task.join.ledger(),
            running.settings_from,
            running.reading,
            running.task.alarms,
            _log_step(running, effects),
            self._telling.told(running, self.replica),
        )
        if step.log is not None:
            running.wrote = step.log.wrote(step.number)
        return Commit(partition, before, step, effects, self._snapshots.portion(partition, running), contexts_ms)

    @staticmethod
    def _before_next_step(running: RunningTask) -> Opening | SettingsChange | None:
        """What the journal is told before the task's next step: what it begins with, or that its settings change."""
        if running.number == 0:
            return Opening(running.task.settings, running.imported)
        if running.task.settings == running.settings:
            return None
        running.task.change_settings(running.settings)
        running.settings_from = running.number + 1
        return SettingsChange(running.settings_from, running.task.settings)

    def _feedback_end_ms(self, running: RunningTask, records: Sequence[Record]) -> int:
        """The time that passes when the step's records are applied; -1: none but theirs.

        It passes where it makes something due, and the feedback is read to its end.
        """
        now_ms, deadline_ms = self._time.now_ms, running.task.join.next_deadline_ms()
        if deadline_ms is None or deadline_ms >= now_ms or running.feedback:
            return -1
        feedback = (record for record in reversed(records) if record.topic == self._topics.feedback)
        if any(record.append_ms > deadline_ms for record in feedback) or not self._ends.is_all_read(
            running.feedback_tp
        ):
            return -1
        passed_ms = min(now_ms, self._contexts_passed_ms(running))
        return passed_ms if passed_ms > deadline_ms else -1

    def _contexts_passed_ms(self, running: RunningTask) -> int:
        """A time before which no context is still to be applied.

        Time does not pass beyond it: feedback that waits for a context would be dropped while the context stands in a
        backlog, and matched had the learner read it earlier.
        """
        if running.contexts:
            return running.contexts[0].append_ms
        return self._time.now_ms if self._ends.is_all_read(running.contexts_tp) else running.context_ms

    def _time_is_due(self, task: Task) -> bool:
        """Whether a step without records is needed to learn what time it is."""
        return task.join.next_deadline_ms() is not None and self._time.silent_ms >= self._options.idle_ms

    def _time_is_asked_for(self, running: RunningTask) -> bool:
        """Whether records wait for the time to be known, or deadlines that may have passed before the recovery."""
        if self._time.is_known:
            return False
        return bool(running.contexts or running.feedback) or running.task.join.next_deadline_ms() is not None

    def _dates_need_time(self, records: Sequence[Record]) -> bool:
        """Whether these would be decided at a time that may be long ago; what a question has just brought is not."""
        if self._has_asked or not self._time.may_be_old():
            return False
        return any(record.topic == self._topics.contexts for record in records)

    def _recover_assigned(self) -> int:
        """Recover the tasks that are assigned but do not run yet, and read on where they stand; how many."""
        recovered_count = 0
        for partition in sorted(self._assigned - self._running.keys()):
            # A recovery before this one has polled, and may have heard that this one is another's now.
            if partition not in self._assigned or self._starting.is_held_up(partition):
                continue
            revocations = self._revocations
            recovering = Recovering(partition, self._host_ms, self._announce, self._stop, lambda: self._read(0))
            found = self._starting.recover(partition, recovering)
            recovered_count += found is not None
            if self._revocations != revocations:
                self._starting.forget(partition)
            elif found is not None:
                self._start(partition, found)
        return recovered_count

    def _start(self, partition: int, found: Found) -> None:
        running = self._starting.running(partition, found)
        if self._following is not None and found.model_stored is not None:
            self._snapshots.begin_model(self._following, found.model_stored)
        self._snapshots.make_room(running.task)
        self._time.forget()
        self._consumer.resume((running.contexts_tp, running.feedback_tp))
        self._consumer.seek(running.contexts_tp, running.contexts_offset)
        self._consumer.seek(running.feedback_tp, running.feedback_offset)
        self._running[partition] = running
        self._starting.tell(partition, found.recovered, running)

    def close(self) -> None:
        """Leave the group and release the connections; steps that were not committed are lost with this object."""
        try:
            self._producer.close()
        finally:
            self._consumer.close()
            if self._following is not None:
                self._following.close()


def _log_step(running: RunningTask, effects: Effects) -> LogStep | None:
    """What the journal says of a step on a shared model."""
    if not isinstance(running.task.view, View):
        return None
    values = [encode_prediction(prediction, offset) for prediction, offset in effects.predictions]
    return LogStep(
        running.task.view.offset, running.wrote, len(effects.updates), len(values), predictions_digest(values)
    )
