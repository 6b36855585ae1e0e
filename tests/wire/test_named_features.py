"""Encoding named features as indices and values."""

import json
import math
from collections import Counter
from typing import Any

import pytest

from stream.wire.named_features import (
    FeatureEncoder,
    Kind,
    NamedFeaturesError,
    Scale,
    build,
    check_extends,
    from_plain,
    hash_of,
    sharing,
    to_plain,
)

NAMES: dict[str, Any] = {
    "price": (Kind.NUMERIC, None),
    "country": (Kind.CATEGORICAL, ["de", "fr", "3"]),
    "title": (Kind.TEXT, ["red", "blue"]),
    "user": (Kind.CATEGORICAL, None),
}
OWN = build({name: one for name, one in NAMES.items() if name != "user"}, None)
HASHED = build(NAMES, 10)
SCALED = build(NAMES, 10, scales={"price": Scale(4.0, 2.0), "country": Scale(1.0, 1.0)})


def entries(encoder: FeatureEncoder, x: dict[str, Any]) -> dict[int, float]:
    found, _ = encoder.encode(x)
    assert (found.indices.dtype.name, found.values.dtype.name) == ("int32", "float64")
    assert found.indices.tolist() == sorted(set(found.indices.tolist()))
    return dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))


ENCODED: list[tuple[dict[str, Any], dict[int, float]]] = [
    ({}, {}),
    ({"price": 3, "country": "de"}, {0: 3.0, 1: 1.0}),
    ({"price": 0, "country": None}, {}),
    ({"price": True, "country": 3}, {0: 1.0, 3: 1.0}),
    ({"country": 3.0, "title": "Red, red BLUE green"}, {3: 1.0, 4: 2.0, 5: 1.0}),
    ({"country": "it", "title": ""}, {}),
]


@pytest.mark.parametrize(("x", "expected"), ENCODED)
def test_numbers_categories_and_texts_are_encoded(x: dict[str, Any], expected: dict[int, float]) -> None:
    assert entries(OWN, x) == expected
    assert OWN.n_features == 6


def test_indices_of_hashed_features_follow_all_other_indices() -> None:
    index = 6 + (hash_of("user", "u1") & 1_023)
    assert HASHED.n_features == 6 + 1_024
    assert entries(HASHED, {"user": "u1", "price": -2.5}) == {0: -2.5, index: 1.0}


def test_value_outside_the_vocabulary_is_hashed_if_hashing_is_enabled() -> None:
    assert entries(HASHED, {"country": "it"}) == {6 + (hash_of("country", "it") & 1_023): 1.0}


def test_values_with_the_same_index_are_added() -> None:
    narrow = build({"a": (Kind.TEXT, None)}, 1)
    assert sum(entries(narrow, {"a": "one two three four"}).values()) == 4.0


def test_hashes_equal_those_of_earlier_versions() -> None:
    assert [hash_of("user", "u1"), hash_of("", "é\ud800")] == [12836274488596726787, 8070977805385675112]


def test_encoder_without_names_hashes_all_features() -> None:
    anything = build({}, 20, unknown=True)
    assert anything.n_features == 1 << 20
    found = entries(anything, {"price": 2.5, "country": "de"})
    assert sorted(found.values()) == [1.0, 2.5]


REJECTED: list[tuple[dict[str, Any], str]] = [
    ({"prise": 3}, "no feature is called 'prise'; did you mean price?"),
    ({"zzz": 3}, "no feature is called 'zzz'; the names are price, country, title"),
    ({"price": "3"}, "price: expected a finite number; got '3'"),
    ({"price": math.nan}, "price: expected a finite number; got nan"),
    ({"price": 10**400}, "price: expected a finite number; got 1000"),
    ({"country": ["de"]}, "country: expected a string, a number or a boolean; got ['de']"),
    ({"title": {}}, "title: expected a string, a number or a boolean; got {}"),
]


@pytest.mark.parametrize(("x", "message"), REJECTED)
def test_invalid_features_are_rejected(x: dict[str, Any], message: str) -> None:
    with pytest.raises(NamedFeaturesError) as caught:
        OWN.encode(x)
    assert str(caught.value).startswith(message)


def test_long_unknown_name_is_truncated_in_the_message() -> None:
    encoder = build({}, 10, unknown=True)
    for given in ([1], {"a": 1}, 10**400):
        with pytest.raises(NamedFeaturesError) as raised:
            encoder.encode({"é" * 400_000: given})
        assert len(str(raised.value)) < 300
    with pytest.raises(NamedFeaturesError) as raised:
        encoder.encode({"\x1b[2J": [1]})
    assert str(raised.value).isprintable()


def test_overflowing_sum_at_one_index_is_rejected() -> None:
    with pytest.raises(NamedFeaturesError):
        build({}, 1, unknown=True).encode({str(n): 1e308 for n in range(6)})


def test_only_numbers_are_scaled_and_a_scaled_value_of_0_has_no_entry() -> None:
    assert entries(SCALED, {"price": 0, "country": "de"}) == {0: -2.0, 1: 1.0}
    assert entries(SCALED, {"price": 4, "country": "de"}) == entries(SCALED, {"country": "de"})
    assert [one.get("scale") for one in to_plain(SCALED)["names"]] == [(4.0, 2.0), None, None, None]
    assert "scale" not in to_plain(HASHED)["names"][0]


@pytest.mark.parametrize("encoder", [OWN, HASHED, SCALED, build({}, 5, unknown=True)])
def test_encoder_can_be_stored_as_json_and_restored(encoder: FeatureEncoder) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(encoder)))) == encoder


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {**to_plain(OWN), "version": 2},
        {**to_plain(OWN), "names": [{"name": "x"}]},
        {**to_plain(HASHED), "hash_bits": 40},
        {**to_plain(HASHED), "hash_bits": "10"},
        {**to_plain(HASHED), "hash_bits": True},
        {name: value for name, value in to_plain(HASHED).items() if name != "hash_bits"},
        {**to_plain(OWN), "names": [{"name": "x", "kind": "categorical", "values": "abc"}]},
        {**to_plain(OWN), "names": [{"name": "x", "kind": "categorical", "values": ["a", "a"]}]},
        {**to_plain(OWN), "names": [{"name": "x", "kind": "categorical", "values": [1]}]},
        {**to_plain(OWN), "names": [{"name": "x", "kind": "categorical", "values": 5}]},
        {**to_plain(OWN), "names": [{"name": "x", "kind": "categorical", "values": ["a"], "scale": [0, 1]}]},
        {**to_plain(OWN), "names": [{"name": "x", "kind": "numeric", "values": None, "scale": [0, 0]}]},
        {**to_plain(OWN), "names": [{"name": "x", "kind": kind, "values": []} for kind in ("numeric", "text")]},
        [],
    ],
)
def test_invalid_encoder_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(NamedFeaturesError):
        from_plain(fields)


@pytest.mark.parametrize(("distinct", "bits"), [(2, 4), (30, 8), (300, 8), (300, 10)])
def test_expected_number_of_hash_collisions_is_correct(distinct: int, bits: int) -> None:
    shared = 0
    for trial in range(100):
        taken = Counter(hash_of(f"{trial}", str(n)) & ((1 << bits) - 1) for n in range(distinct))
        shared += sum(count for count in taken.values() if count > 1)
    assert shared / 100 == pytest.approx(sharing(distinct, bits), abs=0.3, rel=0.05)


FEW: dict[str, tuple[Kind, list[str] | None]] = {
    "price": (Kind.NUMERIC, None),
    "country": (Kind.CATEGORICAL, ["de", "at"]),
}
FEW_HASHED: dict[str, tuple[Kind, list[str] | None]] = {**FEW, "title": (Kind.TEXT, None)}


def test_added_features_and_values_have_indices_after_all_others() -> None:
    added: list[tuple[str, Kind, list[str] | None]] = [
        ("country", Kind.CATEGORICAL, ["fr"]),
        ("size", Kind.NUMERIC, None),
        ("country", Kind.CATEGORICAL, ["it"]),
    ]
    encoder = build(FEW, None, added=added)
    assert encoder.n_features == 6
    assert encoder.indices_of("country", ["de", "at", "fr", "it"]).tolist() == [1, 2, 3, 5]
    assert encoder.index_of_number("size") == 4
    assert from_plain(to_plain(encoder)) == encoder


def test_added_features_have_indices_after_hashed_ones() -> None:
    earlier = build(FEW_HASHED, 3)
    encoder = build(FEW_HASHED, 3, added=[("size", Kind.NUMERIC, None), ("note", Kind.TEXT, None)])
    assert encoder.n_features == earlier.n_features + 1
    assert encoder.index_of_number("size") == earlier.n_features
    assert encoder.indices_of("title", ["red"]).tolist() == earlier.indices_of("title", ["red"]).tolist()
    assert from_plain(to_plain(encoder)) == encoder
    check_extends(earlier, encoder)


@pytest.mark.parametrize(
    "added",
    [
        ("country", Kind.CATEGORICAL, ["de"]), ("country", Kind.TEXT, ["fr"]), ("price", Kind.NUMERIC, None),
        ("title", Kind.TEXT, ["red"]),
    ],
)  # fmt: skip
def test_addition_that_does_not_extend_a_vocabulary_is_rejected(added: tuple[str, Kind, list[str] | None]) -> None:
    with pytest.raises(NamedFeaturesError):
        build(FEW_HASHED, 3, added=[added])


EXTENSIONS: dict[str, tuple[FeatureEncoder, FeatureEncoder, bool]] = {
    "equal": (build(FEW, None), build(FEW, None), True),
    "value of the last name": (
        build(FEW, None), build({**FEW, "country": (Kind.CATEGORICAL, ["de", "at", "fr"])}, None), True,
    ),
    "last name": (build(FEW, None), build({**FEW, "size": (Kind.NUMERIC, None)}, None), True),
    "added value": (build(FEW, None), build(FEW, None, added=[("country", Kind.CATEGORICAL, ["fr"])]), True),
    "hashed name": (build(FEW_HASHED, 3), build({**FEW_HASHED, "note": (Kind.TEXT, None)}, 3), True),
    "name before the hashed ones": (
        build(FEW_HASHED, 3), build({**FEW_HASHED, "size": (Kind.NUMERIC, None)}, 3), False,
    ),
    "value that was hashed": (
        build(FEW_HASHED, 3), build(FEW_HASHED, 3, added=[("country", Kind.CATEGORICAL, ["fr"])]), False,
    ),
    "first name": (build(FEW, None), build({"size": (Kind.NUMERIC, None), **FEW}, None), False),
    "missing name": (build(FEW, None), build({"price": (Kind.NUMERIC, None)}, None), False),
    "other order": (build(FEW, None), build({**FEW, "country": (Kind.CATEGORICAL, ["at", "de"])}, None), False),
    "other kind": (build(FEW, None), build({**FEW, "country": (Kind.TEXT, ["de", "at"])}, None), False),
    "scale": (build(FEW, None), build(FEW, None, scales={"price": Scale(1.0, 2.0)}), False),
    "hash bits": (build(FEW_HASHED, 3), build(FEW_HASHED, 4), False),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "extends"), EXTENSIONS.values(), ids=EXTENSIONS)
def test_encoder_extends_another_one_if_all_indices_stay_the_same(
    old: FeatureEncoder, new: FeatureEncoder, extends: bool
) -> None:
    if extends:
        check_extends(old, new)
    else:
        with pytest.raises(NamedFeaturesError):
            check_extends(old, new)
