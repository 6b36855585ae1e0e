"""The schedule of snapshots in a learner process: one at a time, a portion with each step.

A snapshot is due when stream time has moved by the interval, or nothing was applied for as long, and the state has
changed since the last one. An idle task takes one, too: after retention has deleted its inputs, only a snapshot that
was taken after the last of them can be recovered.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from stream.learners import State
from stream.snapshots.chunks import CHUNK_BYTES, ChunkWriter, Message, Stored
from stream.snapshots.state import ModelSnapshot, Snapshot, encode


class Source(NamedTuple):
    """A task, or a shared model, that takes snapshots with the steps of a partition."""

    partition: int
    stored: Stored
    state: object  # its ledger or version: equal if it has not changed
    number: int  # of a generation that is taken now
    take: Callable[[State | None], Snapshot | ModelSnapshot]  # into the memory of an earlier copy


class SnapshotSchedule:
    """The snapshots of all tasks of one process, and of a shared model."""

    def __init__(self, interval_ms: int, bytes_max: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Write nothing yet.

        Args:
            interval_ms: from one snapshot to the next; 0: none is taken.
            bytes_max: of a snapshot in one step, about.
            chunk_bytes: of a snapshot in one record.
        """
        self.interval_ms = interval_ms
        self.spare: State | None = None  # memory for the next copy of a learner's state
        self._bytes_max = bytes_max
        self._chunk_bytes = chunk_bytes
        self._writing: tuple[Source, ChunkWriter] | None = None

    def needs_step(self, partition: int, sources: Iterable[Source], stream_ms: int, silent_ms: int) -> bool:
        """Whether a partition needs a step although it has nothing to apply; for the arguments see `portion`."""
        if self._writing is not None:
            return self._writing[0].partition == partition
        return any(self._is_due(source, stream_ms, silent_ms) for source in sources)

    def portion(self, partition: int, sources: Sequence[Source], stream_ms: int, silent_ms: int) -> list[Message]:
        """The next portion of the snapshot that is being written, or of one that is due now.

        Args:
            partition: the partition that makes a step.
            sources: what takes snapshots with its steps, as it is after the step.
            stream_ms: its stream time.
            silent_ms: for how long it has made no step before this one.
        """
        if self._writing is None:
            due = [source for source in sources if self._is_due(source, stream_ms, silent_ms)]
            if due:
                source = min(due, key=lambda source: source.stored.taken_ms)
                taken = source.take(self.spare)
                self.spare = taken.learner or self.spare
                source.stored.taken_ms, source.stored.taken_of = stream_ms, source.state
                self._writing = source, source.stored.writer(source.number, encode(taken), self._chunk_bytes)
        if self._writing is None or self._writing[0].partition != partition:
            return []
        return self._writing[1].portion(self._bytes_max)

    def committed(self) -> None:
        """Note that the last portions were committed."""
        if self._writing is not None and self._writing[1].done:
            source, writer = self._writing
            source.stored.wrote(writer)
            self._writing = None

    def abandon(self, partition: int) -> None:
        """Stop writing a snapshot of a partition: its rest would be of another state."""
        if self._writing is not None and self._writing[0].partition == partition:
            self._writing[0].stored.taken_of = None
            self._writing = None

    def _is_due(self, source: Source, stream_ms: int, silent_ms: int) -> bool:
        if not self.interval_ms:
            return False
        if source.stored.taken_ms < 0:
            source.stored.taken_ms = stream_ms
        passed_ms = max(stream_ms - source.stored.taken_ms, silent_ms)
        return passed_ms >= self.interval_ms and source.state != source.stored.taken_of
