"""Starts assigned partitions: parked tasks are resumed, and other tasks are recovered in time slices."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from consumers.learner.partition import Input, Partition
from consumers.learner.shared_model import SharedModel
from stream.errors import NEW_PIPELINE
from stream.kafka.port import Broker
from stream.recovery.chunks import MODEL_PARTITION, Generation, read_snapshots, reading_snapshots
from stream.recovery.inputs import LOST_RECORDS, check_unchanged
from stream.recovery.recover import Recovered, Recovery, ReplayProgress, recovery
from stream.recovery.slices import Parts
from stream.recovery.steps import UnrecoverableError, last_steps
from stream.recovery.torn import check_log, check_whole
from stream.shared.view import View
from stream.task.changes import Changed
from stream.task.settings import TaskSettings
from stream.task.stored_settings import Given, stored_settings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

REPORT_INTERVAL_MS = 5_000
SLICE_MS = 100
"""Time slice for recovery work, after which the learner polls and the running partitions take a step."""
PARKED_MS = 60_000
"""A parked task whose partition is not assigned to this process is dropped when its last step is this old."""


class RecoveryStoppedError(Exception):
    """The learner was stopped during a recovery. It wrote nothing."""


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
    begin: Changed | None
    host_ms: Callable[[], int]
    announce: Callable[[str], None]
    stop: Callable[[], bool]
    make_shared: Callable[[TaskSettings, Generation | None], SharedModel]
    group: str
    parked: Parked
    worked: int = 0  # number of partitions that made progress in the last time slice
    reported_ms: int = 0  # host time when progress was last logged
    _running: dict[int, Parts[Partition]] = field(default_factory=dict)  # each yields False while it waits

    def advance(self, partitions: Sequence[int]) -> Iterator[Partition]:
        """Work on these partitions for one time slice and yield those that can run.

        Parked tasks resume together. The other tasks are recovered one after another, so that each partition can make
        decisions as soon as its recovery is complete.

        Raises:
            RecoveryStoppedError: the program was stopped.
            JournalError: a task cannot be recovered.
        """
        began_ms = self.host_ms()
        resumed = self._resume(partitions)
        self.worked = len(resumed)
        yield from resumed
        for partition in sorted({*partitions} - {each.partition for each in resumed}):
            parts = self._running.setdefault(partition, self._start(partition))
            worked, is_over = True, False
            try:
                while worked and not is_over:
                    if self.stop():
                        raise RecoveryStoppedError(f"stopped during the recovery of partition {partition}")
                    worked = next(parts)
                    is_over = self.host_ms() - began_ms >= SLICE_MS
            except StopIteration as end:
                del self._running[partition]
                yield end.value
            self.worked += worked
            if worked and is_over:  # a partition that waits for another process must not delay the other partitions
                return

    def _resume(self, partitions: Sequence[int]) -> list[Partition]:
        """Return the parked tasks of these partitions that can continue at once.

        Each request covers all of the partitions, so that a rebalance only briefly interrupts running partitions.
        """
        candidates = [each for each in partitions if each in self.parked.partitions and each not in self._running]
        if not candidates:
            return []
        held_up = self._held_up(candidates)
        return self._resumed([each for each in candidates if each not in held_up])

    def _resumed(self, partitions: Iterable[int]) -> list[Partition]:
        """Remove these partitions' parked tasks. Return those that can continue from the ends of their journals."""
        journals = {each: TopicPartition(self.topics.journal, each) for each in partitions}
        last = last_steps(self.broker, list(journals.values()))
        check_unchanged(self.broker, self.topics, {tp.partition: step for tp, step in last.items()})
        for each, tp in journals.items():
            if self.parked.partitions[each].uncommitted is not None:
                check_whole(self.broker, self.topics, each, last.get(tp))
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
        self._running.clear()

    def misses_import(self, running: Partition) -> bool:
        """Return whether a model was imported after this task was recovered. Called before the task's first commit."""
        partition = None if running.task.settings.model == "shared" else running.partition
        imported = read_snapshots(self.broker, self.topics, partition).imported
        return (imported and imported.whole) != running.imported

    def _start(self, partition: int) -> Parts[Partition]:
        others = ", or from another program in its predictions topic" if self.settings.model == "shared" else ""
        waits = f"partition {partition} waits for a transaction from its previous learner{others}"
        is_announced = False
        while self._held_up([partition]):
            if not is_announced:
                self.announce(waits)
            is_announced = True
            yield False
        if partition in self.parked.partitions and (resumed := self._resumed([partition])):
            return resumed[0]
        recovered = yield from self._recover(partition)
        if recovered.task.settings.model == "shared":
            yield from self._read_log(partition, recovered)
        return (yield from self._partition_of(partition, recovered))

    def _recover(self, partition: int) -> Recovery:
        """Recover a task from its topics. Log the progress at the start, at intervals and at the end."""
        began_ms = self.reported_ms = self.host_ms()

        def report(progress: ReplayProgress) -> None:
            took_ms = self.host_ms() - began_ms
            rate = f", {1_000 * progress.records / took_ms:,.0f} records/s" if took_ms > 0 else ""
            self._report(
                f"recovering partition {partition}: step {progress.number:,} (steps {progress.first:,} "
                f"to {progress.last:,}){rate}",
                at_once=not progress.first <= progress.number < progress.last,
            )

        return (yield from recovery(
            self.broker, self.topics, partition, self.settings, report,
            given=self.given, begin=self.begin, group=self.group,
        ))  # fmt: skip

    def _read_log(self, partition: int, recovered: Recovered) -> Parts[None]:
        """Read the shared model's log up to the task's last record and up to the model version of its last decision."""
        if self.parked.shared is None:
            stored = yield from reading_snapshots(self.broker, self.topics, None)
            # While the snapshots were read, another partition's recovery may have restored the model.
            model = stored.newest or stored.imported
            self.parked.shared = self.parked.shared or self.make_shared(recovered.task.settings, model)
            del stored, model  # their payloads can be large, and reading the log can take a long time
        shared, wrote, is_announced = self.parked.shared, recovered.step.wrote, False
        self.reported_ms = self.host_ms()
        while True:
            for _ in shared.read_on():
                self._report(
                    f"recovering partition {partition}: offset {shared.replica.offset:,} of {shared.ends.stable:,} in "
                    "the model's log"
                )
                yield True
            if shared.has_all_of(partition, wrote, recovered.task.version, recovered.step.control):
                break
            if not is_announced:
                self.announce(
                    f"partition {partition} waits until it can read its step {wrote} and the model version of its last "
                    f"decision from {self.topics.updates}: {shared.waits_for}"
                )
            is_announced = True
            yield False
        settings = shared.replica.history.settings_at(recovered.step.control)
        if settings is not None and settings != recovered.task.settings:
            raise UnrecoverableError(
                f"expected the settings {stored_settings(settings)}, with which the model's log continues; got "
                f"{stored_settings(recovered.task.settings)}. Another program changed one of the topics. "
                f"{LOST_RECORDS}",
                f"{self.topics.journal}/{partition}",
            )
        check_log(self.broker, self.topics, partition, recovered.step, shared.replica.place_of(partition).step)
        known, names = recovered.task.classes.names or [], shared.replica.names
        if recovered.task.settings.open_classes and names[: len(known)] != known:
            raise UnrecoverableError(
                f"expected the classes {known}; {self.topics.updates} and the model's snapshot contain {names}. "
                f"Another program changed one of these topics. {LOST_RECORDS}",
                f"{self.topics.journal}/{partition}",
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
                f"expected topics with {step.partitions} partitions, as in the task's last step; got {partitions}. "
                f"Feedback would go to a different task than its context. {NEW_PIPELINE}",
                f"{topics.journal}/{partition}",
            )
        if partition == MODEL_PARTITION and self.parked.shared is not None:
            stored = yield from reading_snapshots(self.broker, topics, None)
            self.parked.shared.write_snapshots(stored)
        running = Partition(
            task=recovered.task,
            last_step=step,
            contexts=Input(TopicPartition(topics.contexts, partition), step.contexts[1], read_to=step.read_to[0]),
            feedback=Input(TopicPartition(topics.feedback, partition), step.feedback[1], read_to=step.read_to[1]),
            partitions=partitions,
            snapshots=recovered.stored,
            imported=recovered.imported,
            clock_shift_ms=step.clock_shift_ms,
            applied_at_ms=self.host_ms(),
            moved_at_ms=self.host_ms(),
        )
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
        records. The transaction ends when that process commits or aborts it, or when the broker's timeout expires.
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
