"""The learner program, which polls, applies and commits records for all of a process's partitions.

The program only transfers records between Kafka and the tasks. Decisions, updates and expiries are determined by the
tasks, and depend only on the records.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from consumers.learner.partition import Partition
from consumers.learner.recovery import Parked, Recoveries
from consumers.learner.shared_model import Hold, SharedModel
from consumers.learner.tracing import StepTracing
from stream.kafka.port import (
    FETCH_WAIT_MS,
    AccessError,
    Broker,
    BrokerError,
    Member,
    StaleMemberError,
    TransactionalProducer,
)
from stream.recovery.chunks import CHUNK_BYTES, MODEL_PARTITION
from stream.recovery.commit import Commit, CrashPoint, commit
from stream.recovery.control import ControlFollower
from stream.recovery.inputs import check_unchanged
from stream.recovery.schedule import SnapshotSchedule
from stream.recovery.state import Spare
from stream.shared.replica import Replica
from stream.shared.view import View
from stream.task.carry import carries
from stream.task.changes import Changed, shown_changes
from stream.task.settings import TaskSettings
from stream.task.stored_settings import Given, differences, stored_settings
from stream.task.task import Task
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """The program's options. They do not affect the model, provided that the inputs and their order are the same."""

    group: str = "onebit-learner"
    instance: str = "learner-1"  # this process's unique name, which it keeps across restarts
    records_max: int = 2_000  # limit on records per task in one transaction
    step_max_ms: int = 500  # limit on a step's duration, which bounds the latency during a backlog
    idle_ms: int = 1_000  # interval between ticks while decisions or orphans are waiting and no feedback arrives
    snapshot_interval_ms: int = 60_000  # stream time between a task's snapshots; 0 means no snapshots
    snapshot_bytes_max: int = 2_000_000  # limit on snapshot bytes per transaction, to bound decision latency
    snapshot_chunk_bytes: int = CHUNK_BYTES  # limit on snapshot bytes per record
    model_lag_max_ms: int = -1  # time for which the log can be blocked before decisions stop; -1: no limit
    ahead_max: int = 10_000  # maximum number of a task's decisions that the shared model has not observed yet
    keep_ms: int = -1  # the topics' retention when the program starts; -1: unlimited


NAMES_POLL_MS = 5
"""Maximum duration of a poll while a partition waits for the names of new classes."""

BLOCKED_MS = 1_000
"""Age of an open transaction in the log after which polls are no longer shortened."""

STANDBY_MS = 10_000
"""Time that a learner spends without a partition before it logs which members have partitions."""

CATCH_UP_POLLS = 10
"""Maximum number of polls before the last snapshot."""

PORTION_RECORDS = 250
"""Number of records per task in the first step. Most learners process this many records in a few milliseconds."""


class Portion:
    """The number of records per task in a step. It grows during a backlog, as long as steps remain short enough."""

    def __init__(self, records_max: int, work_max_ms: int) -> None:
        self.records = min(records_max, PORTION_RECORDS)
        self._records_max = records_max
        self._work_max_ms = work_max_ms

    def took(self, records: int, ms: int) -> None:
        """Adjust the number of records after a step that applied up to `records` records per task.

        The step took `ms` milliseconds, excluding broker requests.
        """
        if ms > self._work_max_ms:
            self.records = max(1, min(records, self.records) // 2)
        elif records >= self.records and ms <= self._work_max_ms / 4:
            self.records = min(self._records_max, 2 * self.records)


class StepReason(Enum):
    """The reason for a step."""

    RECORDS = auto()  # records to apply
    NEW_CLASSES = auto()  # open classes to add to the shared model's log, or added to it since the last step
    TICK = auto()  # decisions or orphans wait, and no feedback arrives
    REQUEST = auto()  # a request to change the settings
    REPORT = auto()  # the replica's digest is due in the journal of a task that has started
    SNAPSHOT = auto()  # a snapshot is due or in progress
    TIME = auto()  # the broker's time is unknown, so it is unknown whether a snapshot must be renewed


class LearnerProgram:
    """A learner process with the tasks for its assigned partitions.

    Call `step` in a loop. After a BrokerError, close this program and pass the result of its `park` method to a new
    program. A task resumes if its journal has no newer step; otherwise, it is recovered from the topics.
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
        begin: Changed | None = None,
        is_prepared: Callable[[TaskSettings], bool] = lambda settings: True,
        committed: Callable[[Sequence[Commit]], None] = lambda commits: None,
        tracing: StepTracing | None = None,
        parked: Parked | None = None,
    ) -> None:
        """Join the group. Recovery and writing begin with the first step.

        Args:
            broker: the broker.
            topics: the pipeline's topics.
            settings: the user's settings, and those for new tasks. For tasks that have already started, see `given`.
            options: the program's options.
            host_ms: this host's clock, used to measure intervals. It must keep running while the machine is suspended.
            announce: called with each log message.
            crash_point: see CrashPoint.
            stop: returns True to stop the program. Called repeatedly during a recovery, which can take a long time.
            given: names of the settings that the user set; None means all settings. If a task has different values for
                these settings, also after all requests to change them, recovery fails.
            begin: settings for new tasks, and the requests that they include; None means `settings`, and none.
            is_prepared: returns whether the kernels for other learners are compiled. Until then, no task changes to
                settings with these learners.
            committed: called with each transaction's output.
            tracing: creates the spans of steps; None means that there are none.
            parked: the result of the previous program's `park` method.
        """
        settings.make_learner()  # reject invalid settings before anything is read
        self._broker = broker
        self._topics = topics
        self._options = options
        self._host_ms = host_ms
        self._announce = announce
        self._crash_point = crash_point
        self._committed = committed
        self._tracing = tracing
        self._is_prepared = is_prepared
        self._running: dict[int, Partition] = {}
        self._assigned: set[int] = set()
        self._append_ms, self._append_at_ms = 0, host_ms()  # append time and host time of the last commit
        self._portion = Portion(options.records_max, options.step_max_ms)
        # Host time at which this process last had a partition; None after `_announce_standby` has logged its message.
        self._standby_since_ms: int | None = host_ms()
        self._snapshots = SnapshotSchedule(
            options.snapshot_interval_ms, options.snapshot_bytes_max, options.snapshot_chunk_bytes
        )
        self.keep(options.keep_ms)
        self._control = ControlFollower(broker, topics)
        parked = parked or Parked()
        if parked.shared is not None:
            parked.shared.reconnect(broker, self._settings_after, self._control.requests.model)
        make_shared = partial(
            SharedModel, broker, topics, settings_after=self._settings_after, models=self._control.requests.model,
            host_ms=host_ms, announce=lambda message: self._announce(message), instance=options.instance,
            lag_max_ms=options.model_lag_max_ms, ahead_max=options.ahead_max,
        )  # fmt: skip
        self._recoveries = Recoveries(
            broker=broker, topics=topics, settings=settings, given=given, begin=begin,
            host_ms=host_ms, announce=lambda message: self._announce(message), stop=stop, make_shared=make_shared,
            group=options.group, parked=parked,
        )  # fmt: skip
        self._producer: TransactionalProducer = broker.transactional_producer(f"{options.group}-{options.instance}")
        self._consumer: Member = broker.group_consumer(
            options.group, options.instance, (topics.contexts, topics.feedback), self, rejoins=False
        )

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener.

        This method runs within a poll, so the next step starts the tasks and reads their partitions. If retention has
        deleted the record at a committed offset, the recovery reports what is missing.
        """
        for tp, beginning in self._broker.beginnings(sorted(tps)).items():
            if self._consumer.position(tp) < beginning:
                self._consumer.seek(tp, beginning)
        self._assigned |= {tp.partition for tp in tps}
        self._consumer.pause([tp for tp in tps if tp.partition not in self._running])

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener.

        Every step commits before the next poll, so there is no uncommitted work at this point.
        """
        for tp in tps:
            self._assigned.discard(tp.partition)
            self._recoveries.forget(tp.partition)
        self._park({tp.partition for tp in tps})

    @property
    def tasks(self) -> dict[int, Task]:
        """This process's running tasks, keyed by partition."""
        return {partition: running.task for partition, running in self._running.items()}

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions assigned to this process; their tasks are running or being recovered."""
        return frozenset(self._assigned)

    @property
    def ready(self) -> bool:
        """Whether this process has partitions and all of their tasks are running."""
        return bool(self._assigned) and self._assigned <= self._running.keys()

    @property
    def broker_ms(self) -> int:
        """The broker's time, for metrics; 0 before the first commit.

        It is the last append time plus the time that has passed since that commit.
        """
        return self._append_ms and self._append_ms + self._host_ms() - self._append_at_ms

    @property
    def clock_shifts_ms(self) -> dict[int, int]:
        """The time that each partition subtracts from append times, because its broker's clock was set."""
        return {partition: running.clock_shift_ms for partition, running in self._running.items()}

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of unapplied records in each input, as of the last fetch."""
        return {
            each.tp: each.lag(self._consumer)
            for running in self._running.values()
            for each in (running.contexts, running.feedback)
        }

    @property
    def shared(self) -> SharedModel | None:
        """This process's shared model, or None if each task has its own model."""
        return self._recoveries.parked.shared

    @property
    def replica(self) -> Replica | None:
        """The replica of the shared model, at this process's position in the log."""
        return None if self.shared is None else self.shared.replica

    @property
    def model_hold(self) -> Hold | None:
        """The open transaction that blocks the shared model's log, or None."""
        return None if self.shared is None else self.shared.hold

    def check_inputs(self) -> None:
        """Check that the inputs still contain the last records that this process's tasks have applied.

        Call this method when a partition has a new leader, which may have lost records.

        Raises:
            UnrecoverableError: an input was truncated or recreated.
        """
        steps = {partition: running.last_step for partition, running in self._running.items()}
        check_unchanged(self._broker, self._topics, steps)

    def read_log(self, for_ms: int | None = None) -> None:
        """Read the shared model's log to its current end, for at most `for_ms` milliseconds.

        Later decisions use the updated model.
        """
        if self.shared is not None:
            began_ms = self._host_ms()
            for _ in self.shared.read_on():
                if for_ms is not None and self._host_ms() - began_ms >= for_ms:
                    break

    def keep(self, keep_ms: int) -> None:
        """Set the topics' retention, within which snapshots are renewed; -1 means unlimited."""
        self._snapshots.keep(keep_ms)

    def finish(self, limit_ms: int) -> None:
        """Apply the records that were read, report the shared model, and write a last snapshot of each task and model.

        Call this before the program ends. The pipeline can then be recovered even if its topics' retention deletes the
        whole journal. If the time limit is exceeded, recovery needs the journal after the newest complete snapshot.
        """
        began_ms = self._host_ms()
        if self.shared is not None and self._running:
            next(iter(self._running.values())).reported_ms = -1
        for closes in (False, True):
            if closes:
                self._catch_up()
                self._snapshots.close()
            while self._host_ms() - began_ms < limit_ms and (commits := self._apply_to(self._running)):
                if not self._commit(commits):
                    return

    def _catch_up(self) -> None:
        """Poll a few times, to read this process's last ticks and their transactions' markers."""
        for _ in range(CATCH_UP_POLLS):
            self._poll(FETCH_WAIT_MS)
            ends = self._broker.ends(sorted(self._consumer.assignment()))
            if all(self._consumer.position(tp) >= end.high_watermark for tp, end in ends.items()):
                return

    def next_due_ms(self) -> int | None:
        """Return the time at which the next step is due even if no records arrive.

        Assumes that the host's and the broker's clocks agree.
        """
        due = [due_ms for running in self._running.values() if (due_ms := running.next_due_ms()) is not None]
        return max(min(due), self._append_at_ms + min(map(self._idle_ms_of, self._running.values()))) if due else None

    def step(self, timeout_ms: int) -> int:
        """Poll once and apply the available records in one transaction. Return 0 if there was no work.

        Raises:
            FencedError: another process has replaced this one, or the group has removed this member.
            AccessError: the broker does not permit one of the step's operations.
            MovedError: the pipeline was moved to other topics.
            BrokerError: the outcome of the commit is unknown, or the broker is unavailable.
        """
        try:
            return self._step(timeout_ms)
        except BrokerError as error:
            # After a pause, requests may have timed out, or the transaction may have been aborted. The group then
            # reports whether another process has taken this process's place.
            if not isinstance(error, AccessError):
                self._consumer.check_place()
            raise

    def park(self) -> Parked:
        """Return the state from which a new program in this process can resume after this program is closed."""
        self._park(set(self._running))
        return self._recoveries.parked

    def close(self) -> None:
        """Leave the group and release the connections."""
        try:
            self._producer.close()
        finally:
            self._consumer.close()
            self._control.close()
            if self.shared is not None:
                self.shared.close()

    def _step(self, timeout_ms: int) -> int:
        if self._awaits_names():
            timeout_ms = min(timeout_ms, NAMES_POLL_MS)
        is_recovering = self._recoveries.worked and len(self._running) < len(self._assigned)
        self._poll(0 if is_recovering else timeout_ms)
        self._announce_standby()
        for running in self._recoveries.advance(sorted(self._assigned - self._running.keys())):
            self._start(running)
        if self._assigned:
            self._recoveries.drop_parked(self._assigned)
        recovered = self._recoveries.worked
        commits = self._apply_to(self._running)
        if commits and not self._commit(commits):
            return 1
        for running in self._running.values():
            running.contexts.pace(self._consumer, self._options.records_max)
            running.feedback.pace(self._consumer, self._options.records_max)
        if commits or recovered:
            return len(commits) + recovered
        return sum(running.waits_for_records(self._consumer) for running in self._running.values())

    def _awaits_names(self) -> bool:
        """Return whether a partition is waiting for names that are about to appear in the shared model's log."""
        hold = self.model_hold
        is_blocked = hold is not None and hold.for_ms > BLOCKED_MS
        return not is_blocked and any(running.awaited for running in self._running.values())

    def _poll(self, timeout_ms: int) -> None:
        for record in self._consumer.poll(timeout_ms, self._options.records_max):
            running = self._running.get(record.partition)
            if running is not None:  # without a running task, the record is skipped here and read again later
                running.take(record)

    def _start(self, running: Partition) -> None:
        task, snapshots = running.task, self._snapshots
        if snapshots.interval_ms and snapshots.spare is None and task.settings.model == "own":
            # allocate the memory before the first snapshot is due
            snapshots.spare = Spare(stored_settings(task.settings), task.learner.state())
        running.contexts.start(self._consumer)
        running.feedback.start(self._consumer)
        self._running[running.partition] = running

    def _apply_to(self, tasks: Mapping[int, Partition]) -> list[Commit]:
        """Run a step for each task that has work to do."""
        self.read_log(self._options.step_max_ms)
        self._control.read()
        self._control.requests.check_not_moved(self._topics)
        began_ms, records_most = self._host_ms(), 0
        commits = []
        for running in tasks.values():
            step = running.uncommitted or self._apply(running)
            if step is not None:
                commits.append(step)
                records_most = max(records_most, step.records)
        if records_most:
            self._portion.took(records_most, self._host_ms() - began_ms)
        return commits

    def _apply(self, running: Partition) -> Commit | None:
        """Apply the next records, or run a step without records if one is due."""
        shared = self.shared if running.task.settings.model == "shared" else None
        change, is_behind = self._change_of(running, shared), self._is_behind(running, shared)
        if is_behind and change is None:
            return None
        records, logs = list[Record](), 0
        adds: Sequence[str] = ()
        silent_ms = self._host_ms() - running.applied_at_ms
        if not is_behind:
            records_max = self._portion.records
            if shared is not None and isinstance(running.task.model, View):
                records_max = min(records_max, shared.room(running.partition, running.task.model))
            records, logs = running.next_records(self._consumer, records_max), self._logs(running, shared)
            if shared is not None and running.task.settings.open_classes:
                starts = logs > 0 or self._starts_for_model(running, shared, silent_ms)
                records, adds = running.hold_back(records, shared.replica.names, starts=starts)
        # An idle task needs a tick for each renewal, so that stream time advances and settled ids are forgotten.
        renews = not records and self._snapshots.renews(running.sources(shared), self.broker_ms)
        ticks = renews or running.needs_tick(records, self._host_ms(), self._idle_ms_of(running))
        reports = shared is not None and self._report_is_due(running, shared, silent_ms)
        is_requested = logs > 0 or (change is not None and (is_behind or running.newest_step.number > 0))
        reason = self._step_reason(
            running, shared, silent_ms, records, adds, ticks=ticks, is_requested=is_requested, reports=reports
        )
        if reason is None:
            return None
        if not is_behind:
            records = running.until_clock_step(records or running.idle_ticks(self._consumer), self._host_ms())
            self._announce_clock_step(running)
        if change is not None:
            self._announce_change(running, change)
        began_ns = 0 if self._tracing is None else self._tracing.now_ns()
        result = running.step(
            records, shared, self._consumer, ticks=ticks, reports=reports, adds=adds, change=change,
            models=self._control.requests.model, logs=logs,
        )  # fmt: skip
        if self._tracing is not None:
            self._tracing.applied(running.partition, result.step.number, records, began_ns)
        stream_ms, sources = running.task.join.stream_ms, running.sources(shared)
        portion = self._snapshots.portion(running.partition, sources, stream_ms, silent_ms, self.broker_ms)
        running.uncommitted = result = result._replace(snapshot=portion)
        return result

    def _idle_ms_of(self, running: Partition) -> int:
        """Return the interval between ticks while decisions wait: a tenth of the window, or less."""
        limits = running.task.settings.join
        shortest_ms = min(limits.window_ms, limits.activation_limit_ms)
        return min(self._options.idle_ms, max(1, shortest_ms // 10))

    def _step_reason(
        self,
        running: Partition,
        shared: SharedModel | None,
        silent_ms: int,
        records: Sequence[Record],
        adds: Sequence[str],
        *,
        ticks: bool,
        is_requested: bool,
        reports: bool,
    ) -> StepReason | None:
        """Return the first reason for a task's next step, or None if no step is due."""
        if records:
            return StepReason.RECORDS
        if adds or running.new_names:
            return StepReason.NEW_CLASSES
        if ticks:
            return StepReason.TICK
        if is_requested:
            return StepReason.REQUEST
        if reports and running.newest_step.number > 0:
            return StepReason.REPORT
        sources, stream_ms = running.sources(shared), running.task.join.stream_ms
        # The first query for a task starts the interval of its snapshots, so this comes last.
        if self._snapshots.needs_step(running.partition, sources, stream_ms, silent_ms, self.broker_ms):
            return StepReason.SNAPSHOT
        is_unknown = self._snapshots.renewal_ms > 0 and not self._append_ms and running.newest_step.number > 0
        return StepReason.TIME if is_unknown else None

    def _starts_for_model(self, running: Partition, shared: SharedModel, silent_ms: int) -> bool:
        """Return whether a task without records takes its first step to write a snapshot of the shared model."""
        if running.newest_step.number > 0:
            return False
        sources, stream_ms = running.sources(shared), running.task.join.stream_ms
        return self._snapshots.needs_step(running.partition, sources, stream_ms, silent_ms, self.broker_ms)

    def _is_behind(self, running: Partition, shared: SharedModel | None) -> bool:
        """Return whether the log has changed a shared model's settings since a task's last step.

        The task's next step only changes the settings, so that every decision is made with the model's settings.
        """
        return shared is not None and running.newest_step.control < shared.replica.control

    def _change_of(self, running: Partition, shared: SharedModel | None) -> Changed | None:
        """Return a task's settings after the next request that is due, or None if none is due.

        With a shared model, a request is due when the model's log says so. All tasks and replicas then agree on the
        model with which each decision is made.

        A task with its own model applies one request per step: two changes of its model can be possible one after the
        other, but not at once. Its first step uses the settings with which it was created, because recovery creates it
        with the settings of its first step.
        """
        control, requests = running.newest_step.control, self._control.requests
        if shared is None and running.newest_step.number == 0:
            return None
        due = requests.end_of_next(control) if shared is None else shared.replica.history.next_control(control)
        if not control < due <= requests.end:
            return None
        if running.planned is None or running.planned[0] != (control, due):
            running.planned = (control, due), requests.after(running.task.settings, control, due)
        change = running.planned[1]
        return change if self._can_change(running.task.settings, change.settings) else None

    def _logs(self, running: Partition, shared: SharedModel | None) -> int:
        """Return the offset in the control topic before which a task puts requests in force in a shared model's log.

        Return 0 if it writes no change. Only one partition's task writes changes. It writes the next one when the
        process has read the last one.
        """
        requests = self._control.requests
        if shared is None or running.partition != MODEL_PARTITION:
            return 0
        if running.logged_control > shared.replica.control or requests.due <= shared.replica.control:
            return 0
        settings, control = running.task.settings, running.newest_step.control
        due = requests.end_of_next(control)
        return due if self._can_change(settings, requests.after(settings, control, due).settings) else 0

    def _settings_after(self, settings: TaskSettings, control: int, until: int) -> TaskSettings | None:
        """Return a shared model's settings after requests; see `SettingsAfter`."""
        if until > self._control.requests.end:
            self._control.read()
        if until > self._control.requests.end:
            return None
        after = self._control.requests.after(settings, control, until).settings
        return after if self._can_change(settings, after) else None

    def _can_change(self, settings: TaskSettings, after: TaskSettings) -> bool:
        """Return whether the kernels for changed settings are compiled."""
        return not carries(settings, after) or self._is_prepared(after)

    def _announce_change(self, running: Partition, change: Changed) -> None:
        place = f"partition {running.partition}, step {running.newest_step.number + 1}"
        for line in shown_changes(differences(running.task.settings, change.settings)):
            self._announce(f"{place}: {line}")
        for offset, reason in change.refused:
            self._announce(f"{place}: request at offset {offset} of {self._topics.control} refused: {reason}")

    def _announce_clock_step(self, running: Partition) -> None:
        last = running.newest_step
        if step_ms := running.clock_shift_ms - last.clock_shift_ms:
            self._announce(
                f"partition {running.partition}: the broker's clock was set {'forward' if step_ms > 0 else 'back'} by "
                f"{abs(step_ms) / 1_000:,.1f} s; from step {last.number + 1} on, stream time leaves this out, so that "
                "no decision expires and no id is forgotten because of it. Check the clocks of the brokers"
            )

    def _report_is_due(self, running: Partition, shared: SharedModel, silent_ms: int) -> bool:
        """Return whether to record the replica's digest in a task's journal.

        The digest is recorded once after the process has started, and then at intervals.
        """
        interval_ms = self._options.snapshot_interval_ms
        if shared.replica.version == running.reported_version:
            return False
        passed_ms = running.task.join.stream_ms - running.reported_ms
        return running.reported_ms < 0 or 0 < interval_ms <= max(passed_ms, silent_ms)

    def _commit(self, commits: Sequence[Commit]) -> bool:
        """Commit the steps. If a rebalance or an imported model prevents this, stop all tasks and return False."""
        begin = [self._running[part.partition] for part in commits if part.step.number == 1]
        if any(map(self._recoveries.misses_import, begin)):
            self._announce("a model was imported before the first step; recovering the tasks from this model")
            self._park(set(self._running))
            self._recoveries.drop_shared()
            return False
        sent_ms = self._host_ms()
        began_ns = 0 if self._tracing is None else self._tracing.now_ns()
        try:
            appended = commit(self._producer, self._consumer, self._topics, commits, self._crash_point)
        except StaleMemberError as error:
            self._announce(
                f"the group has rebalanced; aborting this step and repeating it for the remaining tasks: {error}"
            )
            self._producer.abort()
            self._park(set(self._running))
            return False
        self._append_ms, self._append_at_ms = max(appended.values()), self._host_ms()
        for part in commits:
            self._running[part.partition].committed(self._append_at_ms, appended, sent_ms)
        self._snapshots.committed(self._append_ms)
        if self._tracing is not None:
            self._tracing.committed(commits, began_ns)
        self._committed(commits)
        return True

    def _park(self, partitions: Iterable[int]) -> None:
        """Stop these tasks, but keep their states so that they can resume."""
        for partition in partitions:
            self._snapshots.abandon(partition)
            running = self._running.pop(partition, None)
            if running is not None:
                self._recoveries.park(running)

    def _announce_standby(self) -> None:
        """If this process has had no partition for a while, log the members that have partitions."""
        if self._assigned:
            self._standby_since_ms = self._host_ms()
        elif self._standby_since_ms is not None and self._host_ms() - self._standby_since_ms >= STANDBY_MS:
            self._standby_since_ms = None
            members = self._broker.members(self._options.group)
            holders = sorted(name for name, tps in members.items() if tps) or ["none"]
            self._announce(
                f"{self._options.instance} is waiting for a partition; members with partitions: {', '.join(holders)}"
            )
