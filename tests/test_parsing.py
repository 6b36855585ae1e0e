"""Parsing and formatting of durations, and formatting of values in messages."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.parsing import DURATION_MS_MAX, DurationError, format_duration, parse_duration, repr_of


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("30d", 2_592_000_000),
        ("0s", 0),
        ("0.5s", 500),
        ("1.5h", 5_400_000),
        (" 10s ", 10_000),
        ("87600h", DURATION_MS_MAX),
    ],
)
def test_duration_is_a_number_with_a_unit(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10", "such as 250ms, 10s, 5m, 2h, 7d; got '10'"),
        ("", "got ''"),
        ("s", "got 's'"),
        ("-1s", "got '-1s'"),
        ("1 s", "got '1 s'"),
        ("1w", "a unit (ms, s, m, h, d)"),
        ("1e3s", "got '1e3s'"),
        ("nans", "got 'nans'"),
        ("١s", "got"),
        ("0.3ms", "whole number of milliseconds"),
        ("87601h", "got '87601h'"),
        ("9" * 17 + "h", "at most ten years"),
    ],
)
def test_error_for_an_invalid_duration_shows_examples(text: str, message: str) -> None:
    with pytest.raises(DurationError, match=re.escape(message)):
        parse_duration(text)


@given(st.integers(0, DURATION_MS_MAX))
def test_formatted_duration_can_be_parsed(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0ms"), (1, "1ms"), (1_500, "1500ms"), (10_000, "10s"), (90_000, "90s"), (600_000, "10m"), (7_200_000, "2h")],
)
def test_duration_is_formatted_in_the_largest_unit_that_gives_a_whole_number(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


def test_formatting_a_negative_duration_is_an_error() -> None:
    with pytest.raises(DurationError, match="got -1 ms"):
        format_duration(-1)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=20
)


@given(VALUES, st.integers(0, 100))
def test_repr_of_is_a_prefix_of_repr(value: object, length: int) -> None:
    assert repr_of(value, length) == repr(value)[:length]


@pytest.mark.parametrize("depth", range(1, 12))
def test_repr_of_is_a_prefix_of_repr_at_any_nesting_depth(depth: int) -> None:
    lists: object = 1
    objects: object = 1
    for _ in range(depth):
        lists, objects = [lists, 2], {"": objects, "b": 2}
    for length in range(40):
        assert repr_of(lists, length) == repr(lists)[:length]
        assert repr_of(objects, length) == repr(objects)[:length]


def test_repr_of_accepts_values_that_are_nested_too_deeply_for_repr() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert repr_of(deep, 80) == "[" * 80
