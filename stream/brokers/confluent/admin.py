"""Topics, offsets and groups, asked of Kafka by librdkafka's admin client.

- Committed offsets lag behind a commit until its marker is written. They are asked for with `require_stable`.
- Where partitions end is asked of consumers: the admin client's answer that did not come in time is an offset below 0
  and no error, and its process was aborted later by an assertion (librdkafka 2.16.0).
- A static member (`group.instance.id`) does not leave its group at close, and this admin client cannot take it out, so
  that its partitions would lie still until the session ends. kafka-python, which every installation has, can: `leave`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka import admin as client_admin

from stream.brokers.confluent.connection import MISSING, RETRY_S, Connection, error_of, is_transient
from stream.brokers.kafka_python.broker import KafkaBroker
from stream.brokers.port import BrokerError, BrokerUnavailableError, Ends
from stream.brokers.refusals import check_settings
from stream.brokers.topic_settings import description_of, settings_of
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec

_ATTEMPT_S = 2.0  # one attempt to connect, and how often the wait is reported

NO_GROUP = "onebit-reader"
"""librdkafka makes no consumer without the name of a group; this one is never joined."""

_admin: Any = client_admin  # its names are exported, but not so that mypy sees it
_kafka: Any = confluent_kafka


class Admin:
    """What is asked of the broker outside of producers and consumers."""

    def __init__(self, connection: Connection, connect_timeout_ms: int, progress: Callable[[str], None]) -> None:
        """Connect, and wait for a broker that is not up yet; for how long, and who is told: see ConfluentBroker."""
        self._connection = connection
        self._timeout_s = connection.request_timeout_s
        self._asking: dict[str, Any] = {}  # consumers that read nothing, by their level of isolation
        with connection.translating("make a client"):
            self.client = _admin.AdminClient(connection.properties())
        self._connect(connect_timeout_ms, progress)

    def _connect(self, connect_timeout_ms: int, progress: Callable[[str], None]) -> None:
        started_s = time.monotonic()
        bootstrap = self._connection.bootstrap
        while True:
            left_s = connect_timeout_ms / 1000 - (time.monotonic() - started_s)
            attempt_s = max(0.001, min(_ATTEMPT_S, left_s))
            asked_s = time.monotonic()
            try:
                self.client.describe_cluster(request_timeout=max(1.0, attempt_s)).result(attempt_s)
            except (KafkaException, TimeoutError) as raised:
                if isinstance(raised, KafkaException) and not is_transient(error_of(raised)):
                    self._connection.refuse("connect", error_of(raised), raised)
                if left_s <= _ATTEMPT_S:
                    raise BrokerUnavailableError(
                        f"no Kafka answered at {bootstrap} within {connect_timeout_ms} ms; start one "
                        f"(onebit kafka up), or give the address of one that runs"
                    ) from raised
                waited_s = time.monotonic() - started_s
                progress(f"waiting for Kafka at {bootstrap}: {waited_s:.0f} s of {connect_timeout_ms / 1000:g} s")
                time.sleep(max(0.0, attempt_s - (time.monotonic() - asked_s)))
            else:
                return

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        existing = self.describe_topics([spec.name for spec in specs])
        check_settings(specs, existing)
        missing = [spec for spec in specs if spec.name not in existing]
        if not missing:
            return
        fresh = [
            _admin.NewTopic(spec.name, spec.partitions, spec.replication, config=settings_of(spec)) for spec in missing
        ]
        answers = self.client.create_topics(
            fresh, operation_timeout=self._timeout_s, request_timeout=self._connection.patience_s
        )
        self._refuse_unless(answers, "create", confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS)
        names = [spec.name for spec in specs]
        self._wait_until(
            f"create the topics {', '.join(names)}", lambda: len(self.describe_topics(names)) == len(names)
        )
        check_settings(specs, self.describe_topics(names))

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        shapes = self._shapes(names)
        resources = [_admin.ConfigResource(_admin.ResourceType.TOPIC, name) for name in shapes]
        if not resources:
            return {}

        def ask() -> dict[str, dict[str, str]]:
            answers = self.client.describe_configs(resources, request_timeout=self._timeout_s)
            found = {}
            for resource, answer in answers.items():
                with _unless_missing():  # deleted between the two questions
                    found[resource.name] = {
                        entry.name: entry.value for entry in answer.result(self._connection.patience_s).values()
                    }
            return found

        configs = self._connection.ask("describe topics", ask)
        return {name: description_of(name, *shapes[name], configs[name]) for name in shapes if configs.get(name)}

    def _shapes(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Partitions and replicas of the topics that exist."""
        if not names:
            return {}

        def ask() -> dict[str, tuple[int, int]]:
            answers = self.client.describe_topics(_kafka.TopicCollection(list(names)), request_timeout=self._timeout_s)
            found = {}
            for name, answer in answers.items():
                with _unless_missing():
                    partitions = answer.result(self._connection.patience_s).partitions
                    found[name] = (len(partitions), min(len(partition.replicas) for partition in partitions))
            return found

        return self._connection.ask("describe topics", ask)

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; 0 when there is no such topic."""
        return self._shapes([topic]).get(topic, (0, 0))[0]

    def delete_topics(self, names: Sequence[str]) -> None:
        """See Broker."""
        existing = list(self.describe_topics(names))
        if not existing:
            return
        answers = self.client.delete_topics(
            existing, operation_timeout=self._timeout_s, request_timeout=self._connection.patience_s
        )
        self._refuse_unless(answers, "delete", *MISSING)
        self._wait_until(f"delete the topics {', '.join(existing)}", lambda: not self.describe_topics(existing))

    def _wait_until(self, what: str, claim: Callable[[], bool]) -> None:
        deadline_s = self._connection.deadline_s()
        while not claim():
            if time.monotonic() > deadline_s:
                raise BrokerUnavailableError(f"Kafka at {self._connection.bootstrap} did not {what} in time")
            time.sleep(RETRY_S)

    def _refuse_unless(self, answers: Mapping[str, Any], what: str, *done_already: Any) -> None:
        """Raise with what each topic was answered, unless that it was done, or had been done by another program."""
        refused = {}
        for name, answer in answers.items():
            try:
                answer.result(self._connection.patience_s)
            except KafkaException as raised:
                if error_of(raised).code() not in done_already:
                    refused[name] = error_of(raised)
        if not refused:
            return
        for error in refused.values():
            if is_transient(error):
                self._connection.refuse(f"{what} topics", error)
        said = "; ".join(f"{name}: {error.name()} {error.str()}" for name, error in refused.items())
        raise BrokerError(f"Kafka at {self._connection.bootstrap} refused to {what} topics: {said}")

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        # The stable end first: both only grow, so that it is never beyond the high watermark.
        stable = {tp: self._watermarks("read_committed", tp)[1] for tp in tps}
        return {tp: Ends(self._watermarks("read_uncommitted", tp)[1], stable[tp]) for tp in tps}

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return {tp: self._watermarks("read_uncommitted", tp)[0] for tp in tps}

    def _watermarks(self, level: str, tp: TopicPartition) -> tuple[int, int]:
        """Where a partition begins and ends for a consumer of this level, asked of the broker now."""
        if level not in self._asking:
            with self._connection.translating("make a client"):
                self._asking[level] = _kafka.Consumer(
                    self._connection.properties(group_id=NO_GROUP, isolation_level=level)
                )

        def ask() -> tuple[int, int]:
            found = self._asking[level].get_watermark_offsets(
                _kafka.TopicPartition(*tp), timeout=self._timeout_s, cached=False
            )
            if found is None or min(found) < 0:
                raise KafkaException(_kafka.KafkaError(_kafka.KafkaError._TIMED_OUT))
            low, high = found
            return low, high

        return self._connection.ask(f"ask where {tp.topic}/{tp.partition} begins and ends", ask)

    def committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        asked = _kafka.ConsumerGroupTopicPartitions(group, [_kafka.TopicPartition(*tp) for tp in tps])
        if not asked.topic_partitions:
            return {}

        def ask() -> dict[TopicPartition, int]:
            answers = self.client.list_consumer_group_offsets(
                [asked], require_stable=True, request_timeout=self._timeout_s
            )
            found = answers[group].result(self._connection.patience_s).topic_partitions
            for tp in found:
                if tp.error is not None:  # the offsets of a transaction that is not settled yet
                    raise KafkaException(tp.error)
            return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

        return self._connection.ask(f"read the offsets of group {group}", ask)

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """See Broker."""
        return {
            member.group_instance_id or member.member_id: frozenset(
                TopicPartition(tp.topic, tp.partition) for tp in member.assignment.topic_partitions
            )
            for member in self._described_members(group)
        }

    def member_ids(self, group: str) -> dict[str, str]:
        """The id that the group has given to each of its members, by name."""
        return {
            member.group_instance_id or member.member_id: member.member_id for member in self._described_members(group)
        }

    def _described_members(self, group: str) -> Sequence[Any]:
        def ask() -> Sequence[Any]:
            answers = self.client.describe_consumer_groups([group], request_timeout=self._timeout_s)
            members: Sequence[Any] = answers[group].result(self._connection.patience_s).members
            return members

        return self._connection.ask(f"describe group {group}", ask)

    def leave(self, group: str, member_id: str, member: str) -> None:
        """Take a static member out of its group, unless another process has its place already."""
        with suppress(BrokerError):
            timeout_ms = self._connection.request_timeout_ms
            other = KafkaBroker(
                self._connection.bootstrap, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
            )
            other.admin.leave(group, member_id, member)
            other.close()

    def close(self) -> None:
        """Release the connections."""
        for client in self._asking.values():
            client.close()


@contextmanager
def _unless_missing() -> Iterator[None]:
    """Pass over that a topic does not exist."""
    try:
        yield
    except KafkaException as raised:
        if error_of(raised).code() not in MISSING:
            raise
