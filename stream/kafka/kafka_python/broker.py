"""Apache Kafka behind the Broker port, put together: see the modules beside this one."""

from collections.abc import Callable, Sequence

from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.kafka.client_config import ClientConfig
from stream.kafka.connecting import (
    CONNECT_TIMEOUT_MS,
    NO_SECURITY,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
)
from stream.kafka.kafka_python.admin import Admin
from stream.kafka.kafka_python.connection import Connection
from stream.kafka.kafka_python.consumers import Reader, make_consumer
from stream.kafka.kafka_python.membership import GroupConsumer, join_group
from stream.kafka.kafka_python.producers import (
    PlainProducer,
    TransactionalKafkaProducer,
    plain_producer,
    transactional_producer,
)
from stream.kafka.port import Ends, RebalanceListener
from stream.kafka.refusals import check_co_partitioned
from stream.wire.records import TopicPartition
from stream.wire.topics import TopicDescription, TopicSpec


class KafkaBroker:
    """See Broker. For one thread; each producer and consumer made here has a network thread of its own."""

    def __init__(
        self,
        bootstrap: str,
        *,
        config: ClientConfig = NO_SECURITY,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Connect, and wait for a broker that is not up yet: see `stream.kafka.connecting.connect`."""
        self._session_timeout_ms = session_timeout_ms
        self._transaction_timeout_ms = transaction_timeout_ms
        self._connection = Connection(bootstrap, request_timeout_ms, config)
        self.admin = Admin(self._connection, connect_timeout_ms, progress or (lambda _: None))

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See Broker."""
        self.admin.create_topics(specs)

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """See Broker."""
        return self.admin.describe_topics(names)

    def delete_topics(self, names: Sequence[str]) -> None:
        """See Broker."""
        self.admin.delete_topics(names)

    def producer(self) -> PlainProducer:
        """See Broker."""
        return self._connection.opened(plain_producer(self._connection))

    def transactional_producer(self, transactional_id: str) -> TransactionalKafkaProducer:
        """See Broker."""
        return self._connection.opened(
            transactional_producer(self._connection, transactional_id, self._transaction_timeout_ms)
        )

    def group_consumer(
        self, group: str, member: str, topics: Sequence[str], listener: RebalanceListener, *, rejoins: bool = True
    ) -> GroupConsumer:
        """See Broker."""
        check_co_partitioned(group, topics, self.describe_topics(topics))
        return self._connection.opened(
            join_group(
                self._connection, self.admin, group, member, topics, listener,
                session_timeout_ms=self._session_timeout_ms, rejoins=rejoins,
            )
        )  # fmt: skip

    def reader(self, tps: Sequence[TopicPartition]) -> Reader:
        """See Broker."""
        beginnings = self.beginnings(tps)
        client = make_consumer(self._connection)
        consumer = self._connection.opened(Reader(self._connection, self.admin, client))
        client.assign([KafkaTopicPartition(*tp) for tp in tps])
        for tp, offset in beginnings.items():
            consumer.seek(tp, offset)
        return consumer

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """See Broker."""
        return self.admin.ends(tps)

    def stable_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self.admin.stable_ends(tps)

    def beginnings(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        return self.admin.beginnings(tps)

    def committed(self, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Broker."""
        client = make_consumer(self._connection, group_id=group)
        try:
            return self.admin.committed_to(client, group, tps)
        finally:
            client.close(timeout_ms=0)

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """See Broker."""
        return self.admin.members(group)

    def close(self) -> None:
        """See Broker."""
        self._connection.close_clients()
        self.admin.close()
