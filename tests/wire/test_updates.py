"""Encoding and decoding the records in a shared model's log."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from stream.wire.records import Decision, Features, Record
from stream.wire.sections import Section, encode_section, headed
from stream.wire.updates import (
    CHANGED,
    CORRECTED,
    DECIDED,
    HEADERS,
    NAMED,
    SETTLED,
    Entries,
    Entry,
    Update,
    UpdatesError,
    columns_of,
    decode_update,
    encode_updates,
    entry_bytes,
    joined,
)


def decoded(value: bytes) -> Update:
    update = decode_update(Record("u", 0, 7, 0, None, value, HEADERS))
    assert update is not None
    return update


def assert_same(one: tuple[NDArray[Any], ...], other: tuple[NDArray[Any], ...]) -> None:
    for name, column, expected in zip(Entries._fields, one, other, strict=True):
        assert column.dtype == expected.dtype, name
        np.testing.assert_array_equal(column, expected, err_msg=name)


def entry(
    kind: int, x: Features, numbers: Any, reward: float, assumed: float, v: float, label: int, name: str = ""
) -> Entry:
    decision = Decision(2, 1, 0.25, numbers[:3], numbers[3:])
    return Entry(kind, x, decision, reward, assumed, v, label, name)


floats = st.floats(allow_nan=False)
xs = st.lists(st.tuples(st.integers(0, 2**31 - 1), floats), max_size=4).map(
    lambda pairs: Features(np.array([i for i, _ in pairs], np.int32), np.array([v for _, v in pairs], np.float64))
)
entries = st.builds(
    entry,
    st.sampled_from((DECIDED, SETTLED, CORRECTED, NAMED)),
    xs,
    arrays.arrays(np.float64, 5, elements=floats),
    st.integers(-1, 1),
    st.integers(-1, 1),
    st.floats(0.0, 1.0, exclude_max=True),
    st.integers(-1, 9),
    st.text(max_size=3),
)


@settings(max_examples=30)
@given(st.lists(entries, min_size=1, max_size=8), st.integers(1, 500))
def test_updates_are_encoded_in_parts_of_limited_size_and_decoded(made: list[Entry], bytes_max: int) -> None:
    made.append(entry(CHANGED, EMPTY, np.zeros(5), -1, -1, 0.0, -1, "7"))
    updates = [decoded(value) for value in encode_updates(3, 41, 39, made, control=4, bytes_max=bytes_max)]
    assert [update[:5] for update in updates] == [(3, 41, part, 39, 4) for part in range(len(updates))]
    assert [update.change for update in updates] == [0] * (len(updates) - 1) + [7]
    assert_same(joined([update.entries for update in updates]), columns_of(made))
    assert [name for update in updates for name in update.names] == [e.name for e in made if e.kind >= CHANGED]
    for update in updates:
        sizes = [entry_bytes(int(nnz), 5) for nnz in update.entries.sizes]
        assert len(sizes) == 1 or sum(sizes) <= bytes_max


def test_update_record_is_at_most_a_kilobyte_larger_than_its_entries() -> None:
    x = Features(np.arange(30, dtype=np.int32), np.full(30, 0.5))
    made = [entry(CORRECTED, x, np.ones(5), 1, 0, 0.5, 2)] * 100
    (value,) = encode_updates(0, 1, 0, made)
    assert len(value) - 100 * entry_bytes(30, 5) < 1_000


GOLDEN = Path(__file__).parents[1] / "golden"
X = Features(np.array([0, 3, 9], np.int32), np.array([1.0, 0.5, -1e300]))
EMPTY = Features(np.zeros(0, np.int32), np.zeros(0))
SCORES = np.array([0.0, 1.5, -0.1, 1 / 3, 0.5])
GOLDEN_STEPS = {
    "updates.format1": (2, 41, 39, [
        entry(DECIDED, X, SCORES, -1, -1, 0.0, -1),
        entry(SETTLED, EMPTY, SCORES, 1, -1, 0.75, 3),
        entry(CORRECTED, X, SCORES, 1, 0, 0.125, -1),
        entry(NAMED, EMPTY, np.zeros(5), -1, -1, 0.0, -1, "news"),
        entry(CHANGED, EMPTY, np.zeros(5), -1, -1, 0.0, -1, "7"),
    ]),
    "updates.format1.bare": (0, 1, 0, [entry(SETTLED, X._replace(values=np.ones(3)), SCORES, 0, -1, 0.0, -1)]),
    "updates.format1.graded": (2, 42, 41, [
        entry(DECIDED, X, SCORES, -1, -1, 0.0, -1),
        entry(SETTLED, EMPTY, SCORES, 0.7, -1, 0.0, -1),
        entry(CORRECTED, X, SCORES, 1.0, 0.0, 0.0, -1),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN_STEPS)
def test_log_records_equal_the_golden_files_of_format_1(name: str) -> None:
    # A difference here is a format change: existing logs or running programs become incompatible.
    partition, step, follows, made = GOLDEN_STEPS[name]
    assert encode_updates(partition, step, follows, made, control=6) == [(GOLDEN / name).read_bytes()]
    update = decoded((GOLDEN / name).read_bytes())
    assert update[:5] == (partition, step, 0, follows, 6)
    assert update.names == tuple(each.name for each in made if each.kind >= CHANGED)
    assert_same(update.entries, columns_of(made))


def test_record_without_the_version_header_is_foreign() -> None:
    assert decode_update(Record("u", 0, 7, 0, None, b"{}", ())) is None


ONE = columns_of([entry(SETTLED, Features(np.array([4], np.int32), np.array([2.0])), np.ones(3), 1, -1, 0.0, -1)])


@pytest.mark.parametrize(
    "changed",
    [
        {"newer": np.zeros(1)},
        {"nnz": np.array([2], np.int32)},
        {"action": np.array([2], np.int64)},
        {"greedy": np.array([2, 1], np.int32)},
        {"reward": None},
        {"kind": np.array([NAMED], np.int8)},
    ],
    ids=lambda changed: "".join(changed),
)
def test_error_for_an_invalid_update_record_names_its_offset(changed: dict[str, Any]) -> None:
    columns: dict[str, Any] = {
        "kind": ONE.kinds, "action": ONE.actions, "greedy": ONE.greedy, "propensity": ONE.propensities,
        "scores": ONE.scores, "reward": ONE.rewards, "nnz": ONE.sizes, "x.indices": ONE.indices,
    } | changed  # fmt: skip
    columns = {name: column for name, column in columns.items() if column is not None}
    section = Section("updates", {"partition": 0, "step": 1, "part": 0, "follows": 0, "names": []}, columns)
    with pytest.raises(UpdatesError) as raised:
        decoded(b"".join(encode_section(section)))
    assert raised.value.place == "u/0 offset 7"


def test_record_with_an_excessive_entry_count_is_rejected_with_its_offset() -> None:
    head = headed({"name": "updates", "values": {}, "arrays": [["kind", "|i1", [10**12]]]})
    with pytest.raises(UpdatesError) as raised:
        decoded(head + b"x")
    assert raised.value.place == "u/0 offset 7"
