"""Checks and error messages that all implementations of the Broker interface share."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stream.kafka.port import Acl, BrokerError, FencedError, RebalanceListener, StaleMemberError, TopicSettingsError
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import BATCH_BYTES_MAX, TopicDescription, TopicSpec

_HEARTBEAT_MS_MAX = 3_000


_NOT_IN_SPECS = ("batch_bytes_max", "leader_epochs")


def check_settings(specs: Sequence[TopicSpec], existing: Mapping[str, TopicDescription]) -> None:
    """Raise TopicSettingsError if the settings of existing topics differ from their specifications."""
    wrong = []
    for spec in specs:
        if (found := existing.get(spec.name)) is not None:
            expected = description_of_spec(spec, found.topic_id)
            wrong += [
                f"topic {spec.name}: {setting} is {getattr(found, setting)}, expected {getattr(expected, setting)}"
                for setting in TopicDescription._fields
                if setting not in _NOT_IN_SPECS and getattr(found, setting) != getattr(expected, setting)
            ]
            if found.batch_bytes_max < BATCH_BYTES_MAX:
                wrong.append(too_small(found))
    if wrong:
        raise TopicSettingsError(f"{'; '.join(wrong)}; alter or delete these topics, or use a different prefix")


def description_of_spec(spec: TopicSpec, topic_id: str) -> TopicDescription:
    """Return the description of a topic that was created with this specification."""
    return TopicDescription(
        spec.name, spec.partitions, append_time=True, compacted=spec.compacted, retention_ms=spec.retention_ms,
        replication=spec.replication, topic_id=topic_id,
    )  # fmt: skip


def too_small(found: TopicDescription) -> str:
    """Describe a topic whose limit on batches is too small for Onebit's producers."""
    return (
        f"topic {found.name}: expected max.message.bytes of at least {BATCH_BYTES_MAX}; got {found.batch_bytes_max}. "
        f"Set max.message.bytes to {BATCH_BYTES_MAX} with kafka-configs"
    )


def check_co_partitioned(group: str, topics: Sequence[str], existing: Mapping[str, TopicDescription]) -> None:
    """Raise BrokerError unless all topics exist and have the same number of partitions."""
    missing = [topic for topic in topics if topic not in existing]
    if missing:
        raise BrokerError(
            f"group {group} cannot read {', '.join(missing)}: these topics do not exist; create them first"
        )
    partitions = {topic: existing[topic].partitions for topic in topics}
    if len(set(partitions.values())) > 1:
        raise BrokerError(f"group {group} requires topics with the same number of partitions; got {partitions}")


def check_dated_by_sender(records: Mapping[str, Record], topics: Mapping[str, TopicDescription]) -> None:
    """Raise TopicSettingsError if a record has a timestamp set by its sender and its topic uses CreateTime.

    If the topic has been changed back to LogAppendTime, older records with a sender's timestamp are accepted. If they
    were rejected, their partition could never be read again.
    """
    for topic, found in topics.items():
        if not found.append_time:
            record = records[topic]
            raise TopicSettingsError(
                f"topic {topic}: expected message.timestamp.type LogAppendTime; got CreateTime: the record at "
                f"offset {record.offset} of partition {record.partition} has a timestamp set by its sender"
            )


def without_append_time(topic: str, partition: int) -> TopicSettingsError:
    """Return the error for a record that was acknowledged without its append time."""
    return TopicSettingsError(
        f"topic {topic}: expected message.timestamp.type LogAppendTime; a record written to partition {partition} was "
        "acknowledged without an append time. Set message.timestamp.type to LogAppendTime with kafka-configs"
    )


def damaged(tp: TopicPartition, offset: int, reason: str, remedy: str = "") -> str:
    """Return the message for a batch that cannot be read."""
    return f"{tp.topic}/{tp.partition} cannot be read from offset {offset} on ({reason}); {remedy or _DAMAGED_REMEDY}"


_DAMAGED_REMEDY = (
    "inspect the batch with kafka-dump-log; if it is damaged, check the other replicas; if all are damaged, start a "
    "new pipeline with a different prefix and move the model to it (onebit model export, import)"
)


class Subscription(NamedTuple):
    """A group member's subscription to topics; see Broker.group_consumer."""

    group: str
    member: str
    topics: Sequence[str]
    listener: RebalanceListener
    rejoins: bool

    def properties(self, session_timeout_ms: int) -> dict[str, Any]:
        """Return the member's client properties."""
        return {
            "group_id": self.group,
            "group_instance_id": self.member,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": min(_HEARTBEAT_MS_MAX, session_timeout_ms // 4),
        }

    def needs(self) -> list[Acl]:
        """Return the ACLs required for reading as a group member and for committing the group's offsets."""
        return [Acl("group", self.group, "Read"), *(Acl("topic", topic, "Read") for topic in self.topics)]

    def check_kept(self, positions: Mapping[TopicPartition, int], beginnings: Mapping[TopicPartition, int]) -> None:
        """Raise BrokerError if the record at a position has been deleted."""
        for tp, offset in positions.items():
            if offset < beginnings[tp]:
                raise BrokerError(
                    f"offset {offset} of {tp}, committed by group {self.group}, has been deleted: "
                    f"the first offset is {beginnings[tp]}; increase the topic's retention.ms"
                )

    def replaced(self) -> FencedError:
        """Return the error for a member that another process has replaced."""
        return FencedError(f"member {self.member} of group {self.group} was replaced by a newer process")

    def removed(self) -> FencedError:
        """Return the error for a member that must not join again after its session has ended."""
        return FencedError(
            f"member {self.member} was removed from group {self.group}: it sent no heartbeat within its session "
            "timeout, for example because it was paused or disconnected. Other members may have its partitions now"
        )

    def not_joined(self) -> StaleMemberError:
        """Return the error for a commit by a process that is not currently a member."""
        return StaleMemberError(f"{self.member} is not currently a member of group {self.group}; poll to join again")
