"""The reader rejects a section whose declared sizes exceed the available bytes."""

from typing import Any

import pytest

from stream.wire.sections import SectionReader, headed


@pytest.mark.parametrize(
    "array",
    [
        ["W", "<f8", [10**12]],
        ["W", "<f8", [10**6, 10**6]],
        ["W", "<f8", [-(10**6), -(10**6)]],
        ["W", "|i1", [3]],
        ["W", "|S0", [10**12]],
        ["W", "|O", [10**12]],
        ["W", "<f8", [1e12]],
        ["W", "<f8", ["x"]],
    ],
)
def test_array_that_exceeds_the_remaining_bytes_is_rejected(array: list[Any]) -> None:
    data = headed({"name": "learner", "values": {}, "arrays": [array]}) + b"xx"
    with pytest.raises((ValueError, TypeError)):
        SectionReader([memoryview(data)]).section()


def test_head_that_exceeds_the_remaining_bytes_is_rejected() -> None:
    with pytest.raises(ValueError, match="4294967295 more bytes; 2 are left"):
        SectionReader([memoryview(b"\xff\xff\xff\xff{}")]).section()
