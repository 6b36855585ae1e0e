"""Topics, offsets and groups, asked of Kafka by its admin client.

- `create_topics` and `delete_topics` are asked not to raise: another program may be doing the same, and kafka-python
  raises the first error alone. What each topic was answered is looked at here.
- Committed offsets lag behind a commit until its marker is written. They are asked for with `require_stable`, which
  kafka-python does for a consumer that reads committed records, not in its admin client.
- A static member (`group_instance_id`) never leaves its group at close, so that its partitions would lie still until
  the session ends; `leave` takes it out.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, MemberToRemove, OffsetSpec
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.kafka.kafka_python.connection import RETRY_S, Connection
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, Ends
from stream.kafka.refusals import check_settings
from stream.kafka.topic_settings import description_of, settings_of
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec

_ATTEMPT_MS = 2_000  # one attempt to connect, and how often the wait is reported

_FORBIDDEN = kafka_errors.TopicAuthorizationFailedError.errno


class Admin:
    """What is asked of the broker outside of producers and consumers."""

    def __init__(self, connection: Connection, connect_timeout_ms: int, progress: Callable[[str], None]) -> None:
        """Connect, and wait for a broker that is not up yet; for how long, and who is told: see KafkaBroker."""
        self._connection = connection
        self.client = self._connect(connect_timeout_ms, progress)
        connection.lacking = self.lacking

    def _connect(self, connect_timeout_ms: int, progress: Callable[[str], None]) -> Any:
        started_s = time.monotonic()
        bootstrap = self._connection.bootstrap
        while True:
            left_ms = connect_timeout_ms - 1000 * (time.monotonic() - started_s)
            attempt_ms = max(1, min(_ATTEMPT_MS, left_ms))
            try:
                return self._connection.make(KafkaAdminClient, bootstrap_timeout_ms=attempt_ms)
            except kafka_errors.RetriableError as error:
                if left_ms <= _ATTEMPT_MS:
                    what_to_do = "; start one (onebit kafka up), or give the address of one that runs"
                    raise BrokerUnavailableError(
                        f"no Kafka answered at {bootstrap} within {connect_timeout_ms} ms"
                        f"{self._connection.hint() or what_to_do}"
                    ) from error
                waited_s = time.monotonic() - started_s
                progress(
                    f"waiting for Kafka at {bootstrap}: {waited_s:.0f} s of {connect_timeout_ms / 1000:g} s"
                    f"{self._connection.hint()}"
                )

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        existing = self.describe_topics([spec.name for spec in specs])
        check_settings(specs, existing)
        missing = {
            spec.name: {
                "num_partitions": spec.partitions,
                "replication_factor": spec.replication,
                "configs": settings_of(spec),
            }
            for spec in specs
            if spec.name not in existing
        }
        if not missing:
            return
        answer = self._connection.ask(
            f"create the topics {', '.join(missing)}", lambda: self.client.create_topics(missing, raise_errors=False)
        )
        self._refuse_unless(answer, "create", kafka_errors.TopicAlreadyExistsError)
        self._connection.ask(
            f"wait for the topics {', '.join(missing)}",
            lambda: self.client.wait_for_topics(list(missing), timeout_ms=self._connection.request_timeout_ms),
        )
        check_settings(specs, self.describe_topics([spec.name for spec in specs]))

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        if not names:
            return {}
        found = self._existing(names)
        if not found:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in found]
        configs = self._connection.ask(
            "describe topics", lambda: self.client.describe_configs(resources, config_filter="all")["topic"]
        )
        unsaid = [name for name in found if not configs[name]]  # deleted meanwhile, or it was not allowed to ask
        if unsaid and (forbidden := sorted(self._existing(unsaid))):
            acls = [Acl("topic", name, "DescribeConfigs") for name in forbidden]
            self._connection.forbid("describe topics", acls)
        descriptions = {}
        for name, topic in found.items():
            settings = {setting: described["value"] for setting, described in configs[name].items()}
            if settings:  # none: deleted between the two questions
                replication = min(len(partition["replica_nodes"]) for partition in topic["partitions"])
                topic_id = str(topic.get("topic_id") or "")
                descriptions[name] = description_of(name, len(topic["partitions"]), replication, settings, topic_id)
        return descriptions

    def _existing(self, names: Sequence[str]) -> dict[str, Any]:
        """What kafka-python says of the topics that exist, by name."""
        found = self._connection.ask("describe topics", lambda: self.client.describe_topics(list(names)))
        if forbidden := [topic["name"] for topic in found if topic["error_code"] == _FORBIDDEN]:
            self._connection.forbid("describe topics", [Acl("topic", name, "Describe") for name in sorted(forbidden)])
        return {topic["name"]: topic for topic in found if topic["error_code"] == 0}

    def lacking(self, needs: Sequence[Acl]) -> Sequence[Acl]:
        """Those of some ACLs of one kind that are lacking: a refusal does not always tell which topic it is about."""
        if len(needs) < 2 or needs[0].kind != "topic":
            return needs
        with suppress(BrokerError):
            names = sorted({acl.name for acl in needs})
            found = self._connection.ask("ask what is allowed", lambda: self.client.describe_topics(names))
            allowed = {topic["name"]: topic["authorized_operations"] for topic in found}
            return [acl for acl in needs if acl.operation.upper() not in allowed[acl.name]] or needs
        return needs

    def delete_topics(self, names: Sequence[str]) -> None:
        """See Broker."""
        existing = list(self.describe_topics(names))
        if not existing:
            return
        what = f"delete the topics {', '.join(existing)}"
        answer = self._connection.ask(what, lambda: self.client.delete_topics(existing, raise_errors=False))
        self._refuse_unless(answer, "delete", kafka_errors.UnknownTopicOrPartitionError)
        deadline_s = self._connection.deadline_s()
        while left := self.describe_topics(existing):
            if time.monotonic() > deadline_s:
                raise BrokerUnavailableError(
                    f"Kafka at {self._connection.bootstrap} did not {what} in time; left: {', '.join(left)}"
                )
            time.sleep(RETRY_S)

    def _refuse_unless(self, answer: Mapping[str, Any], what: str, done_already: type[Any]) -> None:
        """Raise with what each topic was answered, unless that it was done, or had been done by another program."""
        if forbidden := [topic["name"] for topic in answer["topics"] if topic["error_code"] == _FORBIDDEN]:
            acls = [Acl("topic", name, what.capitalize()) for name in sorted(forbidden)]
            self._connection.forbid(f"{what} topics", acls)
        refused = [
            f"{topic['name']}: {kafka_errors.for_code(topic['error_code']).__name__} {topic['error_message'] or ''}"
            for topic in answer["topics"]
            if topic["error_code"] not in (0, done_already.errno)
        ]
        if refused:
            raise BrokerError(f"Kafka at {self._connection.bootstrap} refused to {what} topics: {'; '.join(refused)}")

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        # The stable end first: both only grow, so that it is never beyond the high watermark.
        stable = self.stable_ends(tps)
        high_watermark = self._offsets(tps, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)
        return {tp: Ends(high_watermark[tp], stable[tp]) for tp in tps}

    def stable_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self._offsets(tps, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self._offsets(tps, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def _offsets(self, tps: Sequence[TopicPartition], spec: Any, isolation: Any) -> dict[TopicPartition, int]:
        if not tps:
            return {}
        specs = {KafkaTopicPartition(*tp): spec for tp in tps}
        timeout_ms = self._connection.request_timeout_ms
        found = self._connection.ask(
            "ask where partitions begin and end",
            lambda: self.client.list_partition_offsets(specs, isolation, timeout_ms=timeout_ms),
            [Acl("topic", tp.topic, "Describe") for tp in tps],
        )
        return {tp: found[KafkaTopicPartition(*tp)].offset for tp in tps}

    def committed_to(self, consumer: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a group, by kafka-python's consumer of that group."""
        offsets = {}
        for tp in tps:
            timeout_ms = self._connection.request_timeout_ms
            ask = partial(consumer.committed, KafkaTopicPartition(*tp), timeout_ms=timeout_ms)
            needs = (Acl("group", group, "Read"), Acl("topic", tp.topic, "Read"))
            offset: int | None = self._connection.ask(f"read the offsets of group {group}", ask, needs)
            if offset is not None:
                offsets[tp] = offset
        return offsets

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """See Broker."""
        members: dict[str, frozenset[TopicPartition]] = {}
        for name, member in self._described_members(group):
            dealt = member["member_assignment"] or {"assigned_partitions": []}  # no bytes: it is being dealt anew
            members[name] = frozenset(
                TopicPartition(of_topic["topic"], partition)
                for of_topic in dealt["assigned_partitions"]
                for partition in of_topic["partitions"]
            )
        return members

    def member_ids(self, group: str) -> dict[str, str]:
        """The id that the group has given to each of its members, by name."""
        return {name: str(member["member_id"]) for name, member in self._described_members(group)}

    def _described_members(self, group: str) -> list[tuple[str, Any]]:
        found = self._connection.ask(
            f"describe group {group}",
            lambda: self.client.describe_groups([group]),
            [Acl("group", group, "Describe")],
        )
        return [(member["group_instance_id"] or member["member_id"], member) for member in found[group]["members"]]

    def leave(self, group: str, member_id: str, member: str) -> None:
        """Take a static member out of its group, unless another process has its place already."""
        with suppress(kafka_errors.KafkaError):
            self.client.remove_group_members(
                group, [MemberToRemove(member_id=member_id, group_instance_id=member, reason="closed")]
            )

    def close(self) -> None:
        """Release the connection."""
        self.client.close()
