"""The codec: encoding and decoding, messages that name the invalid field, and a stable byte format."""

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.wire import codec
from stream.wire.actions import Action, ActionBlocks
from stream.wire.classes import NAME_BYTES_MAX, Classes
from stream.wire.codec import (
    HEADERS,
    NUMBERS_MAX,
    VALUE_BYTES_MAX,
    VERSION_HEADER,
    LogReading,
    MalformedError,
)
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.records import (
    HOLDOUT,
    ID_BYTES_MAX,
    NO_FEATURES,
    NOT_ELIGIBLE,
    Challenged,
    Context,
    Decision,
    Example,
    Features,
    Feedback,
    Headers,
    Logged,
    Outcome,
    Prediction,
    Record,
    Shown,
    Target,
)
from stream.wire.rewards import FeedbackRule, RewardRange

GOLDEN = Path(__file__).parents[1] / "golden"
N_FEATURES, N_CLASSES = 10, 4
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # lone surrogates cannot be encoded
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=ID_BYTES_MAX // 4)


def record(value: bytes | None, key: bytes | None = None, headers: Headers = HEADERS) -> Record:
    return Record("topic", 0, 7, 1_000, key, value, headers)


def json(**fields: object) -> bytes:
    return orjson.dumps(fields)


@st.composite
def features(draw: st.DrawFn) -> Features:
    indices = sorted(draw(st.sets(st.integers(0, N_FEATURES - 1))))
    values = draw(st.lists(FLOATS, min_size=len(indices), max_size=len(indices)))
    return Features(np.array(indices, dtype=np.int32), np.array(values, dtype=np.float64))


def decisions() -> st.SearchStrategy[Decision]:
    return st.builds(
        Decision,
        st.integers(0, N_CLASSES - 1),
        st.integers(0, N_CLASSES - 1),
        st.floats(0.0, 1.0, exclude_min=True),
        st.lists(FLOATS, min_size=N_CLASSES, max_size=N_CLASSES).map(np.array),
    )


def same_features(one: Features, other: Features) -> bool:
    return one.indices.dtype == other.indices.dtype and one.values.dtype == other.values.dtype and (
        one.indices.tobytes() == other.indices.tobytes() and one.values.tobytes() == other.values.tobytes()
    )  # fmt: skip


@given(IDS, features())
def test_decoded_context_equals_the_encoded_context_bit_for_bit(event_id: str, x: Features) -> None:
    read = codec.decode_context(record(codec.encode_context(event_id, x), event_id.encode()), N_FEATURES)
    assert read.id == event_id
    assert same_features(read.x, x)


@given(st.lists(FLOATS, min_size=N_FEATURES, max_size=N_FEATURES))
def test_decoder_keeps_the_nonzero_values_of_a_dense_context(dense: list[float]) -> None:
    x = codec.decode_context(record(json(id="a", x=dense)), N_FEATURES).x
    assert x.indices.tolist() == [i for i, value in enumerate(dense) if value != 0.0]
    assert x.values.tolist() == [value for value in dense if value != 0.0]
    assert (x.indices.dtype.str, x.values.dtype.str) == ("<i4", "<f8")


def test_values_are_omitted_if_all_values_are_1() -> None:
    value = codec.encode_context("a", Features(np.array([1, 3], dtype=np.int32), np.ones(2)))
    assert orjson.loads(value) == {"id": "a", "x": {"i": [1, 3]}}
    assert codec.decode_context(record(value), N_FEATURES).x.values.tolist() == [1.0, 1.0]


def test_context_without_features_is_valid() -> None:
    x = codec.decode_context(record(b'{"id":"a","x":{"i":[]}}'), N_FEATURES).x
    assert (x.indices.size, x.values.size, x.indices.dtype.str) == (0, 0, "<i4")


@given(IDS, decisions(), COUNTS, COUNTS)
def test_decoded_prediction_equals_the_encoded_prediction(
    event_id: str, decision: Decision, version: int, offset: int
) -> None:
    written = Prediction(event_id, decision, version)
    value = codec.encode_prediction(written, offset)
    read, read_offset = codec.decode_prediction(record(value, event_id.encode()))
    assert read.decision.scores.tobytes() == decision.scores.tobytes()
    assert (plain(read), read_offset) == (plain(written), offset)


def plain(prediction: Prediction) -> tuple[object, ...]:
    """Return a prediction's fields that support `==`. The array of scores does not."""
    return (
        *prediction._replace(decision=prediction.decision._replace(scores=np.empty(0)))[::2],
        prediction.decision[:3],
    )


CLASSES = st.none() | st.integers(0, N_CLASSES - 1)


@given(IDS, st.integers(0, 1), CLASSES, CLASSES)
def test_decoded_feedback_equals_the_encoded_feedback(
    event_id: str, reward: int, label: int | None, action: int | None
) -> None:
    written = Feedback(event_id, reward, label, action)
    assert codec.decode_feedback(record(codec.encode_feedback(written)), N_CLASSES) == written


@given(
    st.builds(
        Example, IDS, st.sampled_from(Outcome), COUNTS, st.none() | FLOATS, st.none() | st.integers(0, 1),
        st.none() | COUNTS, COUNTS, st.none() | COUNTS, CLASSES | st.just("global"), st.sampled_from((None, "holdout")),
    ),
)  # fmt: skip
def test_decoded_example_equals_the_encoded_example(written: Example) -> None:
    assert codec.decode_example(record(codec.encode_example(written))) == written


def field_of(error: MalformedError) -> str:
    """Return the field name at the beginning of a message, without list indices."""
    return re.sub(r"\[\d+\]", "", str(error).partition(": ")[0])


class InvalidRecord(NamedTuple):
    """An invalid record, and the field that the error message must name."""

    name: str
    value: bytes | None
    field: str
    key: bytes | None = None
    headers: Headers = HEADERS


DEEP = b"[" * 1_000 + b"]" * 1_000
"""JSON that is nested too deeply for Python's `repr`."""

BAD_VALUES = [
    InvalidRecord("tombstone", None, "value"),
    InvalidRecord("empty value", b"", "value"),
    InvalidRecord("not JSON", b"id=a", "value"),
    InvalidRecord("not UTF-8", b'{"id":"\xff"}', "value"),
    InvalidRecord("truncated", b'{"id":"a"', "value"),
    InvalidRecord("NaN", b'{"id":"a","x":[NaN]}', "value"),
    InvalidRecord("Infinity", b'{"id":"a","x":[Infinity]}', "value"),
    InvalidRecord("lone surrogate", b'{"id":"\\ud800"}', "value"),
    InvalidRecord("nested too deeply", b"[" * 5_000 + b"]" * 5_000, "value"),
    InvalidRecord("a list", b"[1,2]", "value"),
    InvalidRecord("a number", b"1", "value"),
    InvalidRecord("null", b"null", "value"),
    InvalidRecord("version 2", b'{"id":"a"}', "version", headers=((VERSION_HEADER[0], b"2"),)),
    InvalidRecord("empty version", b'{"id":"a"}', "version", headers=((VERSION_HEADER[0], b""),)),
    InvalidRecord("two versions", b'{"id":"a"}', "version", headers=(VERSION_HEADER, (VERSION_HEADER[0], b"2"))),
    InvalidRecord("oversize", b'{"id":"a","x":[' + b" " * VALUE_BYTES_MAX + b"]}", "value"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_VALUES, ids=lambda bad: bad.name)
def test_every_decoder_rejects_values_that_are_not_events(bad: InvalidRecord) -> None:
    for decode in DECODERS.values():
        with pytest.raises(MalformedError) as raised:
            decode(record(bad.value, bad.key, bad.headers))
        assert field_of(raised.value) == bad.field


@pytest.mark.parametrize(
    ("event_id", "key"),
    [
        ("", None), (1, None), (None, None), (["a"], None), ("a" * 10_000, None), ("é" * 128 + "a", None),
        ("a", b"b"), ("a", b""), ("a", b"a "),
    ],
)  # fmt: skip
def test_every_decoder_rejects_an_invalid_id(event_id: object, key: bytes | None) -> None:
    for name, decode in DECODERS.items():
        decode(record(json(**EVENTS[name]), b"a"))
        with pytest.raises(MalformedError) as raised:
            decode(record(json(**{**EVENTS[name], "id": event_id}), key))
        assert field_of(raised.value) == "id"


def test_every_decoder_rejects_a_missing_id() -> None:
    for name, decode in DECODERS.items():
        without = {field: value for field, value in EVENTS[name].items() if field != "id"}
        with pytest.raises(MalformedError) as raised:
            decode(record(json(**without), b"a"))
        assert field_of(raised.value) == "id"


def contexts(x: bytes) -> bytes:
    return b'{"id":"a","x":' + x + b"}"


BAD_CONTEXTS = [
    InvalidRecord("no x", b'{"id":"a"}', "x"),
    InvalidRecord("x is null", contexts(b"null"), "x"),
    InvalidRecord("x is a string", contexts(b'"1 2"'), "x"),
    InvalidRecord("x is a number", contexts(b"3"), "x"),
    InvalidRecord("deferred null", b'{"id":"a","x":[1],"deferred":null}', "deferred"),
    InvalidRecord("deferred 1", b'{"id":"a","x":[1],"deferred":1}', "deferred"),
    InvalidRecord("deferred is a string", b'{"id":"a","x":[1],"deferred":"a"}', "deferred"),
    InvalidRecord("no indices", contexts(b'{"v":[1]}'), "x.i"),
    InvalidRecord("indices are not a list", contexts(b'{"i":3}'), "x.i"),
    InvalidRecord("negative index", contexts(b'{"i":[-1,2]}'), "x.i"),
    InvalidRecord("index too large", contexts(b'{"i":[1,10]}'), "x.i"),
    InvalidRecord("index of 64 bits", contexts(b'{"i":[9223372036854775807]}'), "x.i"),
    InvalidRecord("index wraps 32 bits", contexts(b'{"i":[4294967296]}'), "x.i"),
    InvalidRecord("index beyond 64 bits", contexts(b'{"i":[1%s]}' % (b"0" * 30)), "x.i"),
    InvalidRecord("indices are equal", contexts(b'{"i":[1,1]}'), "x.i"),
    InvalidRecord("indices decrease", contexts(b'{"i":[2,1]}'), "x.i"),
    InvalidRecord("index is a float", contexts(b'{"i":[1.0]}'), "x.i"),
    InvalidRecord("index is true", contexts(b'{"i":[0,true]}'), "x.i"),
    InvalidRecord("index is null", contexts(b'{"i":[null]}'), "x.i"),
    InvalidRecord("indices are nested", contexts(b'{"i":[[1],[2]]}'), "x.i"),
    InvalidRecord("fewer values than indices", contexts(b'{"i":[1,2],"v":[1]}'), "x.v"),
    InvalidRecord("more values than indices", contexts(b'{"i":[1],"v":[1,2]}'), "x.v"),
    InvalidRecord("values are null", contexts(b'{"i":[1],"v":null}'), "x.v"),
    InvalidRecord("values are a string", contexts(b'{"i":[1],"v":"1"}'), "x.v"),
    InvalidRecord("value is true", contexts(b'{"i":[1],"v":[true]}'), "x.v"),
    InvalidRecord("value is a string", contexts(b'{"i":[1],"v":["1"]}'), "x.v"),
    InvalidRecord("value is null", contexts(b'{"i":[1],"v":[null]}'), "x.v"),
    InvalidRecord("values are nested", contexts(b'{"i":[1],"v":[[1]]}'), "x.v"),
    InvalidRecord("dense list is too short", contexts(b"[1,2]"), "x"),
    InvalidRecord("dense list is too long", contexts(orjson.dumps([1] * 11)), "x"),
    InvalidRecord("dense list is empty", contexts(b"[]"), "x"),
    InvalidRecord("dense list with true", contexts(orjson.dumps([True] + [1] * 9)), "x"),
    InvalidRecord("dense list is nested", contexts(orjson.dumps([[1]] * 10)), "x"),
    InvalidRecord("dense list with a string", contexts(orjson.dumps(["1"] * 10)), "x"),
    InvalidRecord("dense list with null", contexts(orjson.dumps([None] * 10)), "x"),
    InvalidRecord("index 9,999,999", contexts(b'{"i":[9999999]}'), "x.i"),
    InvalidRecord("10 million numbers", contexts(b"[" + b"0," * 9_999_999 + b"0]"), "value"),
]  # fmt: skip

NO_SCHEMA_CONTEXTS = [
    InvalidRecord("beyond float64", contexts(b"[1e999]"), "x"),
    InvalidRecord("id is deeply nested", b'{"id":%s}' % DEEP, "id"),
    InvalidRecord("indices are deeply nested", contexts(b'{"i":%s}' % DEEP), "x.i"),
    InvalidRecord("values are deeply nested", contexts(b'{"i":[1],"v":%s}' % DEEP), "x.v"),
    InvalidRecord("object in x is deeply nested", contexts(b'{"i":{"":%s}}' % DEEP), "x.i"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_CONTEXTS + NO_SCHEMA_CONTEXTS, ids=lambda bad: bad.name)
def test_error_for_an_invalid_context_names_its_field(bad: InvalidRecord) -> None:
    with pytest.raises(MalformedError) as raised:
        codec.decode_context(record(bad.value), N_FEATURES)
    assert field_of(raised.value) == bad.field
    assert len(str(raised.value)) < 300


def feedbacks(fields: bytes) -> bytes:
    return b'{"id":"a",' + fields + b"}"


BAD_FEEDBACK = [
    InvalidRecord("no reward", b'{"id":"a"}', "reward"),
    InvalidRecord("reward 2", feedbacks(b'"reward":2'), "reward"),
    InvalidRecord("reward -1", feedbacks(b'"reward":-1'), "reward"),
    InvalidRecord("reward null", feedbacks(b'"reward":null'), "reward"),
    InvalidRecord("reward 1.5", feedbacks(b'"reward":1.5'), "reward"),
    InvalidRecord("reward 2.0", feedbacks(b'"reward":2.0'), "reward"),
    InvalidRecord("reward almost 1", feedbacks(b'"reward":0.9999999999999999'), "reward"),
    InvalidRecord("reward almost 0", feedbacks(b'"reward":5e-324'), "reward"),
    InvalidRecord("reward is a string", feedbacks(b'"reward":"1"'), "reward"),
    InvalidRecord("reward is a list", feedbacks(b'"reward":[1]'), "reward"),
    InvalidRecord("reward beyond 64 bits", feedbacks(b'"reward":1%s' % (b"0" * 30)), "reward"),
    InvalidRecord("shown false", b'{"id":"a","shown":false}', "shown"),
    InvalidRecord("shown false with a reward", feedbacks(b'"reward":1,"shown":false'), "shown"),
    InvalidRecord("shown 1", b'{"id":"a","shown":1}', "shown"),
    InvalidRecord("shown null", b'{"id":"a","shown":null}', "shown"),
    InvalidRecord("label 4", feedbacks(b'"reward":1,"label":4'), "label"),
    InvalidRecord("label -1", feedbacks(b'"reward":1,"label":-1'), "label"),
    InvalidRecord("label true", feedbacks(b'"reward":1,"label":true'), "label"),
    InvalidRecord("label null", feedbacks(b'"reward":1,"label":null'), "label"),
    InvalidRecord("label 3.0", feedbacks(b'"reward":1,"label":3.0'), "label"),
    InvalidRecord("action 4", feedbacks(b'"reward":1,"action":4'), "action"),
    InvalidRecord("action -1", feedbacks(b'"reward":1,"action":-1'), "action"),
    InvalidRecord("action 3.0", feedbacks(b'"reward":1,"action":3.0'), "action"),
    InvalidRecord("action true", feedbacks(b'"reward":1,"action":true'), "action"),
    InvalidRecord("action is a string", feedbacks(b'"reward":1,"action":"a"'), "action"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_FEEDBACK, ids=lambda bad: bad.name)
def test_error_for_invalid_feedback_names_its_field(bad: InvalidRecord) -> None:
    with pytest.raises(MalformedError) as raised:
        codec.decode_feedback(record(bad.value), N_CLASSES)
    assert field_of(raised.value) == bad.field


@pytest.mark.parametrize(
    ("written", "means"),
    [("1", 1), ("1.0", 1), ("1e0", 1), ("true", 1), ("0", 0), ("0.0", 0), ("-0.0", 0), ("0e9", 0), ("false", 0)],
)
def test_reward_accepts_every_json_notation_of_0_and_1(written: str, means: int) -> None:
    found = codec.decode_feedback(record(b'{"id":"a","reward":%s}' % written.encode()), N_CLASSES)
    assert isinstance(found, Feedback)
    assert (found, type(found.reward)) == (Feedback("a", means), int)


@pytest.mark.parametrize("needs_label", [False, True])
def test_record_with_shown_and_no_reward_is_a_shown_record(needs_label: bool) -> None:
    shown = record(feedbacks(b'"shown":true,"label":9,"action":9'))
    assert codec.decode_feedback(shown, N_CLASSES, needs_label=needs_label) == Shown("a")


def test_record_with_shown_and_a_reward_is_feedback() -> None:
    assert codec.decode_feedback(record(feedbacks(b'"shown":true,"reward":1')), N_CLASSES) == Feedback("a", 1)


def test_null_action_equals_a_missing_action() -> None:
    assert codec.decode_feedback(record(feedbacks(b'"reward":1,"action":null')), N_CLASSES) == Feedback("a", 1)


def logged(fields: bytes) -> bytes:
    return b'{"id":"a","x":{"i":[1]},"logged":' + fields + b"}"


ANY_LOG, WEIGHED, UNIFORM = LogReading(4), LogReading(4, needs_propensity=True), LogReading(4, True, True)

BAD_LOGGED = [
    (ANY_LOG, b'{"id":"a","x":{"i":[1]}}', "logged"),
    (ANY_LOG, logged(b"null"), "logged"),
    (ANY_LOG, logged(b"[1, 0.5]"), "logged"),
    (ANY_LOG, logged(b"{}"), "logged.action"),
    (ANY_LOG, logged(b'{"action":4}'), "logged.action"),
    (ANY_LOG, logged(b'{"action":"1"}'), "logged.action"),
    (ANY_LOG, logged(b'{"action":1,"propensity":"0.5"}'), "logged.propensity"),
    (ANY_LOG, logged(b'{"action":1,"propensity":0}'), "logged.propensity"),
    (ANY_LOG, logged(b'{"action":1,"propensity":1.01}'), "logged.propensity"),
    (WEIGHED, logged(b'{"action":1}'), "logged.propensity"),
    (WEIGHED, logged(b'{"action":1,"propensity":null}'), "logged.propensity"),
    (UNIFORM, logged(b'{"action":1,"propensity":0.3}'), "logged.propensity"),
]


@pytest.mark.parametrize(("log", "value", "field"), BAD_LOGGED)
def test_invalid_logged_decision_is_rejected_only_if_the_log_is_used(log: LogReading, value: bytes, field: str) -> None:
    with pytest.raises(MalformedError) as raised:
        codec.decode_context(record(value), N_FEATURES, log)
    assert field_of(raised.value) == field
    assert codec.decode_context(record(value), N_FEATURES).logged is None, "expected the logged field to be ignored"


@pytest.mark.parametrize(
    ("log", "written"),
    [
        (ANY_LOG, Logged(3)),
        (ANY_LOG, Logged(0, 1e-9)),
        (WEIGHED, Logged(2, 1.0)),
        (UNIFORM, Logged(1, 0.25)),
        (UNIFORM, Logged(1, 0.25001)),
    ],
)
def test_decoded_logged_decision_equals_the_encoded_decision(log: LogReading, written: Logged) -> None:
    value = codec.encode_context("a", Features(np.array([1], dtype=np.int32), np.ones(1)), written)
    assert codec.decode_context(record(value), N_FEATURES, log).logged == written


def test_target_action_and_unknown_propensity_can_be_encoded_and_decoded() -> None:
    decision = Decision(1, 0, math.nan, np.array([1.0, 0.5]))
    written = Prediction("a", decision, 0, Target(0, 0.75))
    read, _ = codec.decode_prediction(record(codec.encode_prediction(written, 3)))
    assert (read.target, math.isnan(read.decision.propensity)) == (written.target, True)


def test_large_scores_are_encoded_with_the_sign_of_the_exponent() -> None:
    # `onebit verify` compares bytes, and msgspec's encoder omits this sign.
    decision = Decision(1, 0, 0.5, np.array([NOT_ELIGIBLE, 1e16, 1e-7]))
    value = codec.encode_prediction(Prediction("a", decision, 0, logged=np.array([1e20])), 3)
    assert b'"scores":[-1e+305,1e+16,1e-7]' in value
    assert b'"logged":[1e+20]' in value


def test_prediction_of_maximum_size_fits_into_a_record() -> None:
    longest = np.full(NUMBERS_MAX, -np.finfo(np.float64).tiny)
    classes = 2**31 - 1
    choices = {str(number) * 1_000: classes for number in range(4)}
    prediction = Prediction(
        "\0" * ID_BYTES_MAX, Decision(classes, classes, 0.1, longest), 2**63 - 1, class_name="\0" * NAME_BYTES_MAX,
        challenged=Challenged("champion" * 100, choices),
    )  # fmt: skip
    assert len(codec.encode_prediction(prediction, 2**63 - 1)) <= VALUE_BYTES_MAX


def test_prediction_whose_class_is_not_a_string_is_rejected() -> None:
    with pytest.raises(MalformedError) as raised:
        codec.decode_prediction(record(orjson.dumps({**PREDICTION, "class": 2})))
    assert field_of(raised.value) == "class"


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ([0, 0.5], "target"),
        ({"action": 2, "propensity": 0.5}, "target.action"),
        ({"action": 0}, "target.propensity"),
        ({"action": 0, "propensity": None}, "target.propensity"),
        ({"action": 0, "propensity": 0.0}, "target.propensity"),
    ],
)
def test_error_for_an_invalid_target_names_its_field(target: object, field: str) -> None:
    with pytest.raises(MalformedError) as raised:
        codec.decode_prediction(record(orjson.dumps({**PREDICTION, "target": target})))
    assert field_of(raised.value) == field


def test_feedback_without_label_is_malformed_only_if_required() -> None:
    without = record(b'{"id":"a","reward":1}')
    assert codec.decode_feedback(without, N_CLASSES) == Feedback("a", 1)
    with pytest.raises(MalformedError) as raised:
        codec.decode_feedback(without, N_CLASSES, needs_label=True)
    assert field_of(raised.value) == "label"


PREDICTION: dict[str, Any] = {
    "id": "a", "action": 1, "greedy": 0, "propensity": 0.5, "scores": [1.0, 2.0], "model_version": 0,
    "context_offset": 3,
}  # fmt: skip
EXAMPLE: dict[str, Any] = {
    "id": "a", "outcome": "matched", "action": 1, "propensity": 0.5, "reward": 1, "delay_ms": 4, "settled_at_ms": 9,
    "feedback_offset": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("action", value) for value in (2, -1, True, 1.0, None, "1", 2**63)],
        *[("greedy", value) for value in (2, -1, False, None)],
        *[("propensity", value) for value in (0, 0.0, -0.5, 1.5, True, None, "0.5", 2**64 - 1, [0.5])],
        *[("scores", value) for value in ([], [1.0], None, [1.0, None], [1.0, True], [[1.0], [2.0]], "ab", {"0": 1})],
        *[(name, value) for name in ("model_version", "context_offset") for value in (-1, 0.5, None)],
    ],
)
def test_error_for_an_invalid_prediction_names_its_field(field: str, value: object) -> None:
    codec.decode_prediction(record(orjson.dumps(PREDICTION)))
    with pytest.raises(MalformedError) as raised:
        codec.decode_prediction(record(orjson.dumps({**PREDICTION, field: value})))
    assert field_of(raised.value) == field


STARS = RewardRange(-1.0, 5.0)


@pytest.mark.parametrize(
    ("written", "reward"), [("3.5", 3.5), ("5", 5.0), ("-1", -1.0), ("0", 0.0), ("-0.0", 0.0), ("5e-324", 5e-324)]
)
def test_graded_reward_in_the_range_is_a_float_in_its_own_units(written: str, reward: float) -> None:
    found = codec.decode_feedback(record(feedbacks(b'"reward":%s' % written.encode())), N_CLASSES, graded=STARS)
    assert isinstance(found, Feedback)
    assert (type(found.reward), str(found.reward)) == (float, str(reward))


@pytest.mark.parametrize(
    "written", ["5.000000000000001", "-1.1", "true", "false", '"3"', "null", "[3]", "NaN", "Infinity", "1e400"]
)
def test_graded_reward_outside_the_range_is_malformed(written: str) -> None:
    with pytest.raises(MalformedError):
        codec.decode_feedback(record(feedbacks(b'"reward":%s' % written.encode())), N_CLASSES, graded=STARS)


@pytest.mark.parametrize("written", ["-7.5", "1e300", "0", "-0.0"])
def test_part_of_a_sum_can_be_outside_the_range(written: str) -> None:
    value = feedbacks(b'"reward":%s,"part":"p"' % written.encode())
    found = codec.decode_feedback(record(value), N_CLASSES, graded=STARS, rule="sum")
    assert found == Feedback("a", float(written), part="p")


@pytest.mark.parametrize(
    ("rule", "fields", "named"),
    [
        ("sum", b'"reward":1', "part"),
        ("sum", b'"reward":1,"part":""', "part"),
        ("sum", b'"reward":1,"part":"%s"' % (b"p" * (ID_BYTES_MAX + 1)), "part"),
        ("sum", b'"reward":1,"part":7', "part"),
        ("sum", b'"reward":1,"part":null', "part"),
        ("sum", b'"reward":1e301,"part":"p"', "reward"),
        ("sum", b'"reward":1,"part":"p","final":1', "final"),
        ("max", b'"reward":9', "reward"),
        ("max", b'"reward":1,"final":"true"', "final"),
        ("max", b'"reward":1,"final":null', "final"),
    ],
)
def test_error_for_an_invalid_part_or_final_names_its_field(rule: FeedbackRule, fields: bytes, named: str) -> None:
    with pytest.raises(MalformedError) as raised:
        codec.decode_feedback(record(feedbacks(fields)), N_CLASSES, graded=STARS, rule=rule)
    assert field_of(raised.value) == named


@pytest.mark.parametrize(
    ("rule", "expected"), [("first", Feedback("a", 1.0)), ("max", Feedback("a", 1.0, is_final=True))]
)
def test_rule_ignores_the_fields_that_it_does_not_use(rule: FeedbackRule, expected: Feedback) -> None:
    value = feedbacks(b'"reward":1,"part":7,"final":true')
    assert codec.decode_feedback(record(value), N_CLASSES, graded=STARS, rule=rule) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("outcome", value) for value in ("late", None, 1, True, ["matched"], {"matched": 1})],
        *[("action", value) for value in (-1, True, None)],
        *[("propensity", value) for value in (True, "1", [0.5])],
        *[("reward", value) for value in (2, True, "1")],
        *[("delay_ms", value) for value in (-1, 0.5, True, "1")],
        *[("settled_at_ms", value) for value in (-1, None)],
        *[("feedback_offset", value) for value in (-1, True)],
        *[("drift", value) for value in ("class", -1, True, 0.0)],
    ],
)
def test_error_for_an_invalid_example_names_its_field(field: str, value: object) -> None:
    codec.decode_example(record(orjson.dumps(EXAMPLE)))
    with pytest.raises(MalformedError) as raised:
        codec.decode_example(record(orjson.dumps({**EXAMPLE, field: value})))
    assert field_of(raised.value) == field


@pytest.mark.parametrize("headers", [None, (), (("trace", b"abc"),), (("trace", b"abc"), VERSION_HEADER)])
def test_unknown_fields_unknown_headers_and_a_missing_version_are_accepted(headers: Headers | None) -> None:
    headers = HEADERS if headers is None else headers
    context = record(b'{"id":"a","x":{"i":[2],"w":3},"source":{"deep":[1]}}', b"a", headers)
    assert codec.decode_context(context, N_FEATURES).x.indices.tolist() == [2]
    feedback = record(b'{"id":"a","reward":1,"weight":0.5}', b"a", headers)
    assert codec.decode_feedback(feedback, N_CLASSES) == Feedback("a", 1)
    assert codec.decode_prediction(record(json(**PREDICTION, more=1), b"a", headers))[1] == 3
    assert codec.decode_example(record(json(**EXAMPLE, more=1), b"a", headers)).feedback_offset == 3


def test_large_finite_numbers_are_accepted() -> None:
    dense = [1.7e308, 1.7e308, -1.7e308, 2**64 - 1, -(2**63), 1e-320, 0, 0, 0, 0]
    x = codec.decode_context(record(json(id="a", x=dense)), N_FEATURES).x
    assert x.values.tolist() == [float(value) for value in dense[:6]]
    assert math.isfinite(x.values.max())


def test_integer_beyond_64_bits_becomes_the_nearest_float() -> None:
    # JSON has only one number type. Fields that require an integer, such as an index or a reward, reject this value.
    x = codec.decode_context(record(contexts(b'{"i":[1],"v":[1%s]}' % (b"0" * 30))), N_FEATURES).x
    assert x.values.tolist() == [1e30]


DECODERS: dict[str, Any] = {
    "context": lambda given: codec.decode_context(given, N_FEATURES),
    "logged context": lambda given: codec.decode_context(given, N_FEATURES, LogReading(N_CLASSES)),
    "feedback": lambda given: codec.decode_feedback(given, N_CLASSES),
    "prediction": codec.decode_prediction,
    "example": codec.decode_example,
}

X = {"i": [1]}
EVENTS: dict[str, dict[str, Any]] = {
    "context": {"id": "a", "x": X},
    "logged context": {"id": "a", "x": X, "logged": {"action": 1}},
    "feedback": {"id": "a", "reward": 1},
    "prediction": PREDICTION,
    "example": EXAMPLE,
}
"""A valid event for each decoder."""

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["id", "x", "i", "v", "reward", "label", *PREDICTION, *EXAMPLE])
HEADER_TUPLES = st.lists(
    st.tuples(st.sampled_from(["onebit-version", "onebit-topic", "onebit-offset", "other"]), st.binary(max_size=3)),
    max_size=3,
).map(tuple)


def refusals(given_record: Record) -> list[str]:
    """Return the messages from the decoders that reject a record. Decoders must raise only MalformedError."""
    messages = []
    for decode in (*DECODERS.values(), decode_dead_letter):
        try:
            decode(given_record)
        except MalformedError as error:
            messages.append(str(error))
    return messages


def assert_read_or_refused(given_record: Record) -> None:
    for message in refusals(given_record):
        assert 0 < len(message.encode()) < 1_000  # the message must fit into a header


@given(st.none() | st.binary(max_size=60), st.none() | st.binary(max_size=4), HEADER_TUPLES)
def test_arbitrary_bytes_are_decoded_or_rejected(value: bytes | None, key: bytes | None, headers: Headers) -> None:
    assert_read_or_refused(record(value, key, headers))


@given(
    st.fixed_dictionaries({"id": st.just("a") | JSON_VALUES}, optional={"x": JSON_VALUES | st.dictionaries(
        st.sampled_from(["i", "v"]), JSON_VALUES | st.lists(st.integers(-2, 12)))}),
    st.dictionaries(NAMES, JSON_VALUES, max_size=8),
)  # fmt: skip
def test_arbitrary_json_is_decoded_or_rejected(fields: dict[str, Any], more: dict[str, Any]) -> None:
    for filled in (more | fields, PREDICTION | more, EXAMPLE | more):
        try:
            value = orjson.dumps(filled)
        except (TypeError, orjson.JSONEncodeError):
            continue  # JSON cannot encode a string with a lone surrogate
        assert_read_or_refused(record(value))


GOLDEN_EXAMPLES = {
    "matched": Example("a", Outcome.MATCHED, 2, 0.25, 1, 10_250, 1_700_000_010_373, 7),
    "expired": Example("a", Outcome.EXPIRED, 2, 0.25, None, None, 1_700_000_300_124, None),
    "drift": Example("a", Outcome.MATCHED, 2, 0.25, 0, 10_250, 1_700_000_010_373, 7, "global"),
    "drift.class": Example("a", Outcome.EXPIRED, 2, 0.25, 0, None, 1_700_000_300_124, None, 2),
    "unmatched": Example("a", Outcome.UNMATCHED, 2, 0.25, None, None, 1_700_000_000_123, None),
    "unshown": Example("a", Outcome.UNSHOWN, 2, 0.25, None, None, 1_700_000_000_123, None),
    "graded": Example("a", Outcome.MATCHED, 2, 0.25, 3.5, 10_250, 1_700_000_010_373, 7),
    "actions": Example("a", Outcome.MATCHED, 2, 0.25, 1, 10_250, 1_700_000_010_373, 7, class_name="é"),
}

GOLDEN_VALUES = {
    "contexts.sparse": codec.encode_context(
        "synsep-0-000007", Features(np.array([0, 3, 9], dtype=np.int32), np.ones(3))
    ),
    "contexts.valued": codec.encode_context("é-1", Features(np.array([2, 5], dtype=np.int32), np.array([0.1, -1e300]))),
    "predictions": codec.encode_prediction(
        Prediction("synsep-0-000007", Decision(2, 1, 0.25, np.array([0.0, 1.5, -0.1, 1 / 3])), 41),
        9_876_543_210,
    ),
    "contexts.logged": codec.encode_context(
        "log-7", Features(np.array([2, 5], dtype=np.int32), np.array([0.5, 2.0])), Logged(3, 0.0125)
    ),
    "predictions.logged": codec.encode_prediction(
        Prediction("log-7", Decision(3, 1, 0.0125, np.array([0.0, 0.5, 0.25, 0.125])), 41, Target(1, 0.9)),
        12,
    ),
    "predictions.class": codec.encode_prediction(
        Prediction("log-7", Decision(1, 1, 1.0, np.array([0.0, 0.5])), 41, class_name="é-2"),
        12,
    ),
    "predictions.challenged": codec.encode_prediction(
        Prediction(
            "log-7",
            Decision(1, 1, 0.9, np.array([0.0, 0.5])),
            41,
            arm=HOLDOUT,
            challenged=Challenged("banditron", {"late-ucb:m=32": 0, "stack-igw": 1}),
        ),
        12,
    ),
    "contexts.eligible": codec.encode_context(
        "é-3", Features(np.array([0], dtype=np.int32), np.ones(1)), eligible=["é", 2]
    ),
    "contexts.baseline": codec.encode_context("é-3", Features(np.array([0], dtype=np.int32), np.ones(1)), baseline="é"),
    "predictions.baseline": codec.encode_prediction(
        Prediction("é-3", Decision(1, 1, 1.0, np.array([0.0, 0.5])), 41, arm=HOLDOUT, baseline=1), 12
    ),
    "contexts.deferred": codec.encode_context(
        "synsep-0-000007", Features(np.array([0, 3, 9], dtype=np.int32), np.ones(3)), deferred=True
    ),
    "contexts.actions": codec.encode_context(
        "é-3",
        Features(np.array([0], dtype=np.int32), np.ones(1)),
        actions=[Action("tea", Features(np.array([1], dtype=np.int32), np.array([0.5]))), Action("é", NO_FEATURES)],
    ),
    "predictions.actions": codec.encode_prediction(
        Prediction("é-3", Decision(1, 1, 1.0, np.array([0.0, 0.5, NOT_ELIGIBLE])), 41, None, "é", actions=["tea", "é"]),
        12,
    ),
    "feedback.id": codec.encode_feedback(Feedback("é-3", 1, action="é")),
    "feedback": codec.encode_feedback(Feedback("synsep-0-000007", 1)),
    "feedback.shown": codec.encode_feedback(Shown("synsep-0-000007")),
    "feedback.labelled": codec.encode_feedback(Feedback("synsep-0-000007", 0, 3)),
    "feedback.graded": codec.encode_feedback(Feedback("synsep-0-000007", 3.5)),
    "feedback.action": codec.encode_feedback(Feedback("synsep-0-000007", 0, action=2)),
    "feedback.final": codec.encode_feedback(Feedback("synsep-0-000007", 1, is_final=True)),
    "feedback.part": codec.encode_feedback(Feedback("synsep-0-000007", -0.5, part="é-refund", is_final=True)),
    **{f"examples.{name}": codec.encode_example(example) for name, example in GOLDEN_EXAMPLES.items()},
}


@pytest.mark.parametrize("name", GOLDEN_VALUES)
def test_encoded_bytes_equal_the_golden_files_of_version_1(name: str) -> None:
    # A difference here is a format change: existing records or running programs become incompatible.
    assert GOLDEN_VALUES[name] == (GOLDEN / f"{name}.json").read_bytes().rstrip(b"\n")


def test_golden_bytes_are_decoded() -> None:
    def golden(name: str) -> Record:
        return record((GOLDEN / f"{name}.json").read_bytes())

    sparse: Context = codec.decode_context(golden("contexts.sparse"), N_FEATURES)
    assert (sparse.id, sparse.x.indices.tolist(), sparse.x.values.tolist()) == (
        "synsep-0-000007", [0, 3, 9], [1.0, 1.0, 1.0],
    )  # fmt: skip
    valued = codec.decode_context(golden("contexts.valued"), N_FEATURES)
    assert (valued.id, valued.x.indices.tolist(), valued.x.values.tolist()) == ("é-1", [2, 5], [0.1, -1e300])
    logged_context = codec.decode_context(golden("contexts.logged"), N_FEATURES, LogReading(N_CLASSES, True))
    assert (logged_context.logged, valued.logged) == (Logged(3, 0.0125), None)
    logged_prediction, _ = codec.decode_prediction(golden("predictions.logged"))
    assert (logged_prediction.target, logged_prediction.decision[:3]) == (Target(1, 0.9), (3, 1, 0.0125))
    assert codec.decode_prediction(golden("predictions.class"))[0].class_name == "é-2"
    challenged = codec.decode_prediction(golden("predictions.challenged"))[0]
    assert (challenged.arm, challenged.challenged) == (
        HOLDOUT, Challenged("banditron", {"late-ucb:m=32": 0, "stack-igw": 1}),
    )  # fmt: skip
    classes = Classes(2, ("a", "é"))
    assert codec.decode_context(golden("contexts.baseline"), N_FEATURES, classes=classes).baseline == 1
    assert codec.decode_prediction(golden("predictions.baseline"))[0].baseline == 1
    assert codec.decode_prediction(golden("predictions.actions"))[0].actions == ["tea", "é"]
    reading = codec.ActionReading(ActionBlocks(3, 1, 2), None)
    offered = codec.decode_context(golden("contexts.actions"), 1, actions=reading)
    assert (offered.actions, offered.x.indices.tolist()) == (["tea", "é"], [0, 1, 3, 4])
    assert codec.decode_feedback(golden("feedback.id"), 3, has_actions=True) == Feedback("é-3", 1, action="é")
    prediction, offset = codec.decode_prediction(golden("predictions"))
    assert prediction.class_name is None
    assert prediction.target is None
    assert (prediction.decision[:3], prediction.decision.scores.tolist()) == ((2, 1, 0.25), [0.0, 1.5, -0.1, 1 / 3])
    assert (prediction.model_version, offset) == (41, 9_876_543_210)
    assert not sparse.is_deferred
    assert codec.decode_context(golden("contexts.deferred"), N_FEATURES).is_deferred
    assert codec.decode_feedback(golden("feedback.shown"), N_CLASSES) == Shown("synsep-0-000007")
    assert codec.decode_feedback(golden("feedback"), N_CLASSES) == Feedback("synsep-0-000007", 1)
    final = codec.decode_feedback(golden("feedback.final"), N_CLASSES, rule="max")
    assert final == Feedback("synsep-0-000007", 1, is_final=True)
    parts = codec.decode_feedback(golden("feedback.part"), N_CLASSES, graded=STARS, rule="sum")
    assert parts == Feedback("synsep-0-000007", -0.5, part="é-refund", is_final=True)
    assert codec.decode_feedback(golden("feedback.labelled"), N_CLASSES) == Feedback("synsep-0-000007", 0, 3)
    assert codec.decode_feedback(golden("feedback.action"), N_CLASSES) == Feedback("synsep-0-000007", 0, action=2)
    for name, example in GOLDEN_EXAMPLES.items():
        assert codec.decode_example(golden(f"examples.{name}")) == example
