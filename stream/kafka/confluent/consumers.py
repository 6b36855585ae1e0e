"""Reads from Kafka.

Workarounds for librdkafka:

- `consume` waits until it has as many records as requested, or until it times out. `poll` therefore reads the
  available records first. If there are none, it waits for one record.
- librdkafka keeps the high watermark from the last fetch response, but not the last stable offset (`lag`).
- The client's position does not advance past transaction markers and aborted records. Here, the position is
  set when an event reports the end of a partition.
- A partition that is paused in the client loses its fetched records and, once resumed, waits for the pending fetch.
  Here, events from a paused partition are set aside instead. If there are too many, the partition is also paused in
  the client.
- The client reports a damaged batch as an event and continues with the next batch. Here, the reader stops reading the
  partition.
- Only a record's timestamp type shows whether the broker or the sender set the timestamp.
- A seek fails just after an assignment. A reader therefore assigns its partitions in its first poll.
- A seek also fails on a partition that the client has abandoned. The client abandons a partition if the requested
  offset does not exist. It sometimes also does so after a damaged batch, because it misreads the rest of the
  batch as further batches. All partitions are then assigned again.
- `close` waits indefinitely for the group and may never return. Here, it has a timeout.
- A broker that is shutting down may answer a metadata request with an empty list of brokers. The client then forgets
  every broker, never connects again, and may report no error (librdkafka issue 5301). Only its statistics show this
  (`_on_statistics`).
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import confluent_kafka
from confluent_kafka import KafkaException

from stream.kafka.confluent.connection import RAISED, ConfluentConnection, bounded, error_of, is_transient
from stream.kafka.confluent.headers import headers_read
from stream.kafka.kafka_python.admin import Admin
from stream.kafka.port import FETCH_WAIT_MS, Acl, BrokerError, BrokerUnavailableError
from stream.kafka.refusals import check_dated_by_sender, damaged
from stream.wire.records import Record, TopicPartition, make

_kafka: Any = confluent_kafka
_code: Any = confluent_kafka.KafkaError
_BY_BROKER = _kafka.TIMESTAMP_LOG_APPEND_TIME

_FETCHED_RECORDS_MIN = 10_000
_FETCHED_KIB_MAX = 16 << 10
_UNPACKED_BYTES_MAX = 1 << 30
"""Limit on the size of a decompressed zstd batch. The client's default limit is a tenth of this size."""

ASIDE_RECORDS_MAX = 10_000
_GRAIN_S = 0.001
"""Shortest wait in a poll. The client rounds timeouts to whole milliseconds, so shorter waits would cause a busy loop
of about 100 calls."""

_CLOSED_WITHIN_S = 5.0
"""Timeout for closing a client. If it expires, the client stays open until the process ends."""

_SEEK_RETRY_S = 0.002
_SEEK_TRIED_S = 1.0
"""Time limit for retrying a seek. If seeks still fail after that, the client has abandoned the partition. After an
assignment, seeks fail only for a few milliseconds."""


def _make_consumer(
    connection: ConfluentConnection, on_statistics: Callable[[str], None], fetch_wait_ms: int, **own: Any
) -> Any:
    """Create a confluent-kafka consumer that reads only committed records."""
    with connection.translating("create a consumer"):
        return _kafka.Consumer(
            connection.properties(
                on_statistics=on_statistics,
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                auto_offset_reset="error",
                isolation_level="read_committed",
                enable_partition_eof=True,
                check_crcs=True,
                allow_auto_create_topics=False,
                fetch_wait_max_ms=min(fetch_wait_ms, connection.request_timeout_ms // 2),
                fetch_error_backoff_ms=50,
                fetch_queue_backoff_ms=5,
                receive_message_max_bytes=_UNPACKED_BYTES_MAX,
                queued_min_messages=_FETCHED_RECORDS_MIN,
                queued_max_messages_kbytes=_FETCHED_KIB_MAX,
                **own,
            )
        )


class Reader:
    """A Consumer without a group."""

    # librdkafka looks up a reader's group, although the reader never joins it.
    _ignored: ClassVar[frozenset[int]] = frozenset((_code.GROUP_AUTHORIZATION_FAILED,))

    def __init__(
        self,
        connection: ConfluentConnection,
        admin: Admin,
        positions: Mapping[TopicPartition, int],
        fetch_wait_ms: int = FETCH_WAIT_MS,
        **own: Any,
    ) -> None:
        """Create the client, with its `own` properties, for example a group.

        `fetch_wait_ms` limits two delays: the time until the client reports the end of a partition after a marker, and
        the time until it reads a resumed partition.
        """
        self._connection = connection
        self._admin = admin
        self._client = _make_consumer(connection, self._on_statistics, fetch_wait_ms, **own)
        self._has_brokers = True  # False if the client has forgotten every broker
        self._positions = dict(positions)
        self._is_assigned = False  # True after the assignment in the client; before that, a seek only sets the start
        self._paused: set[TopicPartition] = set()
        self._stopped: set[TopicPartition] = set()  # partitions that are also paused in the client
        self._aside: dict[TopicPartition, deque[Any]] = {}  # events set aside for paused partitions
        self._ends: dict[TopicPartition, int] = {}  # last stable offset reported since the last seek
        self._is_drained = False  # True if the last poll returned all the records that the client had fetched
        self._has_moved = False  # True if the position advanced without records, past markers or aborted records
        self._has_lost_its_way = False  # True if the client reads from a different offset than requested
        self._errors: list[Any] = []  # errors reported by the client and not yet raised by poll
        self._unreadable: dict[TopicPartition, str] = {}  # unreadable partitions, with the reason
        connection.clients.add(self)

    def assignment(self) -> frozenset[TopicPartition]:
        """See Consumer."""
        return frozenset(self._positions)

    def poll(self, timeout_ms: int, records_max: int) -> list[Record]:
        """See Consumer. Returns no records while the broker is down; the client reconnects automatically.

        Raises:
            BrokerUnavailableError: the client will never connect again.
        """
        if not self._is_assigned:
            self._assign()
        self._is_drained = False
        ends_s = time.monotonic() + timeout_ms / 1000
        while True:
            self._raise_errors()
            if self._has_lost_its_way and self._positions:
                self._assign_anew()
            self._has_moved = False
            events = self._take_aside(records_max)
            if len(events) < records_max:
                left_s = 0.0 if events else max(0.0, ends_s - time.monotonic())
                events += self._receive(left_s, records_max - len(events))
            records = self._records(events)
            if records:  # return the records first; the next poll then raises the errors
                return records
            self._raise_errors()
            if self._has_moved or ends_s - time.monotonic() < _GRAIN_S:
                return []

    def _assign(self) -> None:
        with self._connection.translating("read partitions"):
            self._client.assign([_kafka.TopicPartition(*tp, offset) for tp, offset in self._positions.items()])
        self._ends.clear()
        self._is_assigned = True
        self._has_lost_its_way = False

    def _take_aside(self, count: int) -> list[Any]:
        """Return up to `count` events that were set aside for partitions that have since been resumed."""
        events: list[Any] = []
        for tp in [tp for tp in self._aside if tp not in self._paused]:
            waiting = self._aside[tp]
            while waiting and len(events) < count:
                events.append(waiting.popleft())
            if not waiting:
                del self._aside[tp]
                self._restart(tp)
        return events

    def _restart(self, tp: TopicPartition) -> None:
        if tp in self._stopped:
            self._stopped.remove(tp)
            self._client.resume([_kafka.TopicPartition(*tp)])

    def _receive(self, timeout_s: float, count: int) -> list[Any]:
        """Return the available events, or wait for the first one. Events from paused partitions are set aside."""
        try:
            events = self._client.consume(count, 0)
            if not events and timeout_s > 0:
                first = self._client.poll(timeout_s)
                events = [] if first is None else [first, *(self._client.consume(count - 1, 0) if count > 1 else ())]
        except RAISED as raised:
            self._errors.append(error_of(raised))
            return []
        self._is_drained = len(events) < count
        if not (self._paused or self._aside):
            return list(events)
        taken = []
        for event in events:
            tp = TopicPartition(event.topic(), event.partition())
            if tp in self._paused or tp in self._aside:
                self._set_aside(event)
            else:
                taken.append(event)
        return taken

    def _set_aside(self, event: Any) -> None:
        tp = TopicPartition(event.topic(), event.partition())
        if tp not in self._positions:  # an error of the client, or the partition was revoked during the call
            if event.error() is not None:
                self._on_error(tp, event, event.error())
            return
        waiting = self._aside.setdefault(tp, deque())
        waiting.append(event)
        if len(waiting) >= ASIDE_RECORDS_MAX and tp not in self._stopped:
            self._stopped.add(tp)
            self._client.pause([_kafka.TopicPartition(*tp)])

    def _records(self, events: Iterable[Any]) -> list[Record]:
        records = []
        dated_by_sender: dict[str, Record] = {}
        positions, unreadable = self._positions, self._unreadable
        # All records from a topic share one string for the topic's name.
        known = {tuple(tp): tp for tp in positions}
        for event in events:
            place, error = (event.topic(), event.partition()), event.error()
            if error is not None:
                self._on_error(TopicPartition(*place), event, error)
                continue
            tp = known.get(place)
            if tp is None or tp in unreadable:
                continue
            kind, append_ms = event.timestamp()
            offset = event.offset()
            record = make(Record, (*tp, offset, append_ms, event.key(), event.value(), headers_read(event)))
            positions[tp] = offset + 1
            records.append(record)
            if kind != _BY_BROKER:
                dated_by_sender[tp.topic] = record
        if dated_by_sender:
            check_dated_by_sender(dated_by_sender, self._admin.describe_topics(list(dated_by_sender)))
        return records

    def _on_error(self, tp: TopicPartition, event: Any, error: Any) -> None:
        """Handle an event that is not a record."""
        code = error.code()
        if tp in self._unreadable or is_transient(error) or code in self._ignored:
            return
        if code == _code._PARTITION_EOF:
            if tp in self._positions:
                self._ends[tp] = event.offset()
                self._has_moved = self._has_moved or self._positions[tp] != event.offset()
                self._positions[tp] = event.offset()
        elif code == _code._AUTO_OFFSET_RESET:
            self._on_no_such_offset(tp, event, error)
        elif code in (_code._BAD_MSG, _code._BAD_COMPRESSION):
            self._unreadable[tp] = damaged(tp, self._positions.get(tp, -1), f"CorruptRecord: {error.str()}")
        else:
            self._errors.append(error)

    def _on_no_such_offset(self, tp: TopicPartition, event: Any, error: Any) -> None:
        """Handle a report that an offset does not exist.

        The report may be outdated because of a later seek, or a damaged batch may have caused it.
        """
        offset = self._positions.get(tp)
        if offset is None:
            return
        if event.offset() != offset:
            first, end = self._admin.beginnings([tp])[tp], self._admin.ends([tp])[tp].high_watermark
            if first <= offset <= end:
                self._has_lost_its_way = True
                return
        reason = f"{tp}, offset {offset}: {error.str()}"
        self._unreadable[tp] = f"cannot read an offset that has been deleted or never existed: {reason}"

    def _on_statistics(self, statistics: str) -> None:
        sources = {broker["source"] for broker in json.loads(statistics)["brokers"].values()}
        if sources.isdisjoint(("configured", "learned")):
            self._has_brokers = False
            self._connection.cut_off_s = time.monotonic()

    def _raise_errors(self) -> None:
        """Raise the errors that the client has reported."""
        if not self._has_brokers:
            raise BrokerUnavailableError(
                f"the client for Kafka at {self._connection.bootstrap} has forgotten every broker; create a new client"
            )
        errors, self._errors = self._errors, []
        if errors:
            self._connection.refuse("read", KafkaException(errors[0]), self.needs())
        for tp, reason in self._unreadable.items():
            if tp not in self._paused:
                raise BrokerError(reason)

    def needs(self) -> list[Acl]:
        """Return the ACLs that this consumer requires."""
        return [Acl("topic", topic, "Read") for topic in sorted({tp.topic for tp in self.assignment()})]

    def position(self, tp: TopicPartition) -> int:
        """See Consumer."""
        if tp not in self._positions:
            raise BrokerError(f"{tp} is not assigned to this consumer")
        return self._positions[tp]

    def lag(self, tp: TopicPartition) -> int:
        """See Consumer.

        Counts the offsets up to the high watermark, unless the client has reported the end of the partition. The client
        reports the end only after one more fetch, which the broker can delay (`fetch_wait_ms`). If a single offset
        remains after all fetched records, that offset is a commit marker and is not counted. A record at that offset
        would have been in the same response, because only a full response ends before the last stable offset.
        """
        position = self.position(tp)
        if not self._is_assigned or self._ends.get(tp) == position:
            return 0
        try:
            _, high_watermark = self._client.get_watermark_offsets(_kafka.TopicPartition(*tp), cached=True)
        except KafkaException:  # nothing has been fetched yet
            return 0
        left = int(high_watermark) - position
        if left == 1 and self._is_drained and tp not in self._aside:
            return 0
        return max(0, left)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """See Consumer."""
        self.position(tp)
        self._positions[tp] = offset
        self._ends.pop(tp, None)
        self._aside.pop(tp, None)
        self._unreadable.pop(tp, None)
        if self._is_assigned:
            self._seek(tp, offset)

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        self._restart(tp)
        given_up_s = time.monotonic() + _SEEK_TRIED_S
        while True:
            try:
                self._client.seek(_kafka.TopicPartition(*tp, offset))
            except KafkaException as raised:
                if error_of(raised).code() != _code._STATE:
                    self._connection.refuse(f"seek to {offset} in {tp}", raised)
                if time.monotonic() > given_up_s:
                    self._assign_anew()
                    return
                time.sleep(_SEEK_RETRY_S)
            else:
                return

    def _assign_anew(self) -> None:
        """Assign all partitions again at their current positions. Events that were set aside are fetched again."""
        self._client.resume([_kafka.TopicPartition(*tp) for tp in self._stopped])
        self._stopped.clear()
        self._aside.clear()
        self._assign()

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._paused.update(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """See Consumer."""
        self._paused.difference_update(tps)

    def close(self) -> None:
        """See Consumer."""
        self._connection.clients.discard(self)
        with suppress(TimeoutError, KafkaException, RuntimeError):  # RuntimeError if the client is already closed
            bounded(self._client.close, _CLOSED_WITHIN_S)
