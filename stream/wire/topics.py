"""The names and specifications of the topics, and the mapping from keys to partitions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
        self, partitions: int, replication: int = 1, keep_ms: int = -1, *, shares_model: bool = False
    ) -> list[TopicSpec]:
        """Return the specifications for all topics. All except the log and control have the same number of partitions.

        Control keeps its records for ever: they are few, and say who changed what.
        """
        log = [TopicSpec(self.updates, 1, retention_ms=keep_ms, replication=replication)] if shares_model else []
        return [TopicSpec(self.control, 1, replication=replication), *log] + [
            TopicSpec(
                name,
                partitions,
                compacted=name == self.snapshots,
                retention_ms=keep_ms,
                replication=replication,
            )
            for name in self
        ]

    def limited(self, found: Mapping[str, TopicDescription]) -> dict[str, TopicDescription]:
        """Return the topics with a retention: all except control."""
        return {name: topic for name, topic in found.items() if name != self.control}

    def keep_ms(self, found: Mapping[str, TopicDescription]) -> int:
        """Return the shortest retention of these topics, or -1 if all of them keep records without limit.

        The snapshots topic is compacted, so its retention does not delete records.
        """
        kept_ms = [topic.retention_ms for name, topic in self.limited(found).items() if name != self.snapshots]
        return min((kept for kept in kept_ms if kept >= 0), default=-1)


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
