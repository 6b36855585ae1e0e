"""A topic's settings by Kafka's names: as Onebit creates topics, and as Kafka describes them."""

from collections.abc import Mapping

from stream.wire.topics import TopicDescription, TopicSpec

# Only closed segments are compacted, by default of 1 GB, and only when half of a log is obsolete; all of such a topic
# is read whenever a task is recovered.
_COMPACTION = {"segment.bytes": str(64 << 20), "min.cleanable.dirty.ratio": "0.1"}

_SEGMENT_MS = 7 * 24 * 3_600_000  # after so long, by default, a segment is closed


def settings_of(spec: TopicSpec) -> dict[str, str]:
    """With which settings a topic is created."""
    return {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact" if spec.compacted else "delete",
        "retention.ms": str(spec.retention_ms),
        # With acks=all an acknowledged record is then on two brokers at least.
        "min.insync.replicas": str(max(1, spec.replication - 1)),
        **(_COMPACTION if spec.compacted else {}),
        # Only closed segments are deleted.
        **({"segment.ms": str(spec.retention_ms)} if 0 < spec.retention_ms < _SEGMENT_MS else {}),
    }


def description_of(
    name: str, partitions: int, replication: int, settings: Mapping[str, str], topic_id: str = ""
) -> TopicDescription:
    """A topic as Kafka describes it."""
    return TopicDescription(
        name,
        partitions=partitions,
        append_time=settings["message.timestamp.type"] == "LogAppendTime",
        compacted="compact" in settings["cleanup.policy"],
        retention_ms=int(settings["retention.ms"]),
        replication=replication,
        topic_id=topic_id,
    )
