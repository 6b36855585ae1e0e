"""Reads from Kafka.

Workarounds for kafka-python:

- With a reset policy, the client silently replaces a deleted offset with the first available offset. No policy is set
  here.
- The client sets aside records fetched from a paused partition. After a resume, the client may neither return nor fetch
  any more records. This happens if its current batch is from another partition and has been read completely.
  `Reader.poll` clears such a batch.
- Only a record's timestamp type shows whether the broker or the sender set the timestamp. `Reader.poll` checks it.
- Records from other clients, and batches that cannot be read, are handled in `foreign`.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.kafka.connection import RETRY_S
from stream.kafka.kafka_python.admin import Admin
from stream.kafka.kafka_python.connection import CLOSE_S, TRANSIENT, KafkaConnection
from stream.kafka.kafka_python.foreign import headers_read
from stream.kafka.port import Acl, BrokerError
from stream.kafka.refusals import check_dated_by_sender
from stream.wire.records import Record, TopicPartition

_CREATE_TIME = 0
"""The type of a timestamp that was set by the sender."""


def _follow_stable_ends(fetcher: Any) -> Mapping[tuple[str, int], int]:
    """Return a mapping from each partition to its last stable offset. Each fetch response updates the mapping.

    The client does not store these offsets. In a fetch session, a response omits partitions that have no new records
    and whose end has not moved (KIP-227).
    """
    ends: dict[tuple[str, int], int] = {}
    handle = fetcher._handle_fetch_response

    def handle_and_follow(node: Any, offsets: Any, sent: Any, response: Any) -> None:
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.last_stable_offset >= 0:  # a negative offset means an error
                    ends[topic.topic, partition.partition_index] = partition.last_stable_offset
        handle(node, offsets, sent, response)

    fetcher._handle_fetch_response = handle_and_follow
    return ends


class Reader:
    """A Consumer without a group."""

    def __init__(self, connection: KafkaConnection, admin: Admin, client: Any) -> None:
        self._connection = connection
        self._admin = admin
        self._client = client
        self._stable_ends = _follow_stable_ends(client._fetcher)
        connection.clients.add(self)

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return frozenset(TopicPartition(*tp) for tp in self._client.assignment())

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer. Returns no records while the broker is down; the client reconnects automatically.

        Raises:
            TopicSettingsError: records carry their sender's timestamp, and their topic uses CreateTime.
        """
        fetcher = self._client._fetcher
        if not fetcher._next_partition_records:  # all have been read; make room for later records
            fetcher._next_partition_records = None
        try:
            polled = self._client.poll(timeout_ms, records_max)
        except TRANSIENT:
            time.sleep(min(timeout_ms / 1000, RETRY_S))
            return []
        except kafka_errors.OffsetOutOfRangeError as error:
            raise BrokerError(f"cannot read an offset that has been deleted or never existed: {error}") from error
        except kafka_errors.KafkaError as error:
            self._connection.refuse("read", error, self.needs())
        dated_by_sender = {  # only the last record from each partition is checked
            records[-1].topic: records[-1] for records in polled.values() if records[-1].timestamp_type == _CREATE_TIME
        }
        check_dated_by_sender(dated_by_sender, self._admin.describe_topics(list(dated_by_sender)))
        return [
            Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, headers_read(r.headers))
            for records in polled.values()
            for r in records
        ]

    def needs(self) -> list[Acl]:
        """Return the ACLs required for reading the assigned topics."""
        return [Acl("topic", topic, "Read") for topic in sorted({tp.topic for tp in self.assignment()})]

    def position(self, tp: TopicPartition) -> int:
        """See Consumer. The client's own `position` is not used, because it could send a request."""
        position = self._known_position(tp)
        if position is None:
            raise BrokerError(f"{tp} is not assigned to this consumer")
        return position

    def lag(self, tp: TopicPartition) -> int:
        """See Consumer."""
        position = self._known_position(tp)
        return 0 if position is None else max(0, self._stable_ends.get(tp, 0) - position)

    def _known_position(self, tp: TopicPartition) -> int | None:
        state = self._client._subscription.assignment.get(tp)
        return None if state is None or state.position is None else int(state.position.offset)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """See Consumer."""
        with self._connection.translating(f"seek to {offset} in {tp}"):
            self._client.seek(KafkaTopicPartition(*tp), offset)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._client.pause(*(KafkaTopicPartition(*tp) for tp in tps))

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._client.resume(*(KafkaTopicPartition(*tp) for tp in tps))

    def close(self) -> None:
        """See Consumer."""
        self._connection.clients.discard(self)
        with suppress(kafka_errors.KafkaError):
            self._client.close(autocommit=False, timeout_ms=1000 * CLOSE_S)
