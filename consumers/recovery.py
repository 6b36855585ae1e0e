"""Starts assigned partitions: parked tasks resume, and other tasks are recovered in time slices."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from consumers.partition import Input, Partition
from consumers.shared_model import SharedModel
from stream.journal.recover import Progress, Recovered, Recovery, recovery
from stream.journal.steps import Given, UnrecoverableError, last_steps, stored_settings
from stream.kafka.port import Broker
from stream.shared.view import View
from stream.snapshots.chunks import MODEL_PARTITION, Parts, Pulse, read_snapshots, reading_snapshots
from stream.task.settings import TaskSettings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

REPORT_INTERVAL_MS = 5_000
POLL_INTERVAL_MS = 2_000
"""Interval between polls while snapshots are read. It is much shorter than any session timeout."""
SLICE_MS = 100
"""Time slice for recovery work, after which the running partitions take a step."""
PARKED_MS = 60_000
"""Time for which a parked task is kept after its last step while another process owns its partition."""


class RecoveryStoppedError(Exception):
    """The learner was stopped during a recovery, and wrote nothing."""


@dataclass(slots=True)
class Parked:
    """The state that a learner program passes to the next learner program in the same process."""

    partitions: dict[int, Partition] = field(default_factory=dict)  # tasks that can resume
    shared: SharedModel | None = None


@dataclass(slots=True, kw_only=True)
class Recoveries:
    """The assigned partitions that are not running yet. Most fields are described in `LearnerProgram`."""

    broker: Broker
    topics: Topics
    settings: TaskSettings
    given: Given
    change_settings: bool
    host_ms: Callable[[], int]
    announce: Callable[[str], None]
    stop: Callable[[], bool]
    poll: Callable[[], None]  # polls once; called during long recoveries, so that the group does not remove the member
    make_shared: Callable[[Broker, Topics, TaskSettings, Callable[[], int], Callable[[str], None], Pulse], SharedModel]
    parked: Parked
    polled_ms: int
    reported_ms: int = 0  # host time when progress was last logged
    _running: dict[int, Parts[Partition]] = field(default_factory=dict)  # each yields False while it waits

    def advance(self, partition: int) -> tuple[Partition | None, bool]:
        """Run a partition's recovery for one time slice.

        Returns the partition if its recovery is complete, and whether any work was done.

        Raises:
            RecoveryStoppedError: the program was stopped.
            JournalError: the task cannot be recovered.
        """
        began_ms = self.host_ms()
        steps = self._running.setdefault(partition, self._start(partition))
        while True:
            if self.stop():
                raise RecoveryStoppedError(f"stopped during the recovery of partition {partition}")
            try:
                worked = next(steps)
            except StopIteration as end:
                if self._running.get(partition) is not steps:
                    return None, True  # the partition was revoked in the meantime
                del self._running[partition]
                recovered: Partition = end.value
                return recovered, True
            if not worked or self.host_ms() - began_ms >= SLICE_MS or self._running.get(partition) is not steps:
                return None, worked

    def resume(self, partitions: Iterable[int]) -> list[Partition]:
        """Return those of the partitions' parked tasks that can continue at once. The other partitions need `advance`.

        The requests cover all partitions together, so that a rebalance only briefly interrupts running partitions.
        """
        candidates = [each for each in partitions if each in self.parked.partitions and each not in self._running]
        if not candidates:
            return []
        held_up = self._held_up(candidates)
        return self._resumed([each for each in candidates if each not in held_up])

    def _resumed(self, partitions: Iterable[int]) -> list[Partition]:
        """Remove these parked tasks, and return those that can continue from the ends of their journals."""
        journals = {each: TopicPartition(self.topics.journal, each) for each in partitions}
        last = last_steps(self.broker, list(journals.values()))
        checked = [(self.parked.partitions.pop(each), last.get(tp)) for each, tp in journals.items()]
        return [running for running, step in checked if running.resume(step)]

    def park(self, running: Partition) -> None:
        """Keep a revoked task so that it can resume if its partition is assigned again."""
        running.contexts.buffer.clear()
        running.feedback.buffer.clear()
        self.parked.partitions[running.partition] = running

    def forget(self, partition: int) -> None:
        """Stop the recovery of a partition that was revoked."""
        self._running.pop(partition, None)
        if self.parked.shared is not None:
            self.parked.shared.forget(partition)

    def drop_parked(self, assigned: Collection[int]) -> None:
        """Drop parked tasks whose partitions are not assigned and whose last step is at least `PARKED_MS` old."""
        for partition, parked in [*self.parked.partitions.items()]:
            if partition not in assigned and self.host_ms() - parked.applied_at_ms >= PARKED_MS:
                del self.parked.partitions[partition]

    def drop_shared(self) -> None:
        """Drop the shared model and all tasks that use it. The model will be restored later."""
        if self.parked.shared is not None:
            self.parked.shared.close()
        self.parked = Parked()

    def is_overtaken(self, running: Partition) -> bool:
        """Return whether a model was imported after this task was recovered. Called before the task's first commit."""
        partition = None if running.settings.model == "shared" else running.partition
        imported = read_snapshots(self.broker, self.topics, partition).imported
        return (imported and imported.whole) != running.imported

    def _start(self, partition: int) -> Parts[Partition]:
        others = ", or from another program in its predictions topic" if self.settings.model == "shared" else ""
        waits = f"partition {partition} waits for a transaction from its previous learner{others}"
        yield from self._wait(lambda: not self._held_up([partition]), lambda: waits)
        if partition in self.parked.partitions and (resumed := self._resumed([partition])):
            return resumed[0]
        recovered = yield from self._recover(partition)
        if recovered.settings.model == "shared":
            yield from self._read_log(partition, recovered)
        return (yield from self._partition_of(partition, recovered))

    def _wait(self, is_over: Callable[[], bool], message: Callable[[], str]) -> Parts[None]:
        """Wait for another process, and log the reason once."""
        is_announced = False
        while not is_over():
            if not is_announced:
                self.announce(message())
            is_announced = True
            yield False

    def _recover(self, partition: int) -> Recovery:
        """Recover a task from its topics, and log the progress at the start, at intervals, and at the end."""
        began_ms = self.reported_ms = self.host_ms()

        def report(progress: Progress) -> None:
            took_ms = self.host_ms() - began_ms
            rate = f", {1_000 * progress.records / took_ms:,.0f} records/s" if took_ms > 0 else ""
            self._report(
                f"recovering partition {partition}: step {progress.number:,} (steps {progress.first:,} "
                f"to {progress.last:,}){rate}",
                at_once=not progress.first <= progress.number < progress.last,
            )

        return (yield from recovery(
            self.broker, self.topics, partition, self.settings, report,
            given=self.given, change_settings=self.change_settings, pulse=self._pulse,
        ))  # fmt: skip

    def _read_log(self, partition: int, recovered: Recovered) -> Parts[None]:
        """Read the shared model's log up to the task's last record and up to the model version of its last decision."""
        shared = self.parked.shared = self.parked.shared or self.make_shared(
            self.broker, self.topics, recovered.settings, self.host_ms, self.announce, self._pulse
        )
        self.reported_ms, wrote = self.host_ms(), recovered.step.wrote

        def keep_reading(offset: int, end: int) -> bool:
            self._pulse()
            self._report(f"recovering partition {partition}: offset {offset:,} of {end:,} in the model's log")
            return True

        def has_all() -> bool:
            shared.read_on(keep_reading)
            return shared.has_all_of(partition, wrote, recovered.task.version)

        yield from self._wait(
            has_all,
            lambda: (
                f"partition {partition} waits until {self.topics.updates} can be read up to step {wrote} of this "
                f"partition and up to the model version of its last decision: {shared.waits_for}"
            ),
        )
        known, names = recovered.task.classes.names or [], shared.replica.names
        if recovered.settings.open_classes and names[: len(known)] != known:
            raise UnrecoverableError(
                f"{self.topics.journal}/{partition}: expected the classes {known}; {self.topics.updates} and the "
                f"model's snapshot contain {names}. Another program changed one of these topics"
            )
        recovered.task.use_model(View(shared.replica, partition))

    def _partition_of(self, partition: int, recovered: Recovered) -> Parts[Partition]:
        """Create the `Partition` for a recovered task.

        Raises:
            UnrecoverableError: the number of partitions in the task's input topics has changed.
        """
        topics, step = self.topics, recovered.step
        partitions = self.broker.describe_topics([topics.contexts])[topics.contexts].partitions
        if step.number > 0 and step.partitions != partitions:
            raise UnrecoverableError(
                f"{topics.journal}/{partition}: expected topics with {step.partitions} partitions, as in the task's "
                f"last step; got {partitions}. Feedback would go to a different task than its context. Start a "
                "new pipeline with a different topic prefix"
            )
        if partition == MODEL_PARTITION and self.parked.shared is not None:
            stored = yield from reading_snapshots(self.broker, topics, None)
            self.parked.shared.write_snapshots(stored)
        running = Partition(
            task=recovered.task,
            last_step=step,
            contexts=Input(TopicPartition(topics.contexts, partition), step.contexts[1]),
            feedback=Input(TopicPartition(topics.feedback, partition), step.feedback[1]),
            partitions=partitions,
            snapshots=recovered.stored,
            imported=recovered.imported,
            settings=recovered.settings.resolved(),
            applied_at_ms=self.host_ms(),
            moved_at_ms=self.host_ms(),
        )
        if running.settings_change:
            was, now = stored_settings(running.task.settings), stored_settings(running.settings)
            changed = [f"{name} = {value} instead of {was[name]}" for name, value in now.items() if value != was[name]]
            self.announce(f"partition {partition}: new settings from step {step.number + 1} on: {'; '.join(changed)}")
        if recovered.foreign.records:
            self.announce(f"partition {partition}: {recovered.foreign.describe('its predictions')}")
        return running

    def _report(self, message: str, *, at_once: bool = False) -> None:
        """Log a recovery's progress at intervals."""
        if at_once or self.host_ms() - self.reported_ms >= REPORT_INTERVAL_MS:
            self.reported_ms = self.host_ms()
            self.announce(message)

    def _held_up(self, partitions: Sequence[int]) -> set[int]:
        """Return the partitions whose recovery must wait for an open transaction.

        Such a partition's previous process can still commit the transaction, and the recovery would then miss its
        records. The transaction ends when that process ends it, or when the broker's timeout expires.
        """
        topics = [self.topics.journal, self.topics.snapshots]
        shares = self.settings.model == "shared"
        if shares:  # recovery reads the predictions topic, where any program's open transaction can block it
            topics.append(self.topics.predictions)
        import_tp = TopicPartition(self.topics.snapshots, MODEL_PARTITION)
        tps = [TopicPartition(topic, partition) for topic in topics for partition in partitions]
        ends = self.broker.ends([*tps, import_tp] if shares else tps)
        open_tps = {tp for tp, end in ends.items() if end.stable < end.high_watermark}
        held = {tp.partition for tp in tps if tp in open_tps}
        if shares and import_tp in open_tps:  # a model is being imported, and new tasks will start with it
            held |= {each for each in partitions if ends[TopicPartition(self.topics.journal, each)].high_watermark == 0}
        return held

    def _pulse(self) -> None:
        """Stop if requested, and poll at intervals. Called during long operations."""
        if self.stop():
            raise RecoveryStoppedError("stopped during the recovery of a partition")
        if self.host_ms() - self.polled_ms >= POLL_INTERVAL_MS:
            self.polled_ms = self.host_ms()
            self.poll()
