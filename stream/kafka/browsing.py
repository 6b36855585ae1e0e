"""Records of topics for a reader who looks on: from a time on, in the order of their append times, and as they come."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from operator import attrgetter

from stream.kafka.port import Broker
from stream.kafka.reading import read_partition, read_towards
from stream.wire.records import Record, TopicPartition

_POLL_MS = 100


def met_before(broker: Broker, tp: TopicPartition, time_ms: int) -> Iterator[Record]:
    """Look for where a partition's records reach a time, by bisection: append times do not fall along a partition.

    What is met before that time comes in ascending order; the last of it is the last record before it.

    Raises:
        BrokerUnavailableError: nothing came for as long as `read_towards` waits.
    """
    low, high = broker.beginnings([tp])[tp], broker.ends([tp])[tp].stable
    consumer = broker.reader([tp])
    try:
        while low < high:
            middle = (low + high) // 2
            consumer.seek(tp, middle)
            record = next(iter(read_towards(consumer, tp, high, records_max=1)), None)
            if record is None or record.offset >= high or record.append_ms >= time_ms:
                high = middle  # from the middle on there are markers of transactions alone, or later records
            else:
                yield record
                low = record.offset + 1
    finally:
        consumer.close()


def offset_at(broker: Broker, tp: TopicPartition, time_ms: int) -> int:
    """The offset from which on a partition's records were appended at a time or later; where it ends, if there is none.

    Raises:
        BrokerUnavailableError: see `met_before`.
    """
    offset = broker.beginnings([tp])[tp]
    for record in met_before(broker, tp, time_ms):
        offset = record.offset + 1
    return offset


def read_in_order(broker: Broker, starts: Mapping[TopicPartition, int]) -> Iterator[Record]:
    """All that can be read at the moment of asking, by append time; at the same time, in the order of the partitions.

    Args:
        broker: where the partitions are.
        starts: the offset to begin with in each.
    """
    return merge(*(read_partition(broker, tp, start=start) for tp, start in starts.items()), key=_append_ms)


_append_ms = attrgetter("append_ms")


def follow(broker: Broker, starts: Mapping[TopicPartition, int]) -> Iterator[Sequence[Record]]:
    """What comes, without an end: the records of each poll by append time, or none."""
    consumer = broker.reader(list(starts))
    try:
        for tp, start in starts.items():
            consumer.seek(tp, start)
        while True:
            yield sorted(consumer.poll(_POLL_MS, 5_000), key=_append_ms)
    finally:
        consumer.close()
