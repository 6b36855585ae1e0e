"""The names and specifications of the topics, and the mapping from keys to partitions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stream.parsing import format_duration

DEFAULT_PREFIX = "onebit."


BATCH_BYTES_MAX = 1_048_588
"""Kafka's default limit on the size of a batch. Onebit's producers write batches up to this size."""


class TopicSpec(NamedTuple):
    """A topic's required settings."""

    name: str
    partitions: int
    compacted: bool = False
    retention_ms: int = -1  # -1 means unlimited
    replication: int = 1


class TopicDescription(NamedTuple):
    """A topic's actual settings."""

    name: str
    partitions: int
    append_time: bool  # the broker sets the timestamps (LogAppendTime)
    compacted: bool
    retention_ms: int
    replication: int
    batch_bytes_max: int = BATCH_BYTES_MAX  # the topic's or the broker's limit, max.message.bytes
    leader_epochs: tuple[int, ...] = ()  # a partition's epoch changes if it gets a new leader; () if unknown
    topic_id: str = ""  # changes if the topic is recreated; empty if the broker does not report it


class Topics(NamedTuple):
    """A pipeline's topics, whose names all have the same prefix."""

    contexts: str
    predictions: str
    feedback: str
    examples: str
    dead_letter: str
    journal: str
    snapshots: str

    @classmethod
    def with_prefix(cls, prefix: str = DEFAULT_PREFIX) -> "Topics":
        """Return the topics whose names start with a prefix, such as `onebit.`."""
        names = ("contexts", "predictions", "feedback", "examples", "dead-letter", "journal", "snapshots")
        return cls(*(prefix + name for name in names))

    @property
    def updates(self) -> str:
        """A shared model's log. The topic exists only if the model is shared."""
        return self.journal.removesuffix("journal") + "updates"

    @property
    def control(self) -> str:
        """The requests to change the pipeline's settings. The topic has one partition."""
        return self.journal.removesuffix("journal") + "control"

    def all_of(self, *, shares_model: bool) -> list[str]:
        """Return all topics, including the shared model's log if there is one."""
        return [*self, self.control, self.updates] if shares_model else [*self, self.control]

    def of_events(self) -> tuple[str, ...]:
        """Return the event topics. All other topics are for recovery."""
        return (self.contexts, self.predictions, self.feedback, self.examples, self.dead_letter)

    def specs(
        self, partitions: int, replication: int = 1, retention_ms: int = -1, *, shares_model: bool = False
    ) -> list[TopicSpec]:
        """Return the specifications for all topics. All except the log and control have the same number of partitions.

        The retention applies to the event topics. The journal and a shared model's log have unlimited retention,
        because an idle task cannot be recovered without the step at which its newest snapshot was taken.
        """
        single = [self.control, self.updates] if shares_model else [self.control]
        return [TopicSpec(name, 1, replication=replication) for name in single] + [
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
        """Return warnings for topics whose retention is so short that records needed by a recovery can be deleted.

        A recovery needs the records from two snapshot intervals, because the newest snapshot can be torn. It also needs
        the records from one window, so that a learner that was stopped for a window finds all feedback. If the model is
        shared, a recovery also needs the predictions and the model's whole log.
        """
        needed_ms = 2 * snapshot_interval_ms + window_ms if snapshot_interval_ms else -1
        names = [self.contexts, self.feedback, self.journal]
        names += [self.predictions, self.updates] if self.updates in found else []
        warnings = []
        for name in names:
            needs_all = needed_ms < 0 or name == self.updates
            kept_ms = found[name].retention_ms if name in found else -1
            if kept_ms >= 0 and (needs_all or kept_ms < needed_ms):
                needs = "all records" if needs_all else f"those from the last {format_duration(needed_ms)}"
                remedy = "set its retention.ms to -1" if needs_all else f"raise its retention.ms to {needed_ms}"
                warnings.append(
                    f"{name} keeps records for {format_duration(kept_ms)}; a recovery needs {needs}: {remedy}"
                )
        return warnings


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key."""
    if partitions == 1:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: Sequence[int]) -> int:
    """Return the 32-bit MurmurHash2 of a key's bytes, with the seed that Kafka's partitioner uses.

    The code reads single bytes so that numba can compile it; see `stream.task.placement`.
    """
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        k = data[start] | data[start + 1] << 8 | data[start + 2] << 16 | data[start + 3] << 24
        k = k * multiplier & mask
        k = (k ^ k >> 24) * multiplier & mask
        h = (h * multiplier & mask) ^ k
    if whole < len(data):
        for place in range(whole, len(data)):
            h ^= data[place] << 8 * (place - whole)
        h = h * multiplier & mask
    h = (h ^ h >> 13) * multiplier & mask
    return h ^ h >> 15
