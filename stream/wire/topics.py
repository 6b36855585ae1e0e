"""The names of the topics, and what each must be."""

from collections.abc import Mapping
from typing import NamedTuple

from stream.durations import format_duration
from stream.wire.records import Headers as Headers
from stream.wire.records import Record as Record
from stream.wire.records import TopicPartition as TopicPartition

DEFAULT_PREFIX = "onebit."


class TopicSpec(NamedTuple):
    """What a topic must be."""

    name: str
    partitions: int
    compacted: bool = False
    retention_ms: int = -1  # -1: kept for ever
    replication: int = 1


class TopicDescription(NamedTuple):
    """What a topic is."""

    name: str
    partitions: int
    append_time: bool  # timestamps are the broker's (LogAppendTime), not the producer's
    compacted: bool
    retention_ms: int
    replication: int
    topic_id: str = ""  # a topic that is deleted and made anew has another one; empty: the broker gives none


class Topics(NamedTuple):
    """The topics of one pipeline; all names share a prefix."""

    contexts: str
    predictions: str
    feedback: str
    examples: str
    dead_letter: str
    journal: str
    snapshots: str

    @classmethod
    def with_prefix(cls, prefix: str = DEFAULT_PREFIX) -> "Topics":
        """The topics whose names start with a prefix, such as `onebit.`."""
        names = ("contexts", "predictions", "feedback", "examples", "dead-letter", "journal", "snapshots")
        return cls(*(prefix + name for name in names))

    @property
    def updates(self) -> str:
        """The log of a model that all tasks share; a pipeline of which each task has its own has none."""
        return self.journal.removesuffix("journal") + "updates"

    def all_of(self, *, shares_model: bool) -> list[str]:
        """All of them, with the log of the model where tasks share one."""
        return [*self, self.updates] if shares_model else [*self]

    def of_events(self) -> tuple[str, ...]:
        """The topics whose records are events, and not what recovery needs of the learner."""
        return (self.contexts, self.predictions, self.feedback, self.examples, self.dead_letter)

    def specs(
        self, partitions: int, replication: int = 1, retention_ms: int = -1, *, shares_model: bool = False
    ) -> list[TopicSpec]:
        """What every topic must be: equal partition numbers, so that an event lives in one of them throughout.

        A retention is that of the topics of events. The journal, a small record for each step, is kept for ever: a task
        that was idle for longer would lose the step that its newest snapshot is of, and could not be recovered. So is
        the log of a shared model, whose one partition is its order.
        """
        log = [TopicSpec(self.updates, 1, replication=replication)] if shares_model else []
        return log + [
            TopicSpec(
                name,
                partitions,
                compacted=name == self.snapshots,
                retention_ms=retention_ms if name in self.of_events() else -1,
                replication=replication,
            )
            for name in self
        ]

    def retention_warnings(
        self, found: Mapping[str, TopicDescription], snapshot_interval_ms: int, window_ms: int
    ) -> list[str]:
        """Where records may be deleted that a recovery still needs.

        That are those since the snapshot before the newest one, if the newest is torn: two intervals. A learner that
        was away for a window, as long as its users are prepared to wait for an answer, shall still find what came.

        With a shared model decisions are read back from their predictions, and no record of its log may be missing.
        """
        needed_ms = 2 * snapshot_interval_ms + window_ms
        warnings = []
        shares_model = self.updates in found
        if shares_model and found[self.updates].retention_ms >= 0:
            warnings.append(
                f"{self.updates} is kept for {format_duration(found[self.updates].retention_ms)}; a shared model needs "
                "all of its log: set its retention.ms to -1"
            )
        for name in (self.contexts, self.feedback, self.journal, *((self.predictions,) if shares_model else ())):
            if name not in found or found[name].retention_ms < 0:
                continue
            kept = format_duration(found[name].retention_ms)
            if snapshot_interval_ms == 0:
                warnings.append(
                    f"{name} is kept for {kept}, and there are no snapshots: a recovery needs all of it; set its "
                    "retention.ms to -1, or let the learner take snapshots"
                )
            elif found[name].retention_ms < needed_ms:
                warnings.append(
                    f"{name} is kept for {kept}; a recovery may need {format_duration(needed_ms)}, twice the snapshot "
                    f"interval {format_duration(snapshot_interval_ms)} and the window {format_duration(window_ms)}: "
                    "raise its retention.ms"
                )
        return warnings
