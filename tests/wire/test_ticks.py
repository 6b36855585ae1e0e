"""Detecting ticks, and reading the step from a tick's header."""

import pytest

from stream.wire.codec import HEADERS, TICK_HEADER, is_tick, tick_headers, tick_step
from stream.wire.records import Headers, Record


def record(key: bytes | None, value: bytes | None, headers: Headers) -> Record:
    return Record("feedback", 0, 7, 1_000, key, value, headers)


@pytest.mark.parametrize("step", [1, 12, 10**18 - 1])
def test_tick_contains_its_step(step: int) -> None:
    tick = record(None, None, tick_headers(step))
    assert (is_tick(tick), tick_step(tick)) == (True, step)


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [(None, None, HEADERS), (None, b"{}", tick_headers(1)), (b"a", None, tick_headers(1))],
)
def test_record_with_a_key_or_a_value_or_without_the_header_is_not_a_tick(
    key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    other = record(key, value, headers)
    assert (is_tick(other), tick_step(other)) == (False, None)


@pytest.mark.parametrize("content", [b"", b"-1", b"x", b"1" * 19])
def test_tick_with_an_invalid_step_is_a_tick_without_a_step(content: bytes) -> None:
    tick = record(None, None, ((TICK_HEADER, content),))
    assert (is_tick(tick), tick_step(tick)) == (True, None)
