"""Rows read by compiled code: what is read of them is what a parser of JSON reads, to the bit."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from producers.datasets.catalogue import load
from stream.task.plain_rows import read_indices, read_numbers

N_FEATURES = 40

ANY_TEXTS = st.lists(st.text("[],-.0123459eE+ ", max_size=12).map(lambda inner: b"[%b]" % inner.encode()))
ANY_NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(round, st.floats(-1e6, 1e6), st.integers(0, 12)),
    st.integers(-(10**17), 10**17),
)


def parsed(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


@settings(deadline=None)  # the first call compiles
@given(ANY_TEXTS | st.lists(st.lists(ANY_NUMBERS).map(orjson.dumps)))
def test_what_is_read_as_numbers_is_what_stands_there(texts: list[bytes]) -> None:
    rows = read_numbers(texts)
    assert len(rows) == len(texts)
    for row, text in zip(rows, texts, strict=True):
        if row is not None:
            assert row.tobytes() == np.array(parsed(text), dtype=np.float64).tobytes(), text


@settings(deadline=None)
@example([b"[-0]", b"[1,\t2]"])
@given(ANY_TEXTS | st.lists(st.sets(st.integers(0, N_FEATURES + 1)).map(lambda found: orjson.dumps(sorted(found)))))
def test_what_is_read_as_indices_is_what_stands_there(texts: list[bytes]) -> None:
    rows = read_indices(texts, N_FEATURES)
    assert len(rows) == len(texts)
    for row, text in zip(rows, texts, strict=True):
        indices = parsed(text)
        if row is not None:
            assert row.dtype == np.int32
            assert row.tolist() == indices, text
            assert all(type(index) is int for index in indices), text
        elif indices is not None and orjson.dumps(indices) == text:
            assert not all(type(index) is int for index in indices) or not fit(indices), text


def fit(indices: list[int]) -> bool:
    """Whether these are strictly increasing and those of features."""
    return indices == sorted(set(indices)) and all(0 <= index < N_FEATURES for index in indices)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (b"[]", []),
        (b"[0]", [0.0]),
        (b"[0.5,-0.25,7]", [0.5, -0.25, 7.0]),
        (b"[0.0714286]", [0.0714286]),
        (b"[999999999999999]", [999999999999999.0]),
        (b"[0.00000000000001]", [1e-14]),
        (b"[1000000000000000]", None),
        (b"[0.30000000000000004]", None),
        (b"[-0.0]", None),
        (b"[-0]", None),
        (b"[1e2]", None),
        (b"[1, -2]", [1.0, -2.0]),
        (b"[ 1,  2]", [1.0, 2.0]),
        (b"[ ]", None),
        (b"[1 ,2]", None),
        (b"[1 2]", None),
        (b"[1, ]", None),
        (b"[- 1]", None),
        (b"[1. 5]", None),
        (b"[1,]", None),
        (b"[,1]", None),
        (b"[1.]", None),
        (b"[.5]", None),
        (b"[1.2.3]", None),
        (b"[01]", None),
        (b"[-]", None),
        (b"[--1]", None),
        (b"[1-2]", None),
        (b"[1.-2]", None),
        (b"[1]]", None),
        (b"[[1]", None),
        (b"[1", None),
        (b"]", None),
        (b"[", None),
        (b"", None),
        (b"null", None),
    ],
)
def test_plain_numbers(text: bytes, numbers: list[float] | None) -> None:
    row, other = read_numbers([text, b"[3]"])
    assert (None if row is None else row.tolist()) == numbers
    assert other is not None
    assert other.tolist() == [3.0], "whatever stands before it"


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        (b"[]", []),
        (b"[0]", [0]),
        (b"[0,9,39]", [0, 9, 39]),
        (b"[0, 9]", [0, 9]),
        (b"[1 ,2]", None),
        (b"[1 2]", None),
        (b"[1, ]", None),
        (b"[39,40]", None),
        (b"[1,1]", None),
        (b"[2,1]", None),
        (b"[-1]", None),
        (b"[1.0]", None),
        (b"[01]", None),
        (b"[4294967297]", None),
        (b"[18446744073709551617]", None),
    ],
)
def test_plain_indices(text: bytes, indices: list[int] | None) -> None:
    row, other = read_indices([text, b"[3]"], N_FEATURES)
    assert (None if row is None else row.tolist()) == indices
    assert other is not None
    assert other.tolist() == [3]


def test_largest_index_has_as_many_digits_as_an_index_may_have() -> None:
    assert [
        None if row is None else row.tolist() for row in read_indices([b"[999999999]", b"[1000000000]"], 2**31)
    ] == [
        [999_999_999],
        None,
    ]


def test_numbers_of_the_data_that_onebit_ships_are_plain() -> None:
    dataset = load("optdigits")
    values = [dataset.row(row).x.values for row in range(500)]
    rows = read_numbers([orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in values])
    assert [row.tobytes() for row in rows if row is not None] == [row.tobytes() for row in values]


def test_a_row_keeps_the_memory_of_no_other() -> None:
    for rows in (read_indices([b"[1,2]", b"[3]"], N_FEATURES), read_numbers([b"[1,2]", b"[3]"])):
        for row in rows:
            assert row is not None
            assert row.base is None
