"""The Broker implemented with kafka-python; see the other modules in this package."""

from collections.abc import Sequence
from functools import partial

from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.kafka.kafka_python.admin import Admin
from stream.kafka.kafka_python.consumers import Reader
from stream.kafka.kafka_python.membership import GroupConsumer
from stream.kafka.kafka_python.producers import KafkaSink, KafkaTransactionSink
from stream.kafka.port import FETCH_WAIT_MS
from stream.kafka.producers import PlainProducer, TransactionProducer
from stream.kafka.refusals import Subscription
from stream.wire.records import TopicPartition

_RETRY_MS = 20
"""Interval between a reader's first two metadata requests, and between retries of its other requests."""


class KafkaBroker(Admin):
    """See Broker. Not thread-safe; each producer and consumer has its own network thread."""

    def producer(self) -> PlainProducer:
        """See Broker."""
        return PlainProducer(lambda: KafkaSink(self._connection, linger_ms=5), self._connection.clients)

    def transactional_producer(self, transactional_id: str) -> TransactionProducer:
        """See Broker."""
        make = partial(KafkaTransactionSink, self._connection, transactional_id)
        return TransactionProducer(make, self._connection.clients)

    def _join(self, subscription: Subscription) -> GroupConsumer:
        return GroupConsumer(self._connection, self, subscription)

    def reader(self, tps: Sequence[TopicPartition], fetch_wait_ms: int = FETCH_WAIT_MS) -> Reader:
        """See Broker."""
        beginnings = self.beginnings(tps)
        client = self._connection.make_consumer(fetch_wait_ms, retry_backoff_ms=_RETRY_MS)
        client.assign([KafkaTopicPartition(*tp) for tp in tps])
        consumer = Reader(self._connection, self, client)
        for tp, offset in beginnings.items():
            consumer.seek(tp, offset)
        return consumer
