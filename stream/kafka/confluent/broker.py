"""The Broker implemented with confluent-kafka; see the other modules in this package.

kafka-python, which every installation includes, handles topics, offsets and groups, because librdkafka's admin client:

- aborts the process with a failed assertion shortly after a request timeout and reports a negative end offset for a
  partition instead of an error (librdkafka 2.16.0);
- cannot remove a static member (`group.instance.id`). Such a member does not leave its group when it is closed, so no
  other member would read its partitions until its session expires.
"""

from collections.abc import Sequence
from functools import partial

from stream.kafka.confluent.connection import ConfluentConnection
from stream.kafka.confluent.consumers import Reader
from stream.kafka.confluent.membership import GroupConsumer
from stream.kafka.confluent.producers import ConfluentSink, ConfluentTransactionSink
from stream.kafka.connection import ConnectionSettings
from stream.kafka.kafka_python.admin import Admin
from stream.kafka.port import FETCH_WAIT_MS
from stream.kafka.producers import PlainProducer, TransactionProducer
from stream.kafka.refusals import Subscription
from stream.wire.records import TopicPartition

_NO_GROUP = "onebit-reader"
"""librdkafka requires a group name for each consumer; no client joins this group."""


class ConfluentBroker(Admin):
    """See Broker. Not thread-safe; librdkafka runs its own threads for each producer and consumer."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """See Admin."""
        super().__init__(settings)
        self._librdkafka = ConfluentConnection(settings)
        self._librdkafka.missing_of = self.missing_of

    def producer(self) -> PlainProducer:
        """See Broker."""
        return PlainProducer(lambda: ConfluentSink(self._librdkafka, self), self._librdkafka.clients)

    def transactional_producer(self, transactional_id: str) -> TransactionProducer:
        """See Broker."""
        make = partial(ConfluentTransactionSink, self._librdkafka, self, transactional_id)
        return TransactionProducer(make, self._librdkafka.clients)

    def _join(self, subscription: Subscription) -> GroupConsumer:
        return GroupConsumer(self._librdkafka, self, subscription)

    def reader(self, tps: Sequence[TopicPartition], fetch_wait_ms: int = FETCH_WAIT_MS) -> Reader:
        """See Broker."""
        return Reader(self._librdkafka, self, self.beginnings(tps), fetch_wait_ms, group_id=_NO_GROUP)

    def close(self) -> None:
        """See Broker."""
        self._librdkafka.close_clients()
        super().close()
