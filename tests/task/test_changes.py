"""Requested changes as they are shown to users."""

from typing import Any

import pytest

from stream.task.changes import shown_changes
from stream.wire.control import Replaced
from stream.wire.named_features import Kind, build, to_plain

NAMES: dict[str, tuple[Kind, list[str] | None]] = {
    "age": (Kind.NUMERIC, None),
    "country": (Kind.CATEGORICAL, ["de", "fr"]),
}
FEATURES = to_plain(build(NAMES, None))


def test_only_added_features_and_values_are_shown() -> None:
    first = [("height", Kind.NUMERIC, None), ("country", Kind.CATEGORICAL, ["it"])]
    then = [*first, ("country", Kind.CATEGORICAL, ["es"])]
    earlier, later = (to_plain(build(NAMES, None, added=added)) for added in (first, then))
    assert shown_changes({"features": Replaced(FEATURES, earlier)}) == ["features: country=it, height added"]
    assert shown_changes({"features": Replaced(earlier, later)}) == ["features: country=es added"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("class_names", ["a", "b"], ["c", "b"]),
        ("class_names", ["a", "b"], ["a", "b", [3]]),
        ("features", FEATURES, {"version": 9}),
        ("features", FEATURES, None),
    ],
)
def test_old_and_new_values_are_shown_if_names_are_replaced_or_invalid(name: str, old: Any, new: Any) -> None:
    (line,) = shown_changes({name: Replaced(old, new)})
    assert " -> " in line
