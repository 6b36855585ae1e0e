"""Decoding a context's eligible classes, and the names of open classes."""

from collections.abc import Sequence

import pytest

from stream.wire.classes import NAME_BYTES_MAX, Classes, ClassesError

NAMED = ("news", "offers", "help")


@pytest.mark.parametrize(
    ("classes", "given", "expected"),
    [
        (Classes(3), [2, 0], [0, 2]),
        (Classes(3, NAMED), ["help", "news"], [0, 2]),
        (Classes(3, is_open=True), ["b", "a"], [0, 1]),
        (Classes(3, NAMED[:1], is_open=True), ["b", "news"], [0, 1]),
        (Classes(3, NAMED[:2], is_open=True), None, [0, 1]),
    ],
)
def test_eligible_classes_become_increasing_indices(
    classes: Classes, given: Sequence[str | int] | None, expected: list[int]
) -> None:
    found = classes.eligible(given)
    assert found is not None
    assert found.tolist() == expected


def test_all_fixed_classes_are_eligible_without_a_list() -> None:
    assert Classes(3, NAMED).eligible(None) is None


@pytest.mark.parametrize(
    ("classes", "given"),
    [
        (Classes(3), []),
        (Classes(3), [3]),
        (Classes(3), ["news"]),
        (Classes(3), [1, 1]),
        (Classes(3, NAMED), [1]),
        (Classes(3, NAMED), ["sport"]),
        (Classes(3, NAMED), ["news", "news"]),
        (Classes(3, is_open=True), None),
        (Classes(3, is_open=True), [0]),
        (Classes(3, is_open=True), [""]),
        (Classes(3, is_open=True), ["x" * (NAME_BYTES_MAX + 1)]),
        (Classes(3, NAMED, is_open=True), ["sport"]),
        (Classes(3, unsupported="newtron"), [0]),
    ],
)
def test_invalid_list_of_classes_is_rejected_and_adds_no_names(
    classes: Classes, given: Sequence[str | int] | None
) -> None:
    before = list(classes.names or ())
    with pytest.raises(ClassesError):
        classes.eligible(given)
    assert list(classes.names or ()) == before


def test_list_with_too_many_new_classes_adds_no_names() -> None:
    classes = Classes(3, NAMED[:2], is_open=True)
    with pytest.raises(ClassesError):
        classes.eligible(["sport", "weather"])
    assert classes.names == list(NAMED[:2])
    assert classes.name_of(1) == "offers"
