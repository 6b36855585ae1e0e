"""From a partition that is assigned to a task that runs: what is waited for, what is recovered, and what is told."""

from collections.abc import Callable
from typing import NamedTuple

from consumers.following import Following
from consumers.recovering import Recovering
from consumers.running_task import RunningTask, TaskSnapshots
from stream.brokers.port import Broker
from stream.joining.task import Reading
from stream.joining.task_settings import TaskSettings
from stream.recovery.inputs import check_partitions
from stream.recovery.model_snapshot import PARTITION, imported_model, read_model_snapshots
from stream.recovery.recover import Recovered, recover
from stream.recovery.resolve import Given
from stream.recovery.snapshot_chunks import Stored
from stream.recovery.stored_settings import by_name
from stream.sharing.view import View
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


class Found(NamedTuple):
    """A task as its last commit left it."""

    recovered: Recovered
    snapshots_end: int  # the high watermark of its snapshots topic before that
    model_stored: Stored | None  # what there is of a shared model, for the task whose process writes its snapshots


class Starting:
    """How the tasks of one process begin to run there."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        settings: TaskSettings,
        host_ms: Callable[[], int],
        announce: Callable[[str], None],
        *,
        given: Given,
        change_settings: bool,
    ) -> None:
        """Start none yet; for the arguments see `LearnerProgram`."""
        self._broker = broker
        self._topics = topics
        self._settings = settings
        self._host_ms = host_ms
        self._announce = announce
        self._given = given
        self._change_settings = change_settings
        self._held_up: set[int] = set()  # assigned, and not to be recovered before a transaction has ended
        self._behind: dict[int, Found] = {}  # recovered, and not to run before the log of a shared model can be read on
        self.following: Following | None = None  # the log of a shared model; None: none has been seen yet

    def is_held_up(self, partition: int) -> bool:
        """Whether the task's journal has an open transaction, or its snapshots.

        It is of the process that had this partition before, and that may still commit: what it wrote must be recovered
        then. It ends by that process, or by the broker's time-out.
        """
        topics = [self._topics.journal, self._topics.snapshots]
        shares = self._settings.model == "shared"
        if shares:  # its decisions are read back, and an open transaction of anybody stands before them
            topics.append(self._topics.predictions)
        tps = [TopicPartition(topic, partition) for topic in topics]
        if shares and self._broker.ends(tps[:1])[tps[0]].high_watermark == 0:
            tps.append(TopicPartition(self._topics.snapshots, PARTITION))  # where a model for all may be on its way
        if all(end.stable >= end.high_watermark for end in self._broker.ends(tps).values()):
            self._held_up.discard(partition)
            return False
        if partition not in self._held_up:
            self._held_up.add(partition)
            others = ", or of another program in its predictions" if shares else ""
            self._announce(f"partition {partition} waits for a transaction of the learner that had it before{others}")
        return True

    def is_overtaken(self, partition: int, running: RunningTask) -> bool:
        """Whether something was written to the snapshots of a task that waits for its first event, or for all tasks."""
        if self._snapshots_end(partition) != running.snapshots_end:
            return True
        return running.task.view is not None and imported_model(self._broker, self._topics) != running.imported

    def follow_anew(self) -> None:
        """Let go of what was read of a shared model, which begins otherwise."""
        if self.following is not None:
            self.following.close()
            self.following = None

    def recover(self, partition: int, recovering: Recovering) -> Found | None:
        """The task as its last commit left it; None: it must wait for the log of a shared model, and is kept."""
        found = self._behind.pop(partition, None)
        has_waited = found is not None
        found = found or self._found(partition, recovering)
        if found.recovered.settings.model == "own" or self._has_read_its_log(partition, found.recovered, recovering):
            return found
        self._behind[partition] = found
        if not has_waited:
            assert self.following is not None
            self._announce(
                f"partition {partition} waits until {self._topics.updates} can be read up to what its step "
                f"{found.recovered.wrote} wrote, and as far as its last step had read it: {self.following.waits_for}"
            )
        return None

    def forget(self, partition: int) -> None:
        """Let go of a task that is to run elsewhere, or that may have gone on there."""
        self._behind.pop(partition, None)
        if self.following is not None:
            self.following.waits_no_more(partition)

    def running(self, partition: int, found: Found) -> RunningTask:
        """The task as it goes on from where it was recovered to.

        Raises:
            UnrecoverableError: its inputs have another number of partitions than they had.
        """
        recovered = found.recovered
        described = self._broker.describe_topics([self._topics.contexts])[self._topics.contexts]
        reading = Reading(partitions=described.partitions)
        check_partitions(recovered.reading, reading, f"{self._topics.journal}/{partition}")
        running = RunningTask(
            recovered.task,
            recovered.number,
            TopicPartition(self._topics.contexts, partition),
            TopicPartition(self._topics.feedback, partition),
            recovered.contexts_offset,
            recovered.feedback_offset,
            TaskSnapshots(
                recovered.stored,
                recovered.stored.next_slot(),
                {},
                recovered.snapshot_ms,
                recovered.snapshot_ledger,
            ),
            found.snapshots_end,
            recovered.imported,
            recovered.settings.resolved(),
            recovered.settings_from,
            reading,
            recovered.wrote,
        )
        if self.following is not None:
            recovered.task.see(View(self.following.replica, partition))
        return running

    def tell(self, partition: int, recovered: Recovered, running: RunningTask) -> None:
        """Say what people should know of a task that runs now: that its settings change, who else wrote its journal."""
        if recovered.number > 0:
            was, now = by_name(running.task.settings), by_name(running.settings)
            changed = [
                f"{name} = {value}, and no longer {was[name]}" for name, value in now.items() if value != was[name]
            ]
            if changed:
                self._announce(f"partition {partition}: from step {running.number + 1} on {'; '.join(changed)}")
        for foreign, where in (
            (recovered.foreign, "its journal"),
            (recovered.foreign_predictions, "its predictions"),
        ):
            if foreign.records:
                self._announce(f"partition {partition}: {foreign.told(where)}")

    def _snapshots_end(self, partition: int) -> int:
        tp = TopicPartition(self._topics.snapshots, partition)
        return self._broker.ends([tp])[tp].high_watermark

    def _found(self, partition: int, recovering: Recovering) -> Found:
        snapshots_end = self._snapshots_end(partition)
        recovered = recover(
            self._broker, self._topics, partition, self._settings, recovering.progress,
            given=self._given, change_settings=self._change_settings, pulse=recovering.pulse,
        )  # fmt: skip
        writes_model = partition == PARTITION and recovered.settings.model == "shared"
        stored = read_model_snapshots(self._broker, self._topics, recovering.pulse) if writes_model else None
        return Found(recovered, snapshots_end, stored)

    def _has_read_its_log(self, partition: int, recovered: Recovered, recovering: Recovering) -> bool:
        """Whether a shared model has all that the task wrote and decided on."""
        if self.following is None:
            self.following = Following(
                self._broker, self._topics, recovered.settings, self._host_ms, self._announce, recovering.pulse
            )
        self.following.read_on(recovering.reads_log)
        return self.following.has_all_of(partition, recovered.wrote, recovered.task.updates)
