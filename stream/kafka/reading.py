"""Reads partitions up to their current or given ends, records at given offsets, and topics in append-time order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from heapq import merge
from operator import attrgetter

from stream.kafka.port import FETCH_WAIT_MS, SHORT_FETCH_WAIT_MS, Broker, BrokerUnavailableError, Consumer
from stream.wire.records import Record, TopicPartition

READ_TIMEOUT_MS = 60_000
_POLL_MS = 100
_append_ms = attrgetter("append_ms")

OPEN_MS = 20_000
"""Maximum time to wait for an open transaction to end. A commit can become visible later in some partitions than in
others."""


def read_partition(
    broker: Broker,
    tp: TopicPartition,
    start: int | None = None,
    open_ms: int = 0,
    fetch_wait_ms: int = SHORT_FETCH_WAIT_MS,
) -> Generator[Record, None, None]:
    """Yield the records in a partition, up to its current end.

    Args:
        broker: the broker.
        tp: the partition.
        start: the first offset; None means the beginning.
        open_ms: maximum time to wait for currently open transactions to end. A committed transaction remains open in a
            partition until the broker has written the marker, which can take longer in some partitions than in others.
        fetch_wait_ms: see `Broker.reader`.

    Raises:
        BrokerUnavailableError: no record arrived for `READ_TIMEOUT_MS`.
    """
    ends = broker.ends([tp])[tp]
    end = ends.high_watermark if open_ms else ends.stable
    consumer = broker.reader([tp], fetch_wait_ms)
    try:
        if start is not None:
            consumer.seek(tp, start)
        while (position := consumer.position(tp)) < end:
            try:
                timeout_ms = READ_TIMEOUT_MS if position < ends.stable else open_ms
                records = read_towards(consumer, {tp: end}, timeout_ms)
            except BrokerUnavailableError:
                if position < ends.stable:
                    raise
                return
            for record in records:
                if record.offset < end:
                    yield record
    finally:
        # The garbage collector can close an abandoned generator at any time, and Python then prints its exceptions.
        with suppress(BrokerUnavailableError):
            consumer.close()


def read_partitions(
    broker: Broker, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Generator[Record, None, None]:
    """Yield the partitions' records from their start offsets to their end offsets, in order within each partition.

    Raises:
        BrokerUnavailableError: see `read_towards`.
    """
    with closing(broker.reader(list(starts), SHORT_FETCH_WAIT_MS)) as consumer:
        for tp, start in starts.items():
            consumer.seek(tp, start)
        while left := {tp: ends[tp] for tp in starts if consumer.position(tp) < ends[tp]}:
            for record in read_towards(consumer, left):
                if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    yield record


def read_towards(
    consumer: Consumer,
    ends: Mapping[TopicPartition, int],
    timeout_ms: int = READ_TIMEOUT_MS,
    records_max: int = 5_000,
) -> list[Record]:
    """Return the next available records, or an empty list once each position has reached its end offset.

    Polls are short, because a position can advance past a commit marker without any record being returned.

    Raises:
        BrokerUnavailableError: no record arrived for `timeout_ms`.
    """
    for _ in range(timeout_ms // _POLL_MS):
        records = consumer.poll(_POLL_MS, records_max)
        if records or all(consumer.position(tp) >= end for tp, end in ends.items()):
            return records
    positions = {tp: consumer.position(tp) for tp in ends}
    left = "; ".join(
        f"{tp} up to offset {end}, from {positions[tp]}" for tp, end in ends.items() if positions[tp] < end
    )
    raise BrokerUnavailableError(
        f"could not read {left}: no record arrived for {timeout_ms} ms; check that the broker is running and reachable"
    )


def offset_of_number(broker: Broker, tp: TopicPartition, number: int, number_of: Callable[[Record], int | None]) -> int:
    """Return the first offset whose record has this number or a larger one, using a binary search.

    The numbers must increase with the offsets. Records without a number are skipped.

    Raises:
        BrokerUnavailableError: no record arrived within the timeout of `read_towards`.
    """
    low, high = broker.beginnings([tp])[tp], broker.ends([tp])[tp].stable
    with closing(broker.reader([tp], SHORT_FETCH_WAIT_MS)) as consumer:
        while low < high:
            middle = (low + high) // 2
            consumer.seek(tp, middle)
            found, offset = None, middle
            while found is None and consumer.position(tp) < high:
                for record in read_towards(consumer, {tp: high}, records_max=1):
                    found, offset = number_of(record), record.offset
            if found is None or found >= number or offset >= high:
                high = middle
            else:
                low = offset + 1
    return low


RUN_GAP_MAX = 1_000
"""Largest gap between requested offsets that is read. Larger gaps are skipped with a seek."""


class RecordsAt:
    """Reads records from a partition by offset. Reads are fast if each call continues where the previous one ended."""

    def __init__(self, broker: Broker, tp: TopicPartition) -> None:
        self._broker = broker
        self._tp = tp
        self._consumer = broker.reader([tp])

    def read(self, offsets: Iterable[int], timeout_ms: int = READ_TIMEOUT_MS) -> dict[int, Record]:
        """Return the visible records at these offsets, keyed by offset.

        Args:
            offsets: the offsets, in any order.
            timeout_ms: maximum time to wait for the next records.

        Raises:
            BrokerUnavailableError: no record arrived for `timeout_ms`.
        """
        begin, end = self._broker.beginnings([self._tp])[self._tp], self._broker.ends([self._tp])[self._tp].stable
        wanted = sorted({offset for offset in offsets if begin <= offset < end})
        found: dict[int, Record] = {}
        for offset in wanted:
            if not 0 <= offset - self._consumer.position(self._tp) <= RUN_GAP_MAX and offset not in found:
                self._consumer.seek(self._tp, offset)
            while (position := self._consumer.position(self._tp)) <= offset:
                count = offset + 1 - position
                for record in read_towards(self._consumer, {self._tp: offset + 1}, timeout_ms, count):
                    found[record.offset] = record
        return {offset: found[offset] for offset in wanted if offset in found}

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()


def offset_at(broker: Broker, tp: TopicPartition, time_ms: int) -> int:
    """Return the offset of the first record appended at or after this time, or the end offset if there is none.

    Raises:
        BrokerUnavailableError: see `offset_of_number`.
    """
    return offset_of_number(broker, tp, time_ms, _append_ms)


def read_in_order(broker: Broker, starts: Mapping[TopicPartition, int]) -> Iterator[Record]:
    """Yield the records up to the current ends, ordered by append time and then by partition.

    Args:
        broker: the broker.
        starts: the first offset in each partition.
    """
    # Partitions that have reached their ends stay open until all others have done so, so their fetches wait longer.
    readers = (read_partition(broker, tp, start=start, fetch_wait_ms=FETCH_WAIT_MS) for tp, start in starts.items())
    return merge(*readers, key=_append_ms)


def follow(broker: Broker, starts: Mapping[TopicPartition, int]) -> Iterator[Sequence[Record]]:
    """Yield new records indefinitely.

    Each item contains the records from one poll, sorted by append time. An item can be empty.
    """
    with closing(broker.reader(list(starts))) as consumer:
        for tp, start in starts.items():
            consumer.seek(tp, start)
        while True:
            yield sorted(consumer.poll(_POLL_MS, 5_000), key=_append_ms)


class Portions:
    """Returns a partition's records in batches."""

    def __init__(self, records: Generator[Record, None, None]) -> None:
        self._records = records
        self._next: Record | None = None

    def up_to(self, end: float) -> deque[Record]:
        """Return the records before an offset, except those already returned."""
        found: deque[Record] = deque()
        while (record := self._next or next(self._records, None)) is not None:
            self._next = record
            if record.offset >= end:
                break
            self._next = None
            found.append(record)
        return found

    def close(self) -> None:
        """Release the connection."""
        self._records.close()
