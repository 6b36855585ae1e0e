"""The learner program: contexts and feedback in, through the engine, to predictions, examples and the journal.

It moves records and time to and fro; what is decided, learned or expired is the engine's business.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stream.broker import Broker, Consumer, Ends, StaleMemberError, TransactionalProducer
from stream.checkpoint import Commit, CrashPoint, JournalStep, Recovered, commit, recover
from stream.engine import Task, TaskSettings, merge
from stream.records import Record, TopicPartition
from stream.topics import Topics


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """How the program runs; nothing of this changes what is learned from a given order of inputs."""

    group: str = "onebit-learner"
    instance: str = "learner-1"  # the name of this process across restarts; each process has its own
    records_max: int = 2_000  # records of one transaction, at most, for each task
    idle_ms: int = 1_000  # with decisions waiting and nothing coming, how often the broker is asked for its time
    poll_ms: int = 100


@dataclass(slots=True)
class _RunningTask:
    """A task and its place in its inputs."""

    task: Task
    number: int  # of the last step
    contexts_tp: TopicPartition
    feedback_tp: TopicPartition
    contexts_offset: int  # of the first record that is not applied
    feedback_offset: int
    contexts: deque[Record] = field(default_factory=deque)  # read, not applied
    feedback: deque[Record] = field(default_factory=deque)


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
        monotonic_ms: Callable[[], int],
        announce: Callable[[str], None] = lambda message: None,
        crash_point: CrashPoint = lambda number: None,
    ) -> None:
        settings.make_learner()  # refuses what cannot work before anything is read
        self._broker = broker
        self._topics = topics
        self._settings = settings
        self._options = options
        self._monotonic_ms = monotonic_ms
        self._announce = announce
        self._crash_point = crash_point
        self._running: dict[int, _RunningTask] = {}
        self._assigned: set[int] = set()
        self._broker_ms = 0  # the broker's time in its last acknowledgement
        self._committed_at_ms = monotonic_ms()
        self._producer: TransactionalProducer = broker.transactional_producer(f"{options.group}-{options.instance}")
        self._consumer: Consumer = broker.group_consumer(
            options.group, options.instance, (topics.contexts, topics.feedback), self
        )

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener: the tasks are recovered by the next step, outside of the poll."""
        self._assigned |= {tp.partition for tp in tps}

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """See RebalanceListener: every step commits before it polls again, so there is nothing left to commit."""
        for tp in tps:
            self._assigned.discard(tp.partition)
            self._running.pop(tp.partition, None)

    @property
    def tasks(self) -> dict[int, Task]:
        """The tasks that run in this process, by partition."""
        return {partition: running.task for partition, running in self._running.items()}

    def next_due_ms(self) -> int | None:
        """The broker's time at which something will be due although no record comes."""
        deadlines = [running.task.join.next_deadline_ms() for running in self._running.values()]
        due = [deadline + 1 for deadline in deadlines if deadline is not None]
        return max(min(due), self._committed_at_ms + self._options.idle_ms) if due else None

    def step(self, timeout_ms: int) -> int:
        """Poll once and apply what can be applied, in one transaction; the number of steps committed.

        Raises:
            FencedError: another process has taken this one's place.
            BrokerError: the outcome of the commit is unknown, or the broker is away.
        """
        for record in self._consumer.poll(timeout_ms, self._options.records_max):
            running = self._running.get(record.partition)
            if running is not None:  # else: of a task that is not recovered yet, and read again when it is
                (running.contexts if record.topic == self._topics.contexts else running.feedback).append(record)
        if len(self._running) < len(self._assigned):
            self._recover_assigned()
        ends = self._ends()
        commits = []
        for partition, running in self._running.items():
            step = self._apply(partition, running, ends)
            if step is not None:
                commits.append(step)
        if commits:
            try:
                self._broker_ms = commit(self._producer, self._consumer, self._topics, commits, self._crash_point)
            except StaleMemberError as error:
                self._announce(f"the group has moved on, this step is given up and its tasks recovered: {error}")
                self._producer.abort()
                self._running.clear()
                return 0
            self._committed_at_ms = self._monotonic_ms()
        return len(commits)

    def _ends(self) -> dict[TopicPartition, Ends]:
        """Where the inputs end; asked after what is waiting here was read."""
        tps = [tp for running in self._running.values() for tp in (running.contexts_tp, running.feedback_tp)]
        return self._broker.ends(tps) if tps else {}

    def _apply(self, partition: int, running: _RunningTask, ends: dict[TopicPartition, Ends]) -> Commit | None:
        """Apply the records that are next, or the time that has passed without any."""
        position = self._consumer.position
        feedback_end = ends[running.feedback_tp]
        records = merge(
            running.contexts,
            running.feedback,
            contexts_ended=position(running.contexts_tp) >= ends[running.contexts_tp].stable,
            feedback_ended=position(running.feedback_tp) >= feedback_end.stable,
            records_max=self._options.records_max,
        )
        # The stable end may stand before records of open transactions; up to the high watermark there are none left.
        all_read = not running.feedback and position(running.feedback_tp) >= feedback_end.high_watermark
        feedback_end_ms = self._broker_ms if all_read else -1
        if not records and not self._time_is_due(running.task, feedback_end_ms):
            return None
        first_step = running.number == 0
        effects = running.task.step(records, self._broker_ms, feedback_end_ms)
        contexts_from, feedback_from = running.contexts_offset, running.feedback_offset
        for record in records:
            if record.topic == self._topics.contexts:
                running.contexts_offset = record.offset + 1
            else:
                running.feedback_offset = record.offset + 1
        running.number += 1
        step = JournalStep(
            running.number,
            (contexts_from, running.contexts_offset),
            (feedback_from, running.feedback_offset),
            self._broker_ms,
            feedback_end_ms,
            running.task.updates,
            running.task.join.ledger(),
        )
        return Commit(partition, self._settings if first_step else None, step, effects)

    def _time_is_due(self, task: Task, feedback_end_ms: int) -> bool:
        """Whether a step without records is needed: to settle what is due, or to learn what time it is."""
        deadline_ms = task.join.next_deadline_ms()
        if deadline_ms is None:
            return False
        if deadline_ms < feedback_end_ms:
            return True
        return self._monotonic_ms() - self._committed_at_ms >= self._options.idle_ms

    def _recover_assigned(self) -> None:
        """Recover the tasks that are assigned but do not run yet, and read on where they stand."""
        for partition in sorted(self._assigned - self._running.keys()):
            recovered = recover(self._broker, self._topics, partition, self._settings, self._report(partition))
            self._start(partition, recovered)

    def _report(self, partition: int) -> Callable[[int, int], None]:
        def report(done: int, total: int) -> None:
            self._announce(f"recovering partition {partition}: step {done:,} of {total:,}")

        return report

    def _start(self, partition: int, recovered: Recovered) -> None:
        running = _RunningTask(
            recovered.task,
            recovered.number,
            TopicPartition(self._topics.contexts, partition),
            TopicPartition(self._topics.feedback, partition),
            recovered.contexts_offset,
            recovered.feedback_offset,
        )
        self._consumer.seek(running.contexts_tp, running.contexts_offset)
        self._consumer.seek(running.feedback_tp, running.feedback_offset)
        self._running[partition] = running

    def close(self) -> None:
        """Leave the group and release the connections; steps that were not committed are lost with this object."""
        try:
            self._producer.close()
        finally:
            self._consumer.close()
