"""What every broker refuses, in the same words."""

from collections.abc import Mapping, Sequence

from stream.kafka.port import BrokerError, TopicSettingsError
from stream.wire.records import Headers as Headers
from stream.wire.records import Record as Record
from stream.wire.records import TopicPartition as TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec


def check_settings(specs: Sequence[TopicSpec], existing: Mapping[str, TopicDescription]) -> None:
    """Raise TopicSettingsError when existing topics are not what they must be."""
    wrong = []
    for spec in specs:
        if (found := existing.get(spec.name)) is None:
            continue
        expected = TopicDescription(
            spec.name, spec.partitions, append_time=True, compacted=spec.compacted,
            retention_ms=spec.retention_ms, replication=spec.replication, topic_id=found.topic_id,
        )  # fmt: skip
        wrong += [
            f"topic {spec.name}: {setting} is {getattr(found, setting)}, expected {getattr(expected, setting)}"
            for setting in TopicDescription._fields
            if getattr(found, setting) != getattr(expected, setting)
        ]
    if wrong:
        raise TopicSettingsError(f"{'; '.join(wrong)}; alter or delete these topics, or use another prefix")


def check_co_partitioned(group: str, topics: Sequence[str], existing: Mapping[str, TopicDescription]) -> None:
    """Raise BrokerError for topics of which equal partition numbers could not go to the same member."""
    missing = [topic for topic in topics if topic not in existing]
    if missing:
        raise BrokerError(f"group {group} cannot read {', '.join(missing)}: no such topics; create them first")
    partitions = {topic: existing[topic].partitions for topic in topics}
    if len(set(partitions.values())) > 1:
        raise BrokerError(f"group {group} needs topics with equal numbers of partitions; got {partitions}")


def check_dated_by_sender(records: Mapping[str, Record], topics: Mapping[str, TopicDescription]) -> None:
    """Refuse records that their senders dated, each by its topic, as long as the topic is so.

    What stands there from a time when the topic was so is read when it is not any more: else its partition could never
    be read again.
    """
    for topic, found in topics.items():
        if not found.append_time:
            record = records[topic]
            raise TopicSettingsError(
                f"topic {topic}: expected message.timestamp.type LogAppendTime; got CreateTime: the record at "
                f"offset {record.offset} of partition {record.partition} is dated by its sender"
            )


def without_append_time(topic: str, partition: int) -> TopicSettingsError:
    """The error for a record that was acknowledged without its append time."""
    return TopicSettingsError(
        f"topic {topic}: expected message.timestamp.type LogAppendTime; a record written to partition {partition} was "
        "acknowledged without an append time. Set message.timestamp.type to LogAppendTime with kafka-configs"
    )


def no_longer_kept(tp: TopicPartition, offset: int, group: str, first: int) -> str:
    """What a member is told that would have to read on before the first record that is kept."""
    return (
        f"offset {offset} of {tp.topic}/{tp.partition}, the committed one of group {group}, is no longer kept: the "
        f"first is {first}; raise its retention.ms"
    )


def damaged(tp: TopicPartition, offset: int, reason: str) -> str:
    """What a reader is told of a batch that cannot be read."""
    return f"{tp.topic}/{tp.partition} cannot be read from offset {offset} on ({reason}); {DAMAGED_REMEDY}"


DAMAGED_REMEDY = (
    "kafka-dump-log shows the batch that stands there; if it was damaged, another replica may hold it whole; if none "
    "does, begin anew with another prefix, and bring the model along (onebit model export, import)"
)


def replaced(member: str, group: str) -> str:
    """What a member is told whose place another process has taken."""
    return f"member {member} of group {group} was replaced by a newer one"


def thrown_out(member: str, group: str) -> str:
    """What a member is told that does not join again after its session has ended."""
    return (
        f"member {member} was thrown out of group {group}: for longer than its session it gave no sign of life, as a "
        "process does that is paused or cut off from the broker; others may have gone on with its partitions"
    )
