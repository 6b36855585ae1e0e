"""Contexts with actions: the layout of x, and how records are decoded."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.wire.actions import ACTIONS_MAX, Action, ActionBlocks, key_of
from stream.wire.codec import (
    HEADERS,
    ActionReading,
    LogReading,
    MalformedError,
    decode_context,
    decode_feedback,
    encode_context,
)
from stream.wire.named_features import Kind, build
from stream.wire.records import Context, Features, Feedback, Logged, Record

BLOCKS = ActionBlocks(places=3, context=2, features=2)
NAMED = build({"price": (Kind.NUMERIC, None), "topic": (Kind.CATEGORICAL, ["news"])}, None)


def decoded(value: Any, **options: Any) -> Context:
    record = Record("contexts", 0, 0, 0, None, value if isinstance(value, bytes) else orjson.dumps(value), HEADERS)
    blocks = options.pop("blocks", BLOCKS)
    reading = ActionReading(blocks, options.pop("actions_encoder", None), options.pop("pairs_max", None))
    return decode_context(record, blocks.context, actions=reading, **options)


def sparse(d: int) -> st.SearchStrategy[Features]:
    values = st.floats(-1e6, 1e6).filter(bool)
    entries = st.dictionaries(st.integers(0, d - 1), values, max_size=d)
    return entries.map(
        lambda found: Features(np.array(sorted(found), np.int32), np.array([found[i] for i in sorted(found)], float))
    )


def same(x: Features, other: Features) -> bool:
    return bool(np.array_equal(x.indices, other.indices) and np.array_equal(x.values, other.values))


@given(sparse(2), st.lists(sparse(2), min_size=1, max_size=3))
def test_layout_is_split_as_it_was_joined(x: Features, features: list[Features]) -> None:
    actions = [Action(f"item-{k}", one) for k, one in enumerate(features)]
    joined = BLOCKS.joined(x, actions)
    context, split = BLOCKS.split(joined)
    assert same(context, x)
    assert all(map(same, split, features))
    assert len(split) == len(features)
    for k, action in enumerate(actions):
        assert BLOCKS.key_at(joined, k) == key_of(action.id)
        kept = BLOCKS.only(joined, k)
        assert BLOCKS.key_at(kept, k) == key_of(action.id)
        assert [bool(BLOCKS.key_at(kept, other)) for other in range(3)] == [other == k for other in range(3)]
        assert same(BLOCKS.split(kept)[0], x)


@given(sparse(2), st.lists(sparse(2), min_size=1, max_size=3))
def test_dense_actions_have_the_same_layout_as_sparse_ones(x: Features, features: list[Features]) -> None:
    dense = np.zeros((len(features), 2))
    for row, (indices, values) in zip(dense, features, strict=True):
        row[indices] = values
    ids = [f"item-{k}" for k in range(len(features))]
    joined = BLOCKS.joined(x, list(map(Action, ids, features)))
    assert same(BLOCKS.joined_dense(x, ids, dense), joined)
    assert BLOCKS.joined_dense(x, ids, dense).indices.dtype == joined.indices.dtype


@given(st.text(min_size=1, max_size=20))
def test_key_is_a_whole_number_that_a_float_represents_exactly(name: str) -> None:
    assert key_of(name).is_integer()
    assert 1 <= key_of(name) <= 2**52


@pytest.mark.parametrize("sizes", [(1, 2, 2), (51, 2, 2), (3, 0, 2), (3, 2, 0), (50, 2, 2**26)])
def test_sizes_that_have_no_layout_are_rejected(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ActionBlocks(*sizes).check()


def test_context_with_actions_is_decoded_as_it_was_encoded() -> None:
    x, one = Features(np.array([1], np.int32), np.array([0.5])), Features(np.array([0], np.int32), np.array([2.0]))
    actions = [Action("tea", one), Action("milk", one)]
    value = encode_context("a", x, Logged(1, 0.5), ["milk"], baseline="milk", actions=actions)
    found = decoded(value, log=LogReading(3))
    assert same(found.x, BLOCKS.joined(x, actions))
    assert found.eligible is not None
    assert (found.actions, found.eligible.tolist(), found.baseline) == (["tea", "milk"], [1], 1)
    assert found.logged == Logged(1, 0.5)


@pytest.mark.parametrize(("n", "eligible"), [(1, [0]), (2, [0, 1]), (3, None)])
def test_places_without_an_action_are_not_eligible(n: int, eligible: list[int] | None) -> None:
    found = decoded({"id": "a", "actions": [{"id": str(k)} for k in range(n)]}).eligible
    assert (None if found is None else found.tolist()) == eligible


def test_features_of_context_and_actions_can_be_omitted_or_named() -> None:
    offer = {"id": "a", "actions": [{"id": "tea", "x": {"price": 3, "topic": "news"}}, {"id": "milk", "x": [0, 4]}]}
    found = decoded(offer, actions_encoder=NAMED)
    context, (tea, milk) = BLOCKS.split(found.x)
    assert context.indices.size == 0
    assert (tea.values.tolist(), milk.indices.tolist(), milk.values.tolist()) == ([3.0, 1.0], [1], [4.0])


ACTIONS = [{"id": "tea"}, {"id": "milk"}]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "actions"),
        ({"actions": []}, "actions"),
        ({"actions": [{"id": str(k)} for k in range(4)]}, "actions"),
        ({"actions": [{"id": "tea"}, {"id": "tea"}]}, "actions"),
        ({"actions": [{"id": ""}]}, "actions[0].id"),
        ({"actions": [{"id": "ä" * 129}]}, "actions[0].id"),
        ({"actions": [{"id": 3}]}, "actions[0].id"),
        ({"actions": [{"id": "tea", "x": [1.0]}]}, "actions[0].x"),
        ({"actions": [{"id": "tea"}, {"id": "milk", "x": {"i": [2]}}]}, "actions[1].x.i"),
        ({"actions": ACTIONS, "x": [1.0]}, "x"),
        ({"actions": ACTIONS, "eligible": []}, "eligible"),
        ({"actions": ACTIONS, "eligible": ["water"]}, "eligible"),
        ({"actions": ACTIONS, "eligible": ["tea", "tea"]}, "eligible"),
        ({"actions": ACTIONS, "baseline": "water"}, "baseline"),
        ({"actions": ACTIONS, "eligible": ["tea"], "baseline": "milk"}, "baseline"),
    ],
)
def test_invalid_offer_is_malformed(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(MalformedError) as raised:
        decoded({"id": "a", **fields})
    assert str(raised.value).partition(":")[0] == name
    assert "class" not in str(raised.value)  # the context lists actions


@pytest.mark.parametrize(
    ("places", "given", "remedies"),
    [(3, 0, (False, False)), (3, 4, (True, True)), (ACTIONS_MAX, ACTIONS_MAX + 1, (True, False))],
)
def test_remedy_for_a_wrong_number_of_actions_is_possible(places: int, given: int, remedies: tuple[bool, bool]) -> None:
    actions = [{"id": str(k)} for k in range(given)]
    with pytest.raises(MalformedError) as raised:
        decoded({"id": "a", "actions": actions}, blocks=ActionBlocks(places, 2, 2))
    assert tuple(remedy in str(raised.value) for remedy in ("Offer fewer", "larger actions_max")) == remedies


@pytest.mark.parametrize("fields", [{"x": {"price": 3.5}}, {"actions": [{"id": "tea", "x": {"price": 3.5}}]}])
def test_names_of_features_without_an_encoding_have_a_remedy(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match=r"x\.i: expected a value; got nothing\. .* the setting features"):
        decoded({"id": "a", "actions": ACTIONS, **fields})


def test_pairs_of_features_are_limited() -> None:
    offer = {"id": "a", "x": [1, 2], "actions": [{"id": "tea", "x": [3, 4]}, {"id": "milk", "x": [5, 0]}]}
    assert decoded(offer, pairs_max=6).actions == ["tea", "milk"]
    with pytest.raises(MalformedError, match=r"^actions: .* 5 pairs .*got 6"):
        decoded(offer, pairs_max=5)


def test_unknown_feature_of_an_action_is_malformed() -> None:
    with pytest.raises(MalformedError, match=r"^actions\[0\]\.x: .*'cost'"):
        decoded({"id": "a", "actions": [{"id": "tea", "x": {"cost": 3}}]}, actions_encoder=NAMED)


@pytest.mark.parametrize("logged", [None, {"action": 2}])
def test_logged_action_must_be_a_place_in_the_list(logged: dict[str, int] | None) -> None:
    with pytest.raises(MalformedError, match=r"^logged"):
        decoded({"id": "a", "actions": ACTIONS, "logged": logged}, log=LogReading(3))


def test_feedback_names_an_action_by_id() -> None:
    record = Record("feedback", 0, 0, 0, None, b'{"id":"a","reward":1,"action":"tea"}', HEADERS)
    feedback = decode_feedback(record, 3, has_actions=True)
    assert feedback == Feedback("a", 1, action="tea")
    number = record._replace(value=b'{"id":"a","reward":1,"action":1}')
    for one, has_actions in ((record, False), (number, True)):
        with pytest.raises(MalformedError, match=r"^action"):
            decode_feedback(one, 3, has_actions=has_actions)
