"""A learner process's copy of a shared model: it follows the model's log and says how far tasks may decide on it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from stream.journal.digests import state_digest
from stream.journal.format import ReplicaDigest, UnrecoverableError
from stream.kafka.port import Broker, Ends
from stream.kafka.reading import read_towards
from stream.shared.replica import Replica
from stream.shared.view import View
from stream.snapshots.chunks import MODEL_PARTITION, Pulse, Stored, read_model_snapshots
from stream.snapshots.schedule import Source
from stream.snapshots.state import decode_model, restore_model, take_model
from stream.task.settings import TaskSettings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

GONE_MS = 20_000
"""A log that ends before what was read of it, or before what a task wrote to it, was cut or made anew if it does so for
this long. For a shorter time, a broker that has just become the leader may report an old end."""

_RECORDS_MAX = 1_000
"""Records per poll: at most a second of work, for records of the size of a usual step."""

ENDED_BY = (
    "if its learner died, start it again under its instance's name, which ends it at once; else the broker does so at "
    "its time-out"
)
"""What ends an open transaction, for messages."""


def held_up(place: str, offset: int) -> str:
    """What blocks the reading of a partition at an offset, for messages."""
    return f"{place} cannot be read beyond offset {offset}: a transaction is open there"


class Hold(NamedTuple):
    """An open transaction before which the log cannot be read."""

    offset: int  # of its first record
    for_ms: int  # since this process first met it
    waiting: int  # offsets from there to the end of the log


class SharedModel:
    """The replica of one process, for all of its tasks."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        settings: TaskSettings,
        host_ms: Callable[[], int],
        announce: Callable[[str], None] = lambda message: None,
        pulse: Pulse = lambda: None,
        *,
        instance: str = "",
        lag_max_ms: int = -1,
        ahead_max: int = 10_000,
    ) -> None:
        """Restore the newest snapshot of the model; nothing is read of the log yet.

        Args:
            broker: where the topics are.
            topics: the topics.
            settings: of the tasks.
            host_ms: a clock of this host, for intervals.
            announce: receives messages for people.
            pulse: is called again and again while snapshots are read.
            instance: the name of the process, for its reports.
            lag_max_ms: decisions stop after an open transaction has blocked the log this long; -1: never.
            ahead_max: decisions of a task that the model has not observed, at most. All of them are put on top of the
                model in each step, so a blocked log would make steps longer and longer.

        Raises:
            JournalError: the snapshot cannot be read, or is of another model, or the log behind it is not kept.
        """
        self.settings = settings
        self.replica = Replica(settings.make_shareable_learner())
        self._tp = tp = TopicPartition(topics.updates, 0)
        self._place = f"{tp.topic}/{tp.partition}"
        self._host_ms = host_ms
        self._announce = announce
        self._instance = instance
        self._lag_max_ms = lag_max_ms
        self._ahead_max = ahead_max
        self._missed_since_ms: dict[int | None, int] = {}  # by task what it waits for; None: what was read before
        self._foreign_announced = 0
        self._digest = (-1, "")  # a version, and its digest
        self.snapshots: Stored | None = None  # in the process that writes them
        self._too_far_ahead: set[int] = set()  # partitions that decide nothing for now
        self._blocked_since_ms = host_ms()
        stored = read_model_snapshots(broker, topics, pulse)
        newest = stored.newest or stored.imported
        if newest is not None:
            restore_model(decode_model(newest), self.replica, settings)
        beginning = broker.beginnings([tp])[tp]
        if beginning > self.replica.offset:
            raise UnrecoverableError(
                f"{self._place}: expected records from offset {self.replica.offset} on, where the newest snapshot of "
                f"the model ends; the first that is kept is {beginning}: set retention.ms to -1"
            )
        self.ends: Ends = broker.ends([tp])[tp]  # of the log, when it was last asked for
        self.reconnect(broker)

    def write_snapshots(self, stored: Stored) -> None:
        """Write the model's snapshots from now on; `stored` has the earlier ones."""
        stored.taken_of = 0 if stored.newest is None else stored.newest.number
        stored.release()
        self.snapshots = stored

    def sources(self, partition: int) -> list[Source]:
        """The snapshots of the model that are taken with the steps of a partition."""
        if self.snapshots is None or partition != MODEL_PARTITION:
            return []
        version, take = self.replica.version, partial(take_model, self.replica, self.settings)
        return [Source(partition, self.snapshots, version, version, take)]

    def reconnect(self, broker: Broker) -> None:
        """Read on by other connections, after those of before were closed."""
        self._broker = broker
        self._reader = broker.reader([self._tp])
        self._reader.seek(self._tp, self.replica.offset)

    def read_on(self, reads_on: Callable[[int, int], bool] = lambda offset, end: True) -> None:
        """Read to the log's stable end at the moment of asking.

        Args:
            reads_on: called after each portion with the offset reached and the end; whether to go on.

        Raises:
            UpdatesError: a record cannot be applied.
            UnrecoverableError: the log was cut or made anew.
            BrokerError: the broker is away.
        """
        before, self.ends = self.hold, self._broker.ends([self._tp])[self._tp]
        if before is None or self.hold is None or before.offset != self.hold.offset:
            self._blocked_since_ms = self._host_ms()
        if self._is_gone(None, is_missed=self._is_short):
            raise UnrecoverableError(
                f"{self._place}: expected the log up to offset {self.replica.offset}, which was read before; it ends "
                f"at {self.ends.high_watermark}: the topic was cut or made anew"
            )
        end = self.ends.stable
        while self._reader.position(self._tp) < end:
            self.replica.read(read_towards(self._reader, self._tp, end, records_max=_RECORDS_MAX))
            if not reads_on(self._reader.position(self._tp), end):
                break
        if self.replica.foreign.records > self._foreign_announced:
            self._foreign_announced = self.replica.foreign.records
            self._announce(self.replica.foreign.describe(self._place))

    @property
    def hold(self) -> Hold | None:
        """The open transaction that blocks reading; None: there is none."""
        stable, end = self.ends.stable, self.ends.high_watermark
        return Hold(stable, self._host_ms() - self._blocked_since_ms, end - stable) if stable < end else None

    @property
    def stops_decisions(self) -> bool:
        """Whether the model is too old to decide on."""
        hold = self.hold
        return hold is not None and 0 <= self._lag_max_ms < hold.for_ms

    @property
    def waits_for(self) -> str:
        """Why the log cannot be read further, for messages."""
        if self.hold is not None:
            return f"{held_up(self._place, self.hold.offset)}; {ENDED_BY}"
        return f"{self._place} ends at offset {self.ends.high_watermark}"

    def room(self, partition: int, view: View) -> int:
        """How many more decisions a task may make before the model must have observed its earlier ones."""
        if self.stops_decisions:
            return 0
        room = max(0, self._ahead_max - view.ahead)
        if room and partition in self._too_far_ahead:
            self._too_far_ahead.remove(partition)
            self._announce(f"partition {partition} decides again")
        elif not room and partition not in self._too_far_ahead:
            self._too_far_ahead.add(partition)
            self._announce(
                f"partition {partition} pauses: its model has not observed {view.ahead:,} of its decisions: "
                f"{self.waits_for}"
            )
        return room

    def has_all_of(self, partition: int, wrote: int, version: int) -> bool:
        """Whether the replica has the last step that a task wrote to the log, and the version it last decided on.

        Raises:
            UnrecoverableError: the log was cut or made anew.
        """
        is_there = self.replica.place_of(partition).step >= wrote and self.replica.version >= version
        all_read = self._reader.position(self._tp) >= self.ends.high_watermark
        if self._is_gone(partition, is_missed=not is_there and all_read):
            raise UnrecoverableError(
                f"{self._place}: expected step {wrote} of partition {partition} and version {version}, on which it "
                f"decided; the log ends with its step {self.replica.place_of(partition).step} and version "
                f"{self.replica.version}: the topic was cut or made anew"
            )
        return is_there and not self._is_short

    def forget(self, partition: int) -> None:
        """Forget what a task waited for that another process may continue."""
        self._missed_since_ms.pop(partition, None)
        self._too_far_ahead.discard(partition)

    def digest(self) -> ReplicaDigest:
        """The digest of the replica for a step's journal record."""
        if self._digest[0] != self.replica.version:
            self._digest = self.replica.version, state_digest([self.replica.learner.state()])
        return ReplicaDigest(self._instance, self._digest[1])

    @property
    def _is_short(self) -> bool:
        """Whether the log ends before what was read of it."""
        return self.ends.high_watermark < self.replica.offset

    def _is_gone(self, missed: int | None, *, is_missed: bool) -> bool:
        """Whether something has been missing for longer than GONE_MS."""
        if not is_missed:
            self._missed_since_ms.pop(missed, None)
            return False
        return self._host_ms() - self._missed_since_ms.setdefault(missed, self._host_ms()) >= GONE_MS

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
