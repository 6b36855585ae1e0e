"""A task as a learner process runs it: its state, its place in its topics, and what was read for it."""

from collections import deque
from dataclasses import dataclass, field

from stream.joining.task import Reading, Task
from stream.joining.task_settings import TaskSettings
from stream.recovery.snapshot_chunks import Stored, other_slot
from stream.wire.ledger import Ledger
from stream.wire.records import Record, TopicPartition


@dataclass(slots=True)
class TaskSnapshots:
    """What a task has in its snapshots topic, and when the next one is due."""

    stored: Stored
    next_slot: str
    chunks: dict[str, int]  # of each slot, as far as it was written to since
    taken_ms: int  # -1: none was taken, and the task has just begun
    ledger: Ledger  # as it was then: nothing has happened as long as it is the same

    def written(self, slot: str, chunks: int) -> None:
        """Take note of a whole snapshot in a slot."""
        self.chunks[slot] = chunks
        self.next_slot = other_slot(slot)

    def chunks_in(self, slot: str) -> int:
        """How many chunks of a slot must be written over or taken away."""
        return self.chunks.get(slot, self.stored.chunks_in(slot))


@dataclass(slots=True)
class RunningTask:
    """A task and its place in its inputs."""

    task: Task
    number: int  # of the last step
    contexts_tp: TopicPartition
    feedback_tp: TopicPartition
    contexts_offset: int  # of the first record that is not applied
    feedback_offset: int
    snapshots: TaskSnapshots
    snapshots_end: int  # the high watermark of its snapshots topic before it was recovered
    imported: str | None  # the model that it began with, to be told in the journal
    settings: TaskSettings  # those of its next step; where the task has others, its journal is told
    settings_from: int  # the first step under the settings that the task has; 0: they open its journal
    reading: Reading  # how its inputs are read
    wrote: int = 0  # its last step that wrote to the log of a shared model; 0: none did
    told_ms: int = -1  # when its journal was last told the replica of this process; -1: it was not yet
    told_version: int = -1  # and which version of it
    context_ms: int = -1  # the append time of the last context applied
    contexts: deque[Record] = field(default_factory=deque)  # read, not applied
    feedback: deque[Record] = field(default_factory=deque)
    paused: set[TopicPartition] = field(default_factory=set)  # not read on, because as much as is allowed waits
