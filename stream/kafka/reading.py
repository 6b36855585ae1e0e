"""Reading a partition up to where it ends at the moment of asking, or some of its records again."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress

from stream.kafka.port import Broker, BrokerUnavailableError, Consumer
from stream.wire.records import Record, TopicPartition

READ_TIMEOUT_MS = 60_000
_POLL_MS = 100


OPEN_MS = 20_000
"""How long an open transaction is waited for: what one of its topics shows as committed, another may not show yet."""


def read_partition(
    broker: Broker,
    tp: TopicPartition,
    timeout_ms: int = READ_TIMEOUT_MS,
    start: int | None = None,
    open_ms: int = 0,
) -> Generator[Record, None, None]:
    """All that can be read of a partition at the moment of asking, from its beginning or from an offset on.

    Args:
        broker: where the partition is.
        tp: the partition.
        timeout_ms: how long to wait for the next records.
        start: the offset to begin with; None for the first one.
        open_ms: how long to wait for the end of a transaction that is open at that moment. A committed one stays open
            in some of its partitions for a little longer than in others, until each broker has written its marker.

    Raises:
        BrokerUnavailableError: nothing came for `timeout_ms`.
    """
    ends = broker.ends([tp])[tp]
    end = ends.high_watermark if open_ms else ends.stable
    consumer = broker.reader([tp])
    try:
        if start is not None:
            consumer.seek(tp, start)
        while (position := consumer.position(tp)) < end:
            try:
                records = read_towards(consumer, tp, end, timeout_ms if position < ends.stable else open_ms)
            except BrokerUnavailableError:
                if position < ends.stable:
                    raise
                return
            for record in records:
                if record.offset < end:
                    yield record
    finally:
        # All that was wanted has been read, or is given up. An abandoned generator is closed by the garbage collector
        # at any moment, and what it raises is printed amid whatever is going on.
        with suppress(BrokerUnavailableError):
            consumer.close()


def read_towards(
    consumer: Consumer, tp: TopicPartition, end: int, timeout_ms: int = READ_TIMEOUT_MS, records_max: int = 5_000
) -> list[Record]:
    """Some of the next records, or none when the position has reached an offset.

    In short polls: what stands before the end may be the marker of a commit, which is passed without any record.

    Raises:
        BrokerUnavailableError: nothing came for `timeout_ms`.
    """
    for _ in range(timeout_ms // _POLL_MS):
        records = consumer.poll(_POLL_MS, records_max)
        if records or consumer.position(tp) >= end:
            return records
    raise BrokerUnavailableError(
        f"could not read {tp.topic}/{tp.partition} up to offset {end}: nothing came for {timeout_ms} ms after offset "
        f"{consumer.position(tp)}; see that the broker runs and is reachable"
    )


def offset_of_number(broker: Broker, tp: TopicPartition, number: int, number_of: Callable[[Record], int | None]) -> int:
    """The offset from which records have at least a number, where numbers grow along a partition; by bisection.

    Records without a number are skipped.

    Raises:
        BrokerUnavailableError: nothing came for as long as `read_towards` waits.
    """
    low, high = broker.beginnings([tp])[tp], broker.ends([tp])[tp].stable
    with closing(broker.reader([tp])) as consumer:
        while low < high:
            middle = (low + high) // 2
            consumer.seek(tp, middle)
            found, offset = None, middle
            while found is None and consumer.position(tp) < high:
                for record in read_towards(consumer, tp, high, records_max=1):
                    found, offset = number_of(record), record.offset
            if found is None or found >= number or offset >= high:
                high = middle
            else:
                low = offset + 1
    return low


RUN_GAP_MAX = 1_000
"""Offsets: what is asked for with no wider gap is read in one run, and what stands in the gap with it."""


class RecordsAt:
    """Reads records of a partition by their offsets; it is quick where each time the next ones are asked for."""

    def __init__(self, broker: Broker, tp: TopicPartition) -> None:
        self._broker = broker
        self._tp = tp
        self._consumer = broker.reader([tp])
        self._ahead: deque[Record] = deque()  # that were read, and not asked for yet

    def read(self, offsets: Iterable[int], timeout_ms: int = READ_TIMEOUT_MS) -> dict[int, Record]:
        """The records at these offsets, by offset, those that are there.

        Args:
            offsets: any number of them, in any order.
            timeout_ms: how long to wait for the next records.

        Raises:
            BrokerUnavailableError: nothing came for `timeout_ms`.
        """
        begin, end = self._broker.beginnings([self._tp])[self._tp], self._broker.ends([self._tp])[self._tp].stable
        wanted = {offset for offset in offsets if begin <= offset < end}
        return {
            record.offset: record
            for first, last in _runs(sorted(wanted))
            for record in self._run(first, last + 1, timeout_ms)
            if record.offset in wanted
        }

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()

    def _run(self, first: int, end: int, timeout_ms: int) -> Iterator[Record]:
        while self._ahead and self._ahead[0].offset < first:
            self._ahead.popleft()
        if self._ahead[0].offset > first if self._ahead else self._consumer.position(self._tp) != first:
            self._ahead.clear()
            self._consumer.seek(self._tp, first)
        while True:
            while self._ahead and self._ahead[0].offset < end:
                yield self._ahead.popleft()
            if self._ahead or self._consumer.position(self._tp) >= end:
                return
            self._ahead.extend(read_towards(self._consumer, self._tp, end, timeout_ms))


def _runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last offset of each run, of offsets in their order."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and offset - runs[-1][1] <= RUN_GAP_MAX:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs
