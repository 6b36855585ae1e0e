"""How a learner process follows the log of a shared model: a reader, and the replica that it feeds."""

from collections.abc import Callable

from stream.brokers.port import Broker, Ends
from stream.brokers.reading import read_towards
from stream.joining.task_settings import TaskSettings
from stream.learners.base import KernelLearner
from stream.recovery.journal import UnrecoverableError
from stream.recovery.model_snapshot import decode_model, read_model_snapshots, restore_model
from stream.recovery.snapshot_format import Pulse
from stream.sharing.replica import Replica
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

GONE_MS = 20_000
"""So long a log must end before something that was written to it or read of it, to be known as cut or made anew: a
broker that has just taken the partition over may for a while tell an end of before."""

_RECORDS_MAX = 1_000
"""Of one reading: a second of work at most, for records of the size of a usual step."""

ReadOn = Callable[[int, int], bool]
"""Told, after a portion, up to which offset the log is read and where it ends: whether to read on."""


ENDED_BY = (
    "if its learner died, start it again under its instance's name, which ends it at once; else the broker does so at "
    "its time-out"
)
"""What ends a transaction that holds up what is read of a log, for people."""


def held_up(place: str, offset: int) -> str:
    """What holds up the reading of a partition at an offset, for people."""
    return f"{place} cannot be read beyond offset {offset}: a transaction is open there"


class Following:
    """The replica of one process, for all of its tasks."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        settings: TaskSettings,
        host_ms: Callable[[], int],
        announce: Callable[[str], None] = lambda told: None,
        pulse: Pulse = lambda: None,
    ) -> None:
        """Follow the log from the newest snapshot of the model on, or from its beginning; nothing is read of it yet.

        Args:
            broker: where the topics are.
            topics: the topics.
            settings: of the tasks.
            host_ms: a clock of this host, for intervals.
            announce: is told of records of other programs.
            pulse: is called again and again while snapshots are read.

        Raises:
            JournalError: the snapshot cannot be read, or is of another model, or the log behind it is not kept.
        """
        learner = settings.make_learner()
        assert isinstance(learner, KernelLearner)
        self.settings = settings
        self.replica = Replica(learner)
        self._broker = broker
        self._tp = tp = TopicPartition(topics.updates, 0)
        self._place = f"{tp.topic}/{tp.partition}"
        self._host_ms = host_ms
        self._announce = announce
        self._missed_since_ms: dict[int | None, int] = {}  # by task what it waits for; None: what was read before
        self._foreign_told = 0
        stored = read_model_snapshots(broker, topics, pulse)
        newest = stored.newest or stored.imported
        if newest is not None:
            restore_model(decode_model(newest), self.replica, settings)
        beginning = broker.beginnings([tp])[tp]
        if beginning > self.replica.offset:
            expected = "" if newest is None else ", up to which the newest snapshot of the model has read it"
            raise UnrecoverableError(
                f"{self._place}: expected what stands there from offset {self.replica.offset} on{expected}; it is kept "
                f"from {beginning} on: set its retention.ms to -1"
            )
        self.ends: Ends = broker.ends([tp])[tp]  # of the log, as it was asked last
        self._reader = broker.reader([tp])
        self._reader.seek(tp, self.replica.offset)

    def read_on(self, reads_on: ReadOn = lambda offset, end: True) -> None:
        """Read to where the log can be read at the moment of asking: up to the first open transaction in it.

        Raises:
            UpdatesError: it cannot be read on.
            UnrecoverableError: it was cut or made anew: for a while it has ended before what was read of it.
            BrokerError: the broker is away.
        """
        self.ends = self._broker.ends([self._tp])[self._tp]
        if self._is_gone(None, is_missed=self._is_short):
            raise UnrecoverableError(
                f"{self._place}: expected what was read up to offset {self.replica.offset}; it ends at "
                f"{self.ends.high_watermark}: the topic was cut or made anew since"
            )
        end = self.ends.stable
        while self._reader.position(self._tp) < end:
            self.replica.read(read_towards(self._reader, self._tp, end, records_max=_RECORDS_MAX))
            if not reads_on(self._reader.position(self._tp), end):
                break
        if self.replica.foreign.records > self._foreign_told:
            self._foreign_told = self.replica.foreign.records
            self._announce(self.replica.foreign.told(self._place))

    @property
    def waits_for(self) -> str:
        """Why the log cannot be read further than it is."""
        high_watermark, stable = self.ends
        if stable < high_watermark:
            return f"{held_up(self._place, stable)}; {ENDED_BY}"
        return f"{self._place} ends at offset {high_watermark}"

    def has_all_of(self, partition: int, wrote: int, version: int) -> bool:
        """Whether the replica has what the last step that wrote to the log wrote, and is of a version or a later one.

        Raises:
            UnrecoverableError: the log was cut or made anew: for a while it has held no more than what was read.
        """
        is_there = self.replica.place_of(partition).step >= wrote and self.replica.version >= version
        all_read = self._reader.position(self._tp) >= self.ends.high_watermark
        if self._is_gone(partition, is_missed=not is_there and all_read):
            raise UnrecoverableError(
                f"{self._place}: expected what step {wrote} of partition {partition} wrote, and version {version}, on "
                f"which it has decided; got its step {self.replica.place_of(partition).step}, and version "
                f"{self.replica.version}, in all that it holds: the topic was cut or made anew since"
            )
        return is_there and not self._is_short

    def waits_no_more(self, partition: int) -> None:
        """Let go of what a task has waited for, which another process may go on with."""
        self._missed_since_ms.pop(partition, None)

    @property
    def _is_short(self) -> bool:
        """Whether the log ends before what was read of it."""
        return self.ends.high_watermark < self.replica.offset

    def _is_gone(self, missed: int | None, *, is_missed: bool) -> bool:
        """Whether something has been missed for so long that it will not come any more."""
        if not is_missed:
            self._missed_since_ms.pop(missed, None)
            return False
        return self._host_ms() - self._missed_since_ms.setdefault(missed, self._host_ms()) >= GONE_MS

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
