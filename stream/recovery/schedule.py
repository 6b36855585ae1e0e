"""The snapshot schedule. A learner process writes one snapshot at a time, with one batch of chunks in each step.

A snapshot is due if the state has changed since the last snapshot, and either stream time has advanced by the interval
or the task has been idle for the interval. Idle tasks also need a snapshot: if retention has deleted a task's inputs,
the task can be recovered only from a snapshot taken after the last input.

If the topics have a retention, a snapshot is also due when the newest one has reached a fraction of the retention's
age. The newest snapshot and the journal after it are therefore always retained, even if the task is idle.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from stream.recovery.chunks import RENEWALS_PER_RETENTION, ChunkWriter, Message, Stored
from stream.recovery.state import ModelSnapshot, Snapshot, Spare, encode


class Source(NamedTuple):
    """A task or a shared model whose snapshots are written in a partition's steps."""

    partition: int
    stored: Stored
    state: object  # ledger or version; equal to the earlier value if the state has not changed
    number: int  # number of the next generation
    take: Callable[[Spare | None], Snapshot | ModelSnapshot]  # copies the state into new or reused memory


class SnapshotSchedule:
    """Schedules snapshots for all tasks in one process and for the shared model, if there is one."""

    def __init__(self, interval_ms: int, bytes_max: int, chunk_bytes: int) -> None:
        """Create an empty schedule.

        Args:
            interval_ms: interval between snapshots; 0 means no snapshots.
            bytes_max: approximate maximum number of snapshot bytes per step.
            chunk_bytes: size of a chunk; a record contains one chunk.
        """
        self.interval_ms = interval_ms
        self.spare: Spare | None = None  # memory for the next copy of a learner's state
        self.renewal_ms = 0  # greatest age of a newest snapshot; 0 if the topics' retention is unlimited
        self._closing: set[Stored] | None = None  # sources with a last snapshot; None until the process stops
        self._bytes_max = bytes_max
        self._chunk_bytes = chunk_bytes
        self._writing: tuple[Source, ChunkWriter] | None = None

    def keep(self, keep_ms: int) -> None:
        """Set the topics' retention; -1 means unlimited."""
        self.renewal_ms = max(1, keep_ms // RENEWALS_PER_RETENTION) if keep_ms >= 0 else 0

    def close(self) -> None:
        """Make a last snapshot due for each source.

        With unlimited retention, no snapshot is due for a source whose last step or version is in its newest snapshot.
        """
        self._closing = set()

    def needs_step(
        self, partition: int, sources: Iterable[Source], stream_ms: int, silent_ms: int, broker_ms: int
    ) -> bool:
        """Return whether a partition without records needs a step for a snapshot. The arguments are as in `portion`."""
        if self._writing is not None:
            return self._writing[0].partition == partition
        return any(self._is_due(source, stream_ms, silent_ms, broker_ms) for source in sources)

    def renews(self, sources: Iterable[Source], broker_ms: int) -> bool:
        """Return whether the next step begins a snapshot because the newest one is too old."""
        is_idle = self._writing is None and self._closing is None
        return is_idle and any(self._is_old(source.stored, broker_ms) for source in sources)

    def portion(
        self, partition: int, sources: Sequence[Source], stream_ms: int, silent_ms: int, broker_ms: int
    ) -> list[Message]:
        """Return the next messages for the snapshot in progress, or for a snapshot that is due now.

        Args:
            partition: the partition whose task takes a step.
            sources: the sources of the partition's snapshots, after the step has been applied.
            stream_ms: the partition's stream time.
            silent_ms: time since the partition's previous step.
            broker_ms: the broker's time; 0 if it is unknown.
        """
        if self._writing is None:
            due = [source for source in sources if self._is_due(source, stream_ms, silent_ms, broker_ms)]
            if due:
                source = min(due, key=lambda source: source.stored.taken_ms)
                snapshot = source.take(self.spare)
                if snapshot.learner:
                    self.spare = Spare(snapshot.settings, snapshot.learner)
                source.stored.taken_ms, source.stored.taken_of = stream_ms, source.state
                source.stored.spacing_ms = self.renewal_ms
                if self._closing is not None:
                    self._closing.add(source.stored)
                self._writing = source, source.stored.writer(source.number, encode(snapshot), self._chunk_bytes)
        if self._writing is None or self._writing[0].partition != partition:
            return []
        return self._writing[1].portion(self._bytes_max)

    def committed(self, append_ms: int) -> None:
        """Mark the last returned messages as committed at this append time."""
        if self._writing is not None and self._writing[1].done:
            source, writer = self._writing
            source.stored.wrote(writer, append_ms)
            self._writing = None

    def abandon(self, partition: int) -> None:
        """Abort a partition's snapshot, because its remaining chunks would contain a different state."""
        if self._writing is not None and self._writing[0].partition == partition:
            self._writing[0].stored.taken_of = None
            self._writing = None

    def _is_old(self, stored: Stored, broker_ms: int) -> bool:
        """Return whether a source's newest snapshot must be renewed because of the topics' retention."""
        return broker_ms > 0 < self.renewal_ms <= broker_ms - stored.newest_ms

    def _is_due(self, source: Source, stream_ms: int, silent_ms: int, broker_ms: int) -> bool:
        if not self.interval_ms:
            return False
        if self._closing is not None:
            is_needed = self.renewal_ms > 0 or source.number != source.stored.newest_number
            return is_needed and source.stored not in self._closing
        if self._is_old(source.stored, broker_ms):
            return True
        if source.stored.taken_ms < 0:
            source.stored.taken_ms = stream_ms
        passed_ms = max(stream_ms - source.stored.taken_ms, silent_ms)
        return passed_ms >= self.interval_ms and source.state != source.stored.taken_of
