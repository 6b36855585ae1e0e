"""What somebody else has sent is shown as Python shows it, however deep it is nested."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.wire.shown import repr_of

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=20
)


@given(VALUES, st.integers(0, 100))
def test_it_is_the_beginning_of_its_repr(value: object, length: int) -> None:
    assert repr_of(value, length) == repr(value)[:length]


@pytest.mark.parametrize("depth", range(1, 12))
def test_no_bracket_is_lost_at_any_depth(depth: int) -> None:
    lists: object = 1
    objects: object = 1
    for _ in range(depth):
        lists, objects = [lists, 2], {"": objects, "b": 2}
    for length in range(40):
        assert repr_of(lists, length) == repr(lists)[:length]
        assert repr_of(objects, length) == repr(objects)[:length]


def test_what_is_too_deep_for_python_is_shown() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert repr_of(deep, 80) == "[" * 80
