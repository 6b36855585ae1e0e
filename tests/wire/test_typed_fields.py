"""The event decoders agree with a simple reader that uses Python's JSON parser and the rules in docs/formats.md."""

import json
import math
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from stream.wire import codec
from stream.wire.codec import HEADERS, MalformedError
from stream.wire.records import Record

N_FEATURES, N_CLASSES = 10, 4

LITERALS = st.sampled_from(
    b'0|1|2|-0|-1|1.0|1e0|0.1|-2.5e-3|4|10|true|null|"1"|""|[]|{}|[0,1]|2147483648|9007199254740993|18446744073709551615'
    b"|18446744073709551616|123456789012345678901234567890|2.2250738585072011e-308|1e400|NaN|01|1.".split(b"|")
)
LISTS = st.lists(LITERALS, max_size=4).map(lambda items: b"[" + b",".join(items) + b"]")
DENSE = st.lists(
    st.sampled_from(b"0|1|-0.0|0.1|-2.5e-3|18446744073709551616|5e-324".split(b"|")),
    min_size=N_FEATURES,
    max_size=N_FEATURES,
).map(lambda items: b"[" + b",".join(items) + b"]")
INDICES = st.sets(st.integers(0, N_FEATURES + 1), max_size=4).map(lambda found: str(sorted(found)).encode())
IDS = st.sampled_from(
    [b'"a"', b'"\\u00e9"', b'"\xc3\xa9"', b'"\xff"', b'"\\ud800"', b'"a\\u0000"', b'""', b'"b"', b"7"]
)


def objects(**fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Generate JSON objects with these fields. An object may lack one field, and may contain an unknown field."""
    known = st.tuples(*(st.tuples(st.just(name.encode()), values) for name, values in fields.items()))
    further = st.lists(st.tuples(st.just(b"unknown"), LITERALS), max_size=1)
    left_out = st.one_of(st.just(-1), st.integers(0, len(fields) - 1))

    def joined(drawn: tuple[tuple[tuple[bytes, bytes], ...], list[tuple[bytes, bytes]], int]) -> bytes:
        own, more, without = drawn
        kept = [pair for place, pair in enumerate(own) if place != without] + more
        return b"{" + b",".join(b'"%b":%b' % pair for pair in kept) + b"}"

    return st.tuples(known, further, left_out).map(joined)


CONTEXTS = objects(id=IDS, x=st.one_of(objects(i=st.one_of(INDICES, LISTS), v=LISTS), objects(i=INDICES), LISTS, DENSE))
FEEDBACK = objects(id=IDS, reward=LITERALS, shown=LITERALS, label=LITERALS, action=LITERALS)
PREDICTIONS = objects(
    id=IDS, action=LITERALS, greedy=LITERALS, propensity=LITERALS, scores=st.one_of(LISTS, st.just(b"[0.5,1,-2]")),
    model_version=LITERALS, context_offset=LITERALS,
)  # fmt: skip


def refuse(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")


def parsed(value: bytes) -> dict[str, Any]:
    """Parse a value with Python's JSON parser and check its id."""
    fields = json.loads(value.decode(), parse_constant=refuse)
    assert 0 < len(fields["id"].encode()) <= 256
    return dict(fields)


def is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def is_whole(value: object, below: int = 2**63) -> bool:
    return type(value) is int and 0 <= value < below


def context(value: bytes) -> object:
    fields = parsed(value)
    x = fields["x"]
    if type(x) is list:
        assert len(x) == N_FEATURES
        assert all(map(is_number, x))
        found = [(index, float(number)) for index, number in enumerate(x) if number != 0]
    else:
        assert all(is_whole(index, N_FEATURES) for index in x["i"])
        assert x["i"] == sorted(set(x["i"]))
        v = x.get("v", [1] * len(x["i"]))
        assert all(map(is_number, v))
        found = [(index, float(number)) for index, number in zip(x["i"], v, strict=True)]
    return fields["id"], [index for index, _ in found], np.array([number for _, number in found]).tobytes()


def feedback(value: bytes) -> object:
    fields = parsed(value)
    assert fields.get("shown", True) is True
    is_reward = "reward" in fields
    assert is_reward or "shown" in fields
    below = N_CLASSES if is_reward else 2**63
    assert "label" not in fields or is_whole(fields["label"], below)
    assert fields.get("action") is None or is_whole(fields["action"], below)
    if not is_reward:
        return (fields["id"],)
    assert type(fields["reward"]) in (int, float, bool)
    assert fields["reward"] in (0, 1)
    return fields["id"], int(fields["reward"]), fields.get("label"), fields.get("action")


def prediction(value: bytes) -> object:
    fields = parsed(value)
    assert len(fields["scores"]) >= 2
    assert all(map(is_number, fields["scores"]))
    assert is_number(fields["propensity"])
    assert 0 < fields["propensity"] <= 1
    assert is_whole(fields["model_version"])
    assert is_whole(fields["context_offset"])
    assert all(is_whole(fields[name], len(fields["scores"])) for name in ("action", "greedy"))
    return fields["id"], fields["action"], fields["greedy"], fields["context_offset"]


def expected(read: Any, value: bytes) -> object:
    """Return the result of the reference reader, or None if the reader rejects the value."""
    try:
        return read(value)
    except (AssertionError, KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return None


def decoded(decode: Any, value: bytes) -> object:
    """Return the result of the codec, or None if the codec rejects the value."""
    try:
        return decode(Record("topic", 0, 7, 1_000, None, value, HEADERS))
    except MalformedError:
        return None


def as_bytes(found: Any) -> object:
    return found and (found.id, found.x.indices.tolist(), found.x.values.tobytes())


def members(found: Any) -> object:
    return found and (found.id, found.action, found.greedy, found.context_offset)


@example(b'{"id":"a","x":{"i":[1,0]}}')
@example(b'{"id":"a","x":{"i":[1],"v":[1,2]}}')
@example(b'{"id":"a","x":{"i":[1,2],"v":[-0,0.1]}}')
@given(CONTEXTS)
def test_context_decoder_agrees_with_the_reference_reader(value: bytes) -> None:
    found = as_bytes(decoded(lambda record: codec.decode_context(record, N_FEATURES), value))
    assert found == expected(context, value)


@example(b'{"id":"a","reward":1,"action":null}')
@given(FEEDBACK)
def test_feedback_decoder_agrees_with_the_reference_reader(value: bytes) -> None:
    found: Any = decoded(lambda record: codec.decode_feedback(record, N_CLASSES), value)
    assert (found if found is None else found[:4]) == expected(feedback, value)


@example(
    b'{"id":"a","action":0,"greedy":0,"propensity":1,"scores":[0,1],"model_version":0,'
    b'"context_offset":18446744073709551616}'
)
@given(PREDICTIONS)
def test_prediction_decoder_agrees_with_the_reference_reader(value: bytes) -> None:
    assert members(decoded(codec.decode_prediction_fields, value)) == expected(prediction, value)
