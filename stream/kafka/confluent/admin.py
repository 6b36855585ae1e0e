"""Topics, offsets and groups.

Where partitions begin and end is asked by librdkafka, since a learner asks at every step. All else is asked by
kafka-python, which every installation has, and not by librdkafka's admin client:

- When a broker does not answer in time, that one aborts the process by an assertion a little later, and its answer to
  where a partition ends is an offset below 0, and no error (librdkafka 2.16.0).
- A static member (`group.instance.id`) does not leave its group at close, and that one cannot take it out, so that its
  partitions would lie still until the session ends.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

from stream.kafka.confluent.connection import MISSING, RAISED, Connection, error_of
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.kafka.port import Acl, BrokerError, BrokerUnavailableError, Ends
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicDescription

NO_GROUP = "onebit-reader"
"""librdkafka makes no consumer without the name of a group; this one is never joined."""

_kafka: Any = confluent_kafka


class Admin:
    """What is asked of the broker outside of producers and consumers."""

    def __init__(self, connection: Connection, connect_timeout_ms: int, progress: Callable[[str], None] | None) -> None:
        """Connect, and wait for a broker that is not up yet; for how long, and who is told: see ConfluentBroker."""
        self._connection = connection
        self._asking: dict[str, Any] = {}  # consumers that read nothing, by their level of isolation
        self.other = KafkaBroker(
            connection.bootstrap,
            config=connection.config,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=connection.request_timeout_ms,
            progress=progress,
        )
        connection.lacking = self.other.admin.lacking

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        return self.other.describe_topics(names)

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; 0 when there is no such topic."""
        found = self.other.describe_topics([topic])
        return found[topic].partitions if found else 0

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        # The stable end first: both only grow, so that it is never beyond the high watermark.
        stable = self.stable_ends(tps)
        high_watermark = self._offsets("read_uncommitted", _kafka.OFFSET_END, tps)
        return {tp: Ends(high_watermark[tp], stable[tp]) for tp in tps}

    def stable_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self._offsets("read_committed", _kafka.OFFSET_END, tps)

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self._offsets("read_uncommitted", _kafka.OFFSET_BEGINNING, tps)

    def _offsets(self, level: str, which: int, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions begin or end for a consumer of this level, asked of the broker now, in one request.

        It is asked as one asks for the offset of a time: Kafka has a time for either.
        """
        if level not in self._asking:
            with self._connection.translating("make a client"):
                self._asking[level] = _kafka.Consumer(
                    self._connection.properties(group_id=NO_GROUP, isolation_level=level)
                )

        def ask() -> dict[TopicPartition, int]:
            try:
                return _told(
                    self._asking[level].offsets_for_times(
                        [_kafka.TopicPartition(*tp, which) for tp in tps], timeout=self._connection.request_timeout_s
                    )
                )
            except KafkaException as raised:
                # So it also answers of partitions that it has not heard of yet, and hears of only when it is made to.
                if error_of(raised).code() in MISSING and self._are_there(tps):
                    for topic in {tp.topic for tp in tps}:
                        self._asking[level].list_topics(topic, timeout=self._connection.request_timeout_s)
                    raise _timed_out() from raised
                raise

        if not tps:
            return {}
        what = f"ask where {', '.join(f'{tp.topic}/{tp.partition}' for tp in tps)} begin and end"
        needs = [Acl("topic", tp.topic, "Describe") for tp in tps]
        try:
            return self._connection.ask(what, ask, needs)
        except BrokerUnavailableError:  # a client that was made while a broker stood still may not hear that it is back
            _release(self._asking.pop(level))
            raise

    def _are_there(self, tps: Sequence[TopicPartition]) -> bool:
        there_are = self.describe_topics(sorted({tp.topic for tp in tps}))
        return all(tp.topic in there_are and tp.partition < there_are[tp.topic].partitions for tp in tps)

    def committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self.other.committed(group, list(tps))

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """See Broker."""
        return self.other.members(group)

    def member_ids(self, group: str) -> dict[str, str]:
        """The id that the group has given to each of its members, by name."""
        return self.other.admin.member_ids(group)

    def leave(self, group: str, member_id: str, member: str) -> None:
        """Take a static member out of its group, unless another process has its place already."""
        self.other.admin.leave(group, member_id, member)

    def close(self) -> None:
        """Release the connections."""
        for client in self._asking.values():
            _release(client)
        with suppress(BrokerError):
            self.other.close()


def _release(client: Any) -> None:
    with suppress(*RAISED):
        client.close()


def _told(answers: Iterable[Any]) -> dict[TopicPartition, int]:
    """The offsets in an answer; the first error in it is raised."""
    offsets = {}
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
        if answer.offset < 0:
            raise _timed_out()
        offsets[TopicPartition(answer.topic, answer.partition)] = answer.offset
    return offsets


def _timed_out() -> KafkaException:
    return KafkaException(_kafka.KafkaError(_kafka.KafkaError._TIMED_OUT))
