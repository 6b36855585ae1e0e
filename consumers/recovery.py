"""From an assigned partition to a running one: parked tasks resume, others are recovered in slices."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from consumers.partition import Input, Partition
from consumers.shared_model import SharedModel, Slots
from stream.journal.inputs import check_partitions
from stream.journal.reading import last_step
from stream.journal.recover import Progress, Recovered, recovery
from stream.journal.resolve import Given
from stream.journal.stored_settings import by_name
from stream.kafka.port import Broker
from stream.shared.view import View
from stream.snapshots.model import PARTITION, imported_model, read_model_snapshots
from stream.task.settings import TaskSettings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

REPORT_INTERVAL_MS = 5_000
POLL_INTERVAL_MS = 2_000
"""How often a learner polls while it reads snapshots: well within any session."""
SLICE_MS = 100
"""How long a recovery works before the running partitions have their turn."""


class RecoveryStoppedError(Exception):
    """The learner was asked to stop while it recovered a task; nothing was written."""


@dataclass(slots=True)
class Parked:
    """What a learner program leaves to the next one in its process: tasks that may resume, and a shared model."""

    partitions: dict[int, Partition] = field(default_factory=dict)
    shared: SharedModel | None = None


_Steps = Generator[bool, None, Partition]
"""Yields whether it worked, or waits for something that others do; returns the partition."""


class Recoveries:
    """The partitions of a learner process that do not run yet."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        settings: TaskSettings,
        host_ms: Callable[[], int],
        announce: Callable[[str], None],
        stop: Callable[[], bool],
        poll: Callable[[], None],
        make_shared: Callable[[TaskSettings, Callable[[], None]], SharedModel],
        parked: Parked,
        *,
        given: Given,
        change_settings: bool,
    ) -> None:
        """Recover nothing yet; for most arguments see `LearnerProgram`.

        Args:
            broker: where the topics are.
            topics: the topics.
            settings: of tasks that have not begun.
            host_ms: a clock of this host, for intervals.
            announce: receives messages for people.
            stop: whether to stop.
            poll: polls once, because a rebalance throws out members that do not.
            make_shared: makes the shared model of the process, from the settings of its first task.
            parked: tasks that may resume without a recovery.
            given: the names of the settings that were given.
            change_settings: whether given settings that differ are used from the next step on.
        """
        self._broker = broker
        self._topics = topics
        self._settings = settings
        self._host_ms = host_ms
        self._announce = announce
        self._stop = stop
        self._poll = poll
        self._make_shared = make_shared
        self.parked = parked.partitions
        self.shared = parked.shared
        self._given = given
        self._change_settings = change_settings
        self._running: dict[int, _Steps] = {}
        self._polled_ms = host_ms()

    def advance(self, partition: int) -> tuple[Partition | None, bool]:
        """Recover for a while; the partition if it can run, and whether anything was done.

        Raises:
            RecoveryStoppedError: the program was asked to stop.
            JournalError: the task cannot be recovered.
        """
        began_ms = self._host_ms()
        if partition not in self._running:
            self._running[partition] = self._start(partition)
        steps = self._running[partition]
        while True:
            if self._stop():
                raise RecoveryStoppedError(f"asked to stop while partition {partition} was recovered")
            try:
                worked = next(steps)
            except StopIteration as end:
                if self._running.get(partition) is not steps:
                    return None, True  # the partition was taken away meanwhile
                del self._running[partition]
                recovered: Partition = end.value
                return recovered, True
            if not worked or self._host_ms() - began_ms >= SLICE_MS or self._running.get(partition) is not steps:
                return None, worked

    def park(self, running: Partition) -> None:
        """Keep a task that was taken away: it may come back."""
        running.contexts.buffer.clear()
        running.feedback.buffer.clear()
        self.parked[running.partition] = running

    def forget(self, partition: int) -> None:
        """Stop the recovery of a partition that was taken away."""
        self._running.pop(partition, None)
        if self.shared is not None:
            self.shared.forget(partition)

    def drop_parked(self, assigned: Iterable[int]) -> None:
        """Drop the parked tasks that were not assigned to this process again."""
        for partition in self.parked.keys() - set(assigned):
            del self.parked[partition]

    def drop_shared(self) -> None:
        """Drop the shared model, which begins anew, and all tasks that use it."""
        self.parked.clear()
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    def is_overtaken(self, running: Partition) -> bool:
        """Whether a model was imported since a task that has made no step was recovered."""
        if self._snapshots_end(running.partition) != running.snapshots_end:
            return True
        is_shared = running.settings.model == "shared"
        return is_shared and imported_model(self._broker, self._topics) != running.imported

    def _start(self, partition: int) -> _Steps:
        is_announced = False
        while self._is_held_up(partition):
            if not is_announced:
                others = ", or of another program in its predictions" if self._settings.model == "shared" else ""
                self._announce(
                    f"partition {partition} waits for a transaction of the learner that had it before{others}"
                )
            is_announced = True
            yield False
        parked = self.parked.pop(partition, None)
        if parked is not None and parked.resume(last_step(self._broker, self._journal(partition))):
            return parked
        snapshots_end = self._snapshots_end(partition)
        recovered = yield from self._recover(partition)
        if recovered.settings.model == "shared":
            yield from self._read_log(partition, recovered)
        return self._made(partition, recovered, snapshots_end)

    def _recover(self, partition: int) -> Generator[bool, None, Recovered]:
        """Recover a task from its topics, and announce how far it is at the beginning, now and then, and at the end."""
        steps = recovery(
            self._broker, self._topics, partition, self._settings,
            given=self._given, change_settings=self._change_settings, pulse=self._pulse,
        )  # fmt: skip
        began_ms = announced_ms = self._host_ms()
        while True:
            try:
                progress: Progress = next(steps)
            except StopIteration as end:
                recovered: Recovered = end.value
                return recovered
            now_ms = self._host_ms()
            if not progress.first <= progress.number < progress.last or now_ms - announced_ms >= REPORT_INTERVAL_MS:
                announced_ms, took_ms = now_ms, now_ms - began_ms
                rate = f", {1_000 * progress.records / took_ms:,.0f} records/s" if took_ms > 0 else ""
                self._announce(
                    f"recovering partition {partition}: step {progress.number:,} of {progress.first:,} to "
                    f"{progress.last:,}{rate}"
                )
            yield True

    def _read_log(self, partition: int, recovered: Recovered) -> Generator[bool, None, None]:
        """Read the log of a shared model until it has all that the task wrote and decided on."""
        if self.shared is None:
            self.shared = self._make_shared(recovered.settings, self._pulse)
        shared, is_announced = self.shared, False
        announced_ms = self._host_ms()

        def reads_on(offset: int, end: int) -> bool:
            nonlocal announced_ms
            self._pulse()
            if self._host_ms() - announced_ms >= REPORT_INTERVAL_MS:
                announced_ms = self._host_ms()
                self._announce(f"recovering partition {partition}: offset {offset:,} of {end:,} of the model's log")
            return True

        while True:
            shared.read_on(reads_on)
            if shared.has_all_of(partition, recovered.wrote, recovered.task.updates):
                break
            if not is_announced:
                self._announce(
                    f"partition {partition} waits until {self._topics.updates} can be read up to its step "
                    f"{recovered.wrote}, and as far as its last step had read it: {shared.waits_for}"
                )
            is_announced = True
            yield False
        recovered.task.use_model(View(shared.replica, partition))

    def _made(self, partition: int, recovered: Recovered, snapshots_end: int) -> Partition:
        """The partition as it goes on from where it was recovered to.

        Raises:
            UnrecoverableError: its inputs have another number of partitions than they had.
        """
        described = self._broker.describe_topics([self._topics.contexts])[self._topics.contexts]
        place, last = f"{self._topics.journal}/{partition}", recovered.last_step
        check_partitions(None if last is None else last.partitions, described.partitions, place)
        if partition == PARTITION and self.shared is not None:
            self.shared.write_snapshots(read_model_snapshots(self._broker, self._topics, self._pulse))
        self._announce_changes(partition, recovered)
        return Partition(
            partition=partition,
            task=recovered.task,
            number=recovered.number,
            last_step=recovered.last_step,
            contexts=Input(TopicPartition(self._topics.contexts, partition), recovered.contexts_offset),
            feedback=Input(TopicPartition(self._topics.feedback, partition), recovered.feedback_offset),
            partitions=described.partitions,
            snapshots=Slots(recovered.stored, recovered.snapshot_ms, recovered.snapshot_ledger),
            snapshots_end=snapshots_end,
            imported=recovered.imported,
            settings=recovered.settings.resolved(),
            settings_from=recovered.settings_from,
            wrote=recovered.wrote,
            applied_at_ms=self._host_ms(),
            moved_at_ms=self._host_ms(),
        )

    def _announce_changes(self, partition: int, recovered: Recovered) -> None:
        """Announce settings that change, and records of other programs."""
        if recovered.number > 0:
            was, now = by_name(recovered.task.settings), by_name(recovered.settings.resolved())
            changed = [f"{name} = {value} instead of {was[name]}" for name, value in now.items() if value != was[name]]
            if changed:
                self._announce(f"partition {partition}: from step {recovered.number + 1} on {'; '.join(changed)}")
        for foreign, where in (
            (recovered.foreign, "its journal"),
            (recovered.foreign_predictions, "its predictions"),
        ):
            if foreign.records:
                self._announce(f"partition {partition}: {foreign.told(where)}")

    def _is_held_up(self, partition: int) -> bool:
        """Whether a transaction is open in the task's journal or snapshots.

        It is of the process that had this partition before, and may still commit: what it wrote must be recovered
        then. It ends by that process, or by the broker's time-out.
        """
        topics = [self._topics.journal, self._topics.snapshots]
        shares = self._settings.model == "shared"
        if shares:  # its decisions are read back, and an open transaction of any program blocks them
            topics.append(self._topics.predictions)
        tps = [TopicPartition(topic, partition) for topic in topics]
        if shares and self._broker.ends(tps[:1])[tps[0]].high_watermark == 0:
            tps.append(TopicPartition(self._topics.snapshots, PARTITION))  # a model for all may be on its way
        return any(end.stable < end.high_watermark for end in self._broker.ends(tps).values())

    def _pulse(self) -> None:
        """Go on with a long piece of work, or not; poll now and then."""
        if self._stop():
            raise RecoveryStoppedError("asked to stop while a partition was recovered")
        if self._host_ms() - self._polled_ms >= POLL_INTERVAL_MS:
            self._polled_ms = self._host_ms()
            self._poll()

    def _journal(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topics.journal, partition)

    def _snapshots_end(self, partition: int) -> int:
        tp = TopicPartition(self._topics.snapshots, partition)
        return self._broker.ends([tp])[tp].high_watermark
