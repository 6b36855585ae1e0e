"""Which predictions are a step's, among those that others have written under its number."""

from collections.abc import Sequence

import pytest

from stream.recovery import published
from stream.recovery.commit import predictions_digest
from stream.recovery.published import BETWEEN_MAX, Search, without
from stream.wire.records import Record

OURS = (b"a", b"b", b"c")


def searched(values: Sequence[bytes], search: Search, ours: Sequence[bytes] = OURS) -> list[bytes] | None:
    """What is found of a step's predictions, when its records are read one after the other."""
    records = [Record("predictions", 0, n, 0, None, value, ()) for n, value in enumerate(values)]
    for end in range(1, len(records) + 1):
        found = search.ending(records[:end], len(ours), predictions_digest(ours))
        if found is not None:
            assert len(without(found, records[:end])) == end - len(ours)
            return [record.value or b"" for record in found]
    return None


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        (OURS, True),
        ((b"x", *OURS), True),
        ((*OURS, b"x"), True),
        ((b"a", b"x", b"y", b"b", b"c"), True),
        ((b"a", b"b", *[b"x"] * BETWEEN_MAX, b"c"), True),
        ((b"a", b"b", *[b"x"] * (BETWEEN_MAX + 1), b"c"), False),
        ((b"a", b"x", b"b", b"y", b"c"), False),
        ((b"a", b"c", b"b"), False),
        ((b"a", b"b"), False),
        (([b"x"] * 1_000) + [*OURS], True),
    ],
)
def test_predictions_of_a_step_are_found_in_a_row_or_as_a_beginning_and_an_end(
    values: Sequence[bytes], is_found: bool
) -> None:
    search = Search()
    assert searched(values, search) == ([*OURS] if is_found else None)
    assert not search.is_given_up


def test_search_is_bounded_where_there_are_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "COMPARED_MAX", 100)
    search = Search()
    for _ in range(100):
        assert searched(OURS, search) == [*OURS]
    assert searched((*[b"x"] * 50, *OURS), search) is None
    assert search.is_given_up
    assert searched((b"x", *OURS), search) is None
    assert searched(OURS, search) == [*OURS]
