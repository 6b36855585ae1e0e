"""The names of the topics, and what each must be."""

from typing import NamedTuple

from stream.broker import TopicSpec

DEFAULT_PREFIX = "onebit."


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

    def specs(self, partitions: int, replication: int = 1, retention_ms: int = -1) -> list[TopicSpec]:
        """What every topic must be: equal partition numbers, so that an event lives in one of them throughout."""
        return [
            TopicSpec(
                name,
                partitions,
                compacted=name == self.snapshots,
                retention_ms=-1 if name == self.snapshots else retention_ms,
                replication=replication,
            )
            for name in self
        ]
