"""Reading records of several topics from a time on, in the order of append times, and following new ones."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from heapq import merge
from operator import attrgetter

from stream.kafka.port import Broker
from stream.kafka.reading import offset_of_number, read_partition
from stream.wire.records import Record, TopicPartition

_POLL_MS = 100
_append_ms = attrgetter("append_ms")


def offset_at(broker: Broker, tp: TopicPartition, time_ms: int) -> int:
    """The offset of a partition's first record appended at a time or later; the partition's end if there is none.

    Raises:
        BrokerUnavailableError: see `offset_of_number`.
    """
    return offset_of_number(broker, tp, time_ms, _append_ms)


def read_in_order(broker: Broker, starts: Mapping[TopicPartition, int]) -> Iterator[Record]:
    """The records up to the current ends, ordered by append time, then by partition.

    Args:
        broker: the broker.
        starts: the first offset of each partition.
    """
    return merge(*(read_partition(broker, tp, start=start) for tp, start in starts.items()), key=_append_ms)


def follow(broker: Broker, starts: Mapping[TopicPartition, int]) -> Iterator[Sequence[Record]]:
    """Yield new records endlessly: the records of each poll by append time, or an empty sequence."""
    with closing(broker.reader(list(starts))) as consumer:
        for tp, start in starts.items():
            consumer.seek(tp, start)
        while True:
            yield sorted(consumer.poll(_POLL_MS, 5_000), key=_append_ms)
