"""The JSON Schemas accept and reject the same records as the codec, as far as JSON Schema can express the rules."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from stream.wire import codec
from stream.wire.codec import LogReading, MalformedError
from stream.wire.named_features import FeatureEncoder
from stream.wire.records import Record
from stream.wire.schemas import EVENTS, schema_of
from tests.wire.test_codec import (
    BAD_CONTEXTS,
    BAD_FEEDBACK,
    BAD_LOGGED,
    EXAMPLE,
    N_CLASSES,
    N_FEATURES,
    PREDICTION,
    InvalidRecord,
    record,
)

VALIDATORS = {topic: Draft202012Validator(schema_of(topic)) for topic in EVENTS}
GOLDEN = Path(__file__).parents[1] / "golden"

BEYOND_A_SCHEMA = {
    "indices are not a list",  # the schema allows `i` as the name of a feature
    "indices decrease", "fewer values than indices", "more values than indices", "index is a float",
    "index too large", "index 9,999,999", "dense list is too short", "dense list is too long",
    "label 4", "label 3.0", "action 4", "action 3.0",
    "action is a string",
    "reward 2", "reward -1", "reward 1.5", "reward 2.0", "reward almost 1", "reward almost 0", "reward beyond 64 bits",
}  # fmt: skip
"""Invalid records that a schema accepts, because the rule depends on settings or cannot be expressed in JSON Schema."""


GOLDEN_EVENTS = sorted(path for path in GOLDEN.glob("*.json") if path.name.partition(".")[0] in VALIDATORS)


def is_accepted(topic: str, value: bytes | None) -> bool:
    return VALIDATORS[topic].is_valid(orjson.loads(value or b"null"))


@pytest.mark.parametrize("topic", EVENTS)
def test_each_schema_is_valid(topic: str) -> None:
    Draft202012Validator.check_schema(schema_of(topic))


@pytest.mark.parametrize("path", GOLDEN_EVENTS, ids=lambda path: path.name)
def test_schema_accepts_the_golden_events(path: Path) -> None:
    assert is_accepted(path.name.partition(".")[0], path.read_bytes())


def can_be_read(decode: Any, given_record: Record) -> bool:
    try:
        decode(given_record)
    except MalformedError:
        return False
    return True


SMALL_BAD = [bad for bad in (*BAD_CONTEXTS, *BAD_FEEDBACK) if len(bad.value or b"") < codec.VALUE_BYTES_MAX]


@pytest.mark.parametrize("bad", SMALL_BAD, ids=lambda bad: bad.name)
def test_schema_rejects_an_invalid_value_if_json_schema_can_express_the_rule(bad: InvalidRecord) -> None:
    topic = "contexts" if bad in BAD_CONTEXTS else "feedback"
    assert is_accepted(topic, bad.value) == (bad.name in BEYOND_A_SCHEMA)


@pytest.mark.parametrize("bad", [value for _, value, _ in BAD_LOGGED if b'"action":1' not in value or b":0}" in value])
def test_schema_rejects_an_invalid_logged_decision(bad: bytes) -> None:
    of_the_learner = b'"action":4' in bad or b'"logged"' not in bad  # depends on n_classes or on `play`
    assert is_accepted("contexts", bad) == of_the_learner


@pytest.mark.parametrize(
    ("topic", "good", "field", "value"),
    [
        *[("predictions", PREDICTION, "action", value) for value in (-1, True, None, "1")],
        *[("predictions", PREDICTION, "propensity", value) for value in (0, -0.5, 1.5, True, None, "0.5", [0.5])],
        *[("predictions", PREDICTION, "scores", value) for value in ([], [1.0], None, [1.0, None], "ab")],
        *[("predictions", PREDICTION, "target", value) for value in ([0, 0.5], {"action": 0}, {"propensity": 0.5})],
        *[("predictions", PREDICTION, "logged", value) for value in (1.0, [None], [True], "ab")],
        ("predictions", PREDICTION, "challenged", []),
        ("predictions", PREDICTION, "challenged", {"champion": "a"}),
        ("predictions", PREDICTION, "challenged", {"champion": "a", "choices": {"b": -1}}),
        *[("examples", EXAMPLE, "outcome", value) for value in ("late", None, 1, ["matched"])],
        *[("examples", EXAMPLE, "reward", value) for value in (True, "1")],
        *[("examples", EXAMPLE, "drift", value) for value in ("class", -1, True)],
    ],
)
def test_schema_rejects_an_event_with_an_invalid_field(
    topic: str, good: dict[str, Any], field: str, value: object
) -> None:
    assert VALIDATORS[topic].is_valid({**good, "a_later_version": 1})
    assert not VALIDATORS[topic].is_valid({**good, field: value})


NUMBERS = st.integers(-2, 12) | st.floats(-1.0, 2.0) | st.booleans() | st.none()
OTHERS = NUMBERS | st.sampled_from(["", "a", [], [1], {}, {"i": [1]}])
CONTEXTS = st.fixed_dictionaries(
    {"id": st.sampled_from(["a", "", 1])},
    optional={
        "x": st.lists(NUMBERS, min_size=N_FEATURES, max_size=N_FEATURES)
        | st.dictionaries(st.sampled_from(["i", "v", "price"]), OTHERS | st.lists(NUMBERS, max_size=3)),
        "deferred": OTHERS,
        "logged": OTHERS | st.dictionaries(st.sampled_from(["action", "propensity"]), NUMBERS),
    },
)
FEEDBACK = st.fixed_dictionaries(
    {"id": st.sampled_from(["a", "", 1])}, optional=dict.fromkeys(("reward", "shown", "label", "action"), OTHERS)
)
HASHED = FeatureEncoder({}, 0, 10)


@given(CONTEXTS)
def test_schema_accepts_every_context_that_can_be_decoded(fields: dict[str, Any]) -> None:
    readings: list[Any] = [
        lambda one: codec.decode_context(one, N_FEATURES),
        lambda one: codec.decode_context(one, N_FEATURES, LogReading(N_CLASSES)),
        lambda one: codec.decode_context(one, N_FEATURES, encoder=HASHED),
    ]
    value = orjson.dumps(fields)
    if "logged" in fields:  # decoders that ignore this field also accept invalid values
        readings = readings[1:2]
    if any(can_be_read(decode, record(value)) for decode in readings):
        assert is_accepted("contexts", value)


@given(FEEDBACK)
def test_schema_accepts_all_feedback_that_can_be_decoded(fields: dict[str, Any]) -> None:
    value = orjson.dumps(fields)
    if can_be_read(lambda one: codec.decode_feedback(one, N_CLASSES), record(value)):
        assert is_accepted("feedback", value)
