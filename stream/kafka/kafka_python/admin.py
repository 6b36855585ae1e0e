"""Topics, offsets and groups, managed with kafka-python's admin client.

- `create_topics` and `delete_topics` run with `raise_errors=False`, because another program may create or delete the
  same topics, and kafka-python raises only the first error. `_refuse_unless` checks the response for each topic.
- After a commit, the group's committed offsets are outdated until the commit marker is written. Here, a read-committed
  consumer reads the offsets, because it sets `require_stable`. kafka-python's admin client does not set this option.
- A static member (`group_instance_id`) does not leave its group when it is closed. `leave` removes the member, so that
  the group reassigns its partitions before the session expires.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, MemberToRemove, OffsetSpec
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.kafka.connection import RETRY_S, ConnectionSettings
from stream.kafka.kafka_python.connection import KafkaConnection
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, Ends, Member, RebalanceListener
from stream.kafka.refusals import Subscription, check_co_partitioned, check_settings
from stream.wire.records import TopicPartition
from stream.wire.topics import BATCH_BYTES_MAX, TopicDescription, TopicSpec

_ATTEMPT_MS = 2_000  # timeout for one connection attempt, and interval between progress lines

_FORBIDDEN = kafka_errors.TopicAuthorizationFailedError.errno
_FORBIDDEN_NAME = kafka_errors.TopicAuthorizationFailedError.__name__


class Admin:
    """Base class for the Broker implementations: topics, offsets and groups."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """Connect to the cluster. Wait if no broker is running yet; see `stream.kafka.connection.connect`."""
        self._connection = KafkaConnection(settings)
        self._admin_client = self._connect(settings)
        self._connection.missing_of = self.missing_of

    def _connect(self, settings: ConnectionSettings) -> Any:
        started_s = time.monotonic()
        limit_ms, connection = settings.connect_timeout_ms, self._connection
        while True:
            left_ms = limit_ms - 1000 * (time.monotonic() - started_s)
            try:
                return connection.make(KafkaAdminClient, bootstrap_timeout_ms=max(1, min(_ATTEMPT_MS, left_ms)))
            except kafka_errors.RetriableError as error:
                if left_ms <= _ATTEMPT_MS:
                    hint = connection.hint() or "; start a broker (onebit kafka up), or use a different address"
                    raise BrokerUnavailableError(
                        f"no Kafka broker responded at {connection.bootstrap} within {limit_ms} ms{hint}"
                    ) from error
                settings.progress(
                    f"waiting for Kafka at {connection.bootstrap}: {time.monotonic() - started_s:.0f} s of "
                    f"{limit_ms / 1000:g} s{connection.hint()}"
                )

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        names = [spec.name for spec in specs]
        existing = self.describe_topics(names)
        check_settings(specs, existing)
        missing = {
            spec.name: {
                "num_partitions": spec.partitions, "replication_factor": spec.replication, "configs": settings_of(spec)
            }
            for spec in specs
            if spec.name not in existing
        }  # fmt: skip
        if missing:
            listed, client, ask = ", ".join(missing), self._admin_client, self._connection.ask
            created = ask(f"create the topics {listed}", lambda: client.create_topics(missing, raise_errors=False))
            self._refuse_unless(created, "create", kafka_errors.TopicAlreadyExistsError)
            timeout_ms = self._connection.request_timeout_ms
            ask(f"wait for {listed}", lambda: client.wait_for_topics(list(missing), timeout_ms=timeout_ms))
            check_settings(specs, self.describe_topics(names))

    def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        resources = [ConfigResource(ConfigResourceType.TOPIC, spec.name, retention_settings_of(spec)) for spec in specs]
        names = ", ".join(spec.name for spec in specs)
        answer = self._connection.ask(
            f"change the retention of {names}",
            lambda: self._admin_client.alter_configs(resources, raise_on_unknown=False)["topic"],
        )
        refused = {name: result for name, result in answer.items() if result != "OK"}
        if forbidden := [name for name, result in refused.items() if _FORBIDDEN_NAME in result]:
            raise self._connection.lacks(
                f"change the retention of {', '.join(forbidden)}",
                [Acl("topic", name, "AlterConfigs") for name in forbidden],
            )
        if refused:
            raise BrokerError(
                f"Kafka at {self._connection.bootstrap} refused to change the retention of topics: "
                + "; ".join(f"{name}: {result}" for name, result in refused.items())
            )

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        found = self._existing(names)
        if not found:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in found]
        configs = self._connection.ask(
            "describe topics", lambda: self._admin_client.describe_configs(resources, config_filter="all")["topic"]
        )
        # A topic's settings are missing if it was deleted between the requests, or if this client is not allowed to
        # describe its configuration.
        if forbidden := sorted(self._existing([name for name in found if not configs[name]])):
            missing = [Acl("topic", name, "DescribeConfigs") for name in forbidden]
            raise self._connection.lacks("describe topics", missing)
        return {name: _description_of(topic, configs[name]) for name, topic in found.items() if configs[name]}

    def _existing(self, names: Sequence[str]) -> dict[str, Any]:
        """Return kafka-python's descriptions of the named topics that exist, keyed by name."""
        if not names:
            return {}
        found = self._connection.ask("describe topics", lambda: self._admin_client.describe_topics(list(names)))
        self._check_allowed(found, "describe")
        return {topic["name"]: topic for topic in found if topic["error_code"] == 0}

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions, or 0 if the topic does not exist."""
        found = self.describe_topics([topic])
        return found[topic].partitions if found else 0

    def missing_of(self, needs: Sequence[Acl]) -> Sequence[Acl]:
        """Return the ACLs in `needs` that are missing. All ACLs in `needs` must be for the same kind of resource.

        The method asks the broker, because an error response does not always name the topic.
        """
        if len(needs) < 2 or needs[0].kind != "topic":
            return needs
        with suppress(BrokerError):
            names = sorted({acl.name for acl in needs})
            found = self._connection.ask("read ACLs", lambda: self._admin_client.describe_topics(names))
            allowed = {topic["name"]: topic["authorized_operations"] for topic in found}
            return [acl for acl in needs if acl.operation.upper() not in allowed[acl.name]] or needs
        return needs

    def delete_topics(self, names: Sequence[str]) -> None:
        """See Broker."""
        left = list(self.describe_topics(names))
        if not left:
            return
        answer = self._connection.ask(
            f"delete the topics {', '.join(left)}", lambda: self._admin_client.delete_topics(left, raise_errors=False)
        )
        self._refuse_unless(answer, "delete", kafka_errors.UnknownTopicOrPartitionError)
        deadline_s = time.monotonic() + self._connection.request_timeout_s
        while remaining := self.describe_topics(left):
            if time.monotonic() > deadline_s:
                raise self._connection.unanswered(f"delete the topics {', '.join(remaining)}")
            time.sleep(RETRY_S)

    def _check_allowed(self, topics: Sequence[Mapping[str, Any]], what: str) -> None:
        if forbidden := sorted(topic["name"] for topic in topics if topic["error_code"] == _FORBIDDEN):
            missing = [Acl("topic", name, what.capitalize()) for name in forbidden]
            raise self._connection.lacks(f"{what} topics", missing)

    def _refuse_unless(self, answer: Mapping[str, Any], what: str, done_already: type[Any]) -> None:
        """Raise an error if an operation on a topic failed, unless another program had already performed it."""
        self._check_allowed(answer["topics"], what)
        refused = [
            f"{topic['name']}: {kafka_errors.for_code(topic['error_code']).__name__} {topic['error_message'] or ''}"
            for topic in answer["topics"]
            if topic["error_code"] not in (0, done_already.errno)
        ]
        if refused:
            raise BrokerError(f"Kafka at {self._connection.bootstrap} refused to {what} topics: {'; '.join(refused)}")

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        # Both offsets only increase. The last stable offset is read first, and thus never exceeds the high watermark.
        stable = self._offsets(tps, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
        high_watermark = self._offsets(tps, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)
        return {tp: Ends(high_watermark[tp], stable[tp]) for tp in tps}

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self._offsets(tps, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def _offsets(self, tps: Sequence[TopicPartition], spec: Any, isolation: Any) -> dict[TopicPartition, int]:
        if not tps:
            return {}
        specs = {KafkaTopicPartition(*tp): spec for tp in tps}
        timeout_ms = self._connection.request_timeout_ms
        found = self._connection.ask(
            "read the first and last offsets of partitions",
            lambda: self._admin_client.list_partition_offsets(specs, isolation, timeout_ms=timeout_ms),
            [Acl("topic", tp.topic, "Describe") for tp in tps],
        )
        return {tp: found[KafkaTopicPartition(*tp)].offset for tp in tps}

    def committed(self, group: str, tps: Sequence[TopicPartition], client: Any = None) -> dict[TopicPartition, int]:
        """See Broker. `client` is a consumer in the group. Without `client`, a temporary consumer is created."""
        if client is None:
            client = self._connection.make_consumer(group_id=group)
            try:
                return self.committed(group, tps, client)
            finally:
                client.close(timeout_ms=0)
        wanted = [KafkaTopicPartition(*tp) for tp in tps]
        fetch, timeout_ms = client._coordinator.fetch_committed_offsets, self._connection.request_timeout_ms
        found = self._connection.ask(
            f"read the offsets of group {group}",
            lambda: fetch(wanted, timeout_ms=timeout_ms),
            [Acl("group", group, "Read"), *(Acl("topic", tp.topic, "Read") for tp in tps)],
        )
        return {tp: found[tp].offset for tp in tps if tp in found}

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """See Broker."""
        return {
            name: frozenset(
                TopicPartition(of_topic["topic"], partition)
                # An empty assignment means that a rebalance is in progress.
                for of_topic in (member["member_assignment"] or {"assigned_partitions": []})["assigned_partitions"]
                for partition in of_topic["partitions"]
            )
            for name, member in self._described_members(group)
        }

    def member_ids(self, group: str) -> dict[str, str]:
        """Return the member ids that the group has assigned, keyed by member name."""
        return {name: str(member["member_id"]) for name, member in self._described_members(group)}

    def _described_members(self, group: str) -> list[tuple[str, Any]]:
        what, needs = f"describe group {group}", [Acl("group", group, "Describe")]
        found = self._connection.ask(what, lambda: self._admin_client.describe_groups([group]), needs)
        return [(member["group_instance_id"] or member["member_id"], member) for member in found[group]["members"]]

    def leave(self, subscription: Subscription, member_id: str) -> None:
        """Remove a static member from its group, unless another process has already taken its place."""
        member = MemberToRemove(member_id=member_id, group_instance_id=subscription.member, reason="closed")
        with suppress(kafka_errors.KafkaError):
            self._admin_client.remove_group_members(subscription.group, [member])

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> Member:
        """See Broker."""
        check_co_partitioned(group, topics, self.describe_topics(topics))
        return self._join(Subscription(group, member, topics, listener, rejoins))

    def _join(self, subscription: Subscription) -> Member:
        raise NotImplementedError

    def close(self) -> None:
        """See Broker."""
        self._connection.close_clients()
        self._admin_client.close()


# By default, segments are closed at 1 GB, and a log is compacted only when half of it is obsolete. Here, topics are
# compacted earlier, because a recovery reads the whole topic.
_COMPACTION = {"segment.bytes": str(64 << 20), "min.cleanable.dirty.ratio": "0.1"}
_SEGMENT_MS = 7 * 24 * 3_600_000  # the default age at which a segment is closed
_NO_LAG_LIMIT = 2**63 - 1  # the default of max.compaction.lag.ms

SEGMENTS_PER_RETENTION = 10
"""Number of segments into which a topic's retention is divided. Kafka deletes and compacts only whole segments."""


def settings_of(spec: TopicSpec) -> dict[str, str]:
    """Return the settings for a new topic."""
    return {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact" if spec.compacted else "delete",
        "max.message.bytes": str(BATCH_BYTES_MAX),  # otherwise, the broker's own limit applies
        # With acks=all, an acknowledged record is on at least two brokers.
        "min.insync.replicas": str(max(1, spec.replication - 1)),
        **(_COMPACTION if spec.compacted else {}),
        **retention_settings_of(spec),
    }


def retention_settings_of(spec: TopicSpec) -> dict[str, str]:
    """Return the settings that limit the age of a topic's records.

    A compacted topic has no retention. Instead, its obsolete records are compacted within a segment's time.
    """
    is_limited = spec.retention_ms >= 0
    segment_ms = min(_SEGMENT_MS, max(1, spec.retention_ms // SEGMENTS_PER_RETENTION)) if is_limited else _SEGMENT_MS
    lag_ms = segment_ms if is_limited else _NO_LAG_LIMIT
    return {
        "retention.ms": str(spec.retention_ms),
        "segment.ms": str(segment_ms),
        **({"max.compaction.lag.ms": str(lag_ms)} if spec.compacted else {}),
    }


def _description_of(topic: Mapping[str, Any], configs: Mapping[str, Any]) -> TopicDescription:
    """Build a topic's description from kafka-python's responses."""
    return TopicDescription(
        topic["name"],
        partitions=len(topic["partitions"]),
        append_time=configs["message.timestamp.type"]["value"] == "LogAppendTime",
        compacted="compact" in configs["cleanup.policy"]["value"],
        retention_ms=int(configs["retention.ms"]["value"]),
        replication=min(len(partition["replica_nodes"]) for partition in topic["partitions"]),
        batch_bytes_max=int(configs["max.message.bytes"]["value"]),
        leader_epochs=tuple(
            partition.get("leader_epoch", -1)
            for partition in sorted(topic["partitions"], key=lambda partition: partition["partition_index"])
        ),
        topic_id=str(topic.get("topic_id") or ""),
    )
