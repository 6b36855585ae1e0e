"""The quick way of the codec: what it reads is what the codec reads field by field, and refuses what that refuses."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stream.wire import codec, typed_fields
from stream.wire.codec import HEADERS, MalformedError
from stream.wire.events import Context
from stream.wire.records import Record

N_FEATURES, N_CLASSES = 10, 4

LITERALS = st.sampled_from(
    b'0|1|2|-0|-1|1.0|1e0|0.1|-2.5e-3|4|10|true|null|"1"|""|[]|{}|[0,1]|2147483648|9007199254740993|18446744073709551615'
    b"|18446744073709551616|123456789012345678901234567890|2.2250738585072011e-308|1e400|NaN|01|1.".split(b"|")
)
LISTS = st.lists(LITERALS, max_size=4).map(lambda items: b"[" + b",".join(items) + b"]")
INDICES = st.sets(st.integers(0, N_FEATURES + 1), max_size=4).map(lambda found: str(sorted(found)).encode())
IDS = st.sampled_from(
    [b'"a"', b'"\\u00e9"', b'"\xc3\xa9"', b'"\xff"', b'"\\ud800"', b'"a\\u0000"', b'""', b'"b"', b"7"]
)


def objects(**fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """JSON objects with some of these fields, and now and then one that nobody knows, or one twice."""
    pairs = st.one_of([st.tuples(st.just(name.encode()), values) for name, values in fields.items()])
    known = st.tuples(*(st.tuples(st.just(name.encode()), values) for name, values in fields.items()))
    further = st.lists(st.one_of(pairs, st.tuples(st.just(b"unknown"), LITERALS)), max_size=1)
    left_out = st.one_of(st.just(-1), st.integers(0, len(fields) - 1))

    def joined(drawn: tuple[tuple[tuple[bytes, bytes], ...], list[tuple[bytes, bytes]], int]) -> bytes:
        own, more, without = drawn
        kept = [pair for place, pair in enumerate(own) if place != without] + more
        return b"{" + b",".join(b'"%b":%b' % pair for pair in kept) + b"}"

    return st.tuples(known, further, left_out).map(joined)


CONTEXTS = objects(id=IDS, x=st.one_of(objects(i=st.one_of(INDICES, LISTS), v=LISTS), objects(i=INDICES), LISTS))
FEEDBACK = objects(id=IDS, reward=LITERALS, label=LITERALS, action=LITERALS)
PREDICTIONS = objects(
    id=IDS, action=LITERALS, greedy=LITERALS, propensity=LITERALS, scores=st.one_of(LISTS, st.just(b"[0.5,1,-2]")),
    model_version=LITERALS, context_offset=LITERALS,
)  # fmt: skip


def came_of(read: Callable[[], object]) -> object:
    """What is read, with its arrays as bytes; or what is said against it."""
    try:
        found = read()
    except MalformedError as error:
        return str(error)
    if isinstance(found, Context):
        arrays = [(array.dtype, array.tobytes()) for array in found.x]
        return found.id, arrays, found.logged
    return found, [type(value) for value in found] if isinstance(found, tuple) else None


def is_read_alike(name: str, value: bytes, read: Callable[[Record], object]) -> None:
    record = Record("topic", 0, 7, 1_000, b"a", value, HEADERS)
    quick = came_of(lambda: read(record))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, name, lambda value: None)
        assert came_of(lambda: read(record)) == quick


@example(b'{"id":"a","x":{"i":[1,0]}}')
@example(b'{"id":"a","x":{"i":[1],"v":[1,2]}}')
@example(b'{"id":"a","x":{"i":[1,2],"v":[-0,0.1]}}')
@given(CONTEXTS)
def test_a_context_is_read_as_field_by_field(value: bytes) -> None:
    is_read_alike("read_context", value, lambda record: codec.decode_context(record, N_FEATURES))


@example(b'{"id":"a","reward":1,"action":null}')
@given(FEEDBACK)
def test_a_feedback_is_read_as_field_by_field(value: bytes) -> None:
    is_read_alike("read_feedback", value, lambda record: codec.decode_feedback(record, N_CLASSES))
    is_read_alike("read_feedback", value, lambda record: codec.decode_feedback(record, N_CLASSES, needs_label=True))


@example(
    b'{"id":"a","action":0,"greedy":0,"propensity":1,"scores":[0,1],"model_version":0,'
    b'"context_offset":18446744073709551616}'
)
@given(PREDICTIONS)
def test_an_answer_is_read_as_field_by_field(value: bytes) -> None:
    is_read_alike("read_prediction", value, codec.decode_answer)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (typed_fields.read_context, b'{"id":"a","x":{"i":[1,4],"v":[0.5,2]}}'),
        (typed_fields.read_context, b'{"id":"a","x":{"i":[1,4]}}'),
        (typed_fields.read_feedback, b'{"id":"a","reward":1}'),
        (
            typed_fields.read_prediction,
            b'{"id":"a","action":1,"greedy":1,"propensity":1.0,"scores":[0.5,1.0],"model_version":3,'
            b'"context_offset":0}',
        ),
    ],
)
def test_what_onebit_writes_is_read_the_quick_way(read: Callable[[bytes], object], value: bytes) -> None:
    assert read(value) is not None
