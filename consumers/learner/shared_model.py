"""A learner process's replica of a shared model. It follows the log and limits decisions while it lags behind."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from stream.kafka.port import SHORT_FETCH_WAIT_MS, Broker, Ends
from stream.kafka.reading import read_towards
from stream.recovery.chunks import MODEL_PARTITION, Generation, Stored
from stream.recovery.inputs import LOST_RECORDS
from stream.recovery.recover import log_settings
from stream.recovery.schedule import Source
from stream.recovery.state import decode_model, is_of_log, restored_replica, state_digest, take_model
from stream.recovery.steps import MissingRecordsError, ReplicaDigest, UnrecoverableError
from stream.shared.replica import SettingsAfter
from stream.shared.view import View
from stream.task.carry import Models, no_models
from stream.task.settings import TaskSettings
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

GONE_MS = 20_000
"""A log that ends before a known record for this long is treated as truncated or recreated. After a leader change, the
new leader may briefly report an outdated end."""

_RECORDS_MAX = 1_000
"""Maximum number of records per poll. Applying this many typical records takes at most a second."""

ENDED_BY = (
    "if the learner that opened the transaction died, restart it under the same instance name to abort the transaction "
    "at once; otherwise the broker aborts the transaction when it times out"
)
"""The part of a message that explains how an open transaction ends."""


def held_up(place: str, offset: int) -> str:
    """Return the part of a message that explains why a partition cannot be read beyond an offset."""
    return f"{place} cannot be read beyond offset {offset}: an open transaction begins there"


class Hold(NamedTuple):
    """An open transaction beyond which the log cannot be read."""

    offset: int  # offset of the transaction's first record
    for_ms: int  # time since this process first detected the transaction
    waiting: int  # number of offsets from the transaction's first record to the end of the log


class SharedModel:
    """A process's replica of the shared model, which all of the process's tasks use."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        settings: TaskSettings,
        stored: Generation | None,
        *,
        settings_after: SettingsAfter,
        models: Models = no_models,
        host_ms: Callable[[], int],
        announce: Callable[[str], None] = lambda message: None,
        instance: str = "",
        lag_max_ms: int = -1,
        ahead_max: int = 10_000,
    ) -> None:
        """Restore the model from a snapshot or an import. The log is not read yet.

        Args:
            broker: the broker.
            topics: the pipeline's topics.
            settings: the settings of one of the tasks.
            stored: the model's newest snapshot or, if there is none, the imported model; None if there is neither.
            settings_after: see `SettingsAfter`.
            models: the models with which new challengers start.
            host_ms: this host's clock, used to measure intervals.
            announce: called with each log message.
            instance: the process's name, for its reports.
            lag_max_ms: time for which an open transaction can block the log before decisions stop; -1 means no limit.
            ahead_max: maximum number of a task's decisions that the model has not observed. Each step applies all of
                these decisions on top of the model. Without a limit, steps would therefore take longer and longer while
                the log is blocked.

        Raises:
            JournalError: the snapshot cannot be read or belongs to a different model, or records that follow the
                snapshot in the log were deleted.
        """
        self._tp = tp = TopicPartition(topics.updates, 0)
        self._host_ms = host_ms
        self._announce = announce
        self._instance = instance
        self._lag_max_ms = lag_max_ms
        self._ahead_max = ahead_max
        # For each partition, the time since which expected records have been missing from the log. The key None is for
        # records that this process has already read.
        self._missed_since_ms: dict[int | None, int] = {}
        self._foreign_announced = 0
        self._digest = (-1, "")  # the last computed digest, preceded by its model version
        self.snapshots: Stored | None = None  # earlier snapshots; None unless this process writes the snapshots
        self._too_far_ahead: set[int] = set()  # partitions whose decisions are paused
        self._blocked_since_ms = host_ms()
        snapshot = None if stored is None else decode_model(stored)
        if snapshot is None or not is_of_log(snapshot):
            settings = log_settings(broker, topics, settings)
        self.replica = restored_replica(settings, snapshot)
        beginning = broker.beginnings([tp])[tp]
        if beginning > self.replica.offset:
            raise MissingRecordsError(
                f"expected the log to begin at or before offset {self.replica.offset}, where the model's newest "
                f"snapshot ends; the first record is at offset {beginning}. Records between were deleted before a "
                f"learner of partition {MODEL_PARTITION} had read them. {LOST_RECORDS}",
                tp, self.replica.offset, is_deleted=True,
            )  # fmt: skip
        self.ends: Ends = broker.ends([tp])[tp]  # end of the log as of the last request
        self.reconnect(broker, settings_after, models)

    def write_snapshots(self, stored: Stored) -> None:
        """Start writing the model's snapshots. `stored` contains the earlier snapshots."""
        stored.taken_of = 0 if stored.newest is None else stored.newest.number
        stored.release()
        self.snapshots = stored

    def sources(self, partition: int) -> list[Source]:
        """Return the shared model as a Source if this partition's steps write its snapshots, or an empty list."""
        if self.snapshots is None or partition != MODEL_PARTITION:
            return []
        version, take = self.replica.version, partial(take_model, self.replica)
        return [Source(partition, self.snapshots, version, version, take)]

    def reconnect(self, broker: Broker, settings_after: SettingsAfter, models: Models) -> None:
        """Open new connections to replace the closed ones. Continue reading."""
        self._broker = broker
        self.replica.settings_after, self.replica.models = settings_after, models
        self._reader = broker.reader([self._tp], SHORT_FETCH_WAIT_MS)
        self._reader.seek(self._tp, self.replica.offset)

    def read_on(self) -> Iterator[bool]:
        """Read up to the log's current last stable offset. Yield True after each poll.

        Stop before changed settings that this process cannot apply yet, because it has not compiled the kernels or read
        the requests. The tasks continue to decide with the earlier settings.

        Raises:
            UpdatesError: a record cannot be applied.
            UnrecoverableError: the log was truncated or recreated.
            BrokerError: the broker is unavailable.
        """
        before, self.ends = self.hold, self._broker.ends([self._tp])[self._tp]
        if before is None or self.hold is None or before.offset != self.hold.offset:
            self._blocked_since_ms = self._host_ms()
        if self._is_gone(None, is_missed=self._is_short):
            raise MissingRecordsError(
                f"expected records up to offset {self.replica.offset}, which have been read before; the log ends at "
                f"offset {self.ends.high_watermark}. The topic was truncated or recreated. {LOST_RECORDS}",
                self._tp, self.replica.offset, is_deleted=False,
            )  # fmt: skip
        end = self.ends.stable
        while self._reader.position(self._tp) < end:
            records = read_towards(self._reader, {self._tp: end}, records_max=_RECORDS_MAX)
            self.replica.read(records)
            if records and self.replica.offset <= records[-1].offset:
                self._reader.seek(self._tp, self.replica.offset)
                return
            if self.replica.foreign.records > self._foreign_announced:
                self._foreign_announced = self.replica.foreign.records
                self._announce(self.replica.foreign.describe(str(self._tp)))
            yield True
        # The last offsets can be those of transaction markers, which retention also deletes.
        self.replica.offset = max(self.replica.offset, min(end, self._reader.position(self._tp)))

    @property
    def hold(self) -> Hold | None:
        """The open transaction that blocks reading, or None."""
        stable, end = self.ends.stable, self.ends.high_watermark
        return Hold(stable, self._host_ms() - self._blocked_since_ms, end - stable) if stable < end else None

    @property
    def stops_decisions(self) -> bool:
        """Whether the model is too old for decisions."""
        hold = self.hold
        return hold is not None and 0 <= self._lag_max_ms < hold.for_ms

    @property
    def waits_for(self) -> str:
        """The part of a message that explains why the log cannot be read further."""
        if self.hold is not None:
            return f"{held_up(str(self._tp), self.hold.offset)}; {ENDED_BY}"
        return f"{self._tp} ends at offset {self.ends.high_watermark}"

    def room(self, partition: int, view: View) -> int:
        """Return the number of decisions that a task can make before it must wait for the model to catch up."""
        if self.stops_decisions:
            return 0
        room = max(0, self._ahead_max - view.ahead)
        if room and partition in self._too_far_ahead:
            self._too_far_ahead.remove(partition)
            self._announce(f"partition {partition} resumes decisions")
        elif not room and partition not in self._too_far_ahead:
            self._too_far_ahead.add(partition)
            self._announce(
                f"decisions are paused on partition {partition}: the model has not observed {view.ahead:,} earlier "
                f"decisions; {self.waits_for}"
            )
        return room

    def has_all_of(self, partition: int, wrote: int, version: int, control: int) -> bool:
        """Return whether the replica has all that a task's last step used.

        This is the step's own record in the log, the model version of its decisions, and the requests before offset
        `control` in the control topic.

        Raises:
            UnrecoverableError: the log was truncated or recreated.
        """
        replica = self.replica
        is_there = replica.place_of(partition).step >= wrote and replica.version >= version
        is_there = is_there and replica.control >= control
        all_read = self._reader.position(self._tp) >= self.ends.high_watermark
        if self._is_gone(partition, is_missed=not is_there and all_read):
            raise UnrecoverableError(
                f"expected step {wrote} of partition {partition} and model version {version}, which the partition's "
                f"last decision used; the log ends with step {self.replica.place_of(partition).step} and version "
                f"{self.replica.version}. The topic was truncated or recreated. {LOST_RECORDS}",
                str(self._tp),
            )
        return is_there and not self._is_short

    def forget(self, partition: int) -> None:
        """Forget a revoked task's state, because another process may continue the task."""
        self._missed_since_ms.pop(partition, None)
        self._too_far_ahead.discard(partition)

    def digest(self) -> ReplicaDigest:
        """Return the replica's digest for a journal record."""
        if self._digest[0] != self.replica.version:
            self._digest = self.replica.version, state_digest([self.replica.learner.state()])
        return ReplicaDigest(self._instance, self._digest[1])

    @property
    def _is_short(self) -> bool:
        """Whether the log now ends before the offset that this process has already reached."""
        return self.ends.high_watermark < self.replica.offset

    def _is_gone(self, missed: int | None, *, is_missed: bool) -> bool:
        """Return whether records have been missing for at least GONE_MS."""
        if not is_missed:
            self._missed_since_ms.pop(missed, None)
            return False
        return self._host_ms() - self._missed_since_ms.setdefault(missed, self._host_ms()) >= GONE_MS

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
