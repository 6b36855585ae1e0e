"""The compiled function that counts misplaced keys agrees with the producers' partitioner."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.task.placement import count_misplaced
from stream.wire.topics import murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_is_that_of_kafkas_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32  # the values are those of Kafka's own test, UtilsTest.testMurmur2


@settings(deadline=None)  # the first call compiles the function
@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(2, 1_000), st.data())
def test_misplaced_count_agrees_with_the_partitioner(keys: list[bytes], partitions: int, data: st.DataObject) -> None:
    partition = data.draw(st.integers(0, partitions - 1) | st.sampled_from([partition_for(b"", partitions)]))
    expected = sum(partition_for(key, partitions) != partition for key in keys)
    assert count_misplaced(keys, partition, partitions) == expected


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(1, 1_000))
def test_key_in_its_own_partition_is_not_misplaced(key: bytes, partitions: int) -> None:
    assert count_misplaced([key], partition_for(key, partitions), partitions) == 0
