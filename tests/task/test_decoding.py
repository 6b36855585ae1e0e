"""Contexts that are decoded together are what each is by itself, or are refused for the same reason."""

import json
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from producers.datasets.catalogue import load
from stream.task import decoding
from stream.task.decoding import CHUNK, FEW, TEXT_BYTES_MAX, decode_contexts
from stream.wire.codec import HEADERS, VERSION_HEADER, LogReading, MalformedError, decode_context, encode_context
from stream.wire.events import Context
from stream.wire.records import Record
from tests.wire.test_typed_fields import CONTEXTS, N_CLASSES, N_FEATURES, came_of

HEADERS_OF_LATER = ((VERSION_HEADER[0], b"2"),)


def record(value: bytes | None, key: bytes | None = b"a", headers: tuple[tuple[str, bytes], ...] = HEADERS) -> Record:
    return Record("contexts", 0, 7, 1_000, key, value, headers)


RECORDS = st.builds(
    record,
    CONTEXTS | st.none() | st.just(b""),
    st.sampled_from([b"a", None, b"b"]),
    st.just(HEADERS) | st.just(HEADERS_OF_LATER),
)


def one_by_one(records: list[Record], log: LogReading | None = None) -> list[object]:
    return [came_of(partial(decode_context, one, N_FEATURES, log)) for one in records]


def together(records: list[Record], log: LogReading | None = None) -> list[object]:
    return [came_of(partial(come, found)) for found in decode_contexts(records, N_FEATURES, log, None)]


def come(found: Context | MalformedError) -> Context:
    if isinstance(found, MalformedError):
        raise found
    return found


@settings(deadline=None)  # the first call compiles
@example([record(b'{"id":"a","x":{"i":[1],"v":[1,2]}}')] * FEW)
@example([record(b'{"id":"a","x":{"i":[1,2],"v":[]}}')] * FEW)
@example([record(b'{"id":"a","x":{"i":[1,2],"v":null}}')] * FEW)
@example([record(b'{"id":"a","x":{"i":[],"v":null}}')] * FEW)
@example([record(b'{"id":"a","x":{"i":[],"v":[]}}')] * FEW)
@example([record(b'{"id":"a","x":{"i":[1,2],"v":[0.30000000000000004,1e-7]}}')] * FEW)
@example([record(b'{"id": "a", "x": {"i": [1, 2], "v": [0.5, -1]}}')] * FEW)
@example([record(b'{"id":"a","x":[0,1,0.0,2.5,-3,0,0,0,0,1e-7]}')] * FEW)
@example([record(b'{"id":"a","x":[0,1,0.0,2.5,-3,-0.0,0,0,0,1]}')] * FEW)
@example([record(b'{"id":"a","x":[0,1,0,2.5,-3,0,0,0,0,1]}')] * FEW)
@example([record(b'{"id":"a","x":[0,1]}'), record(b'{"id":"a","x":null}'), record(b'{"id":"b","x":[]}')] * FEW)
@example([record(b'{"id":"a","x":1e999,"x":{"i":[1]}}')] * FEW)
@example([record(b'{"id":"a","x":1e999,"x":[0,1,0,2.5,-3,0,0,0,0,1]}')] * FEW)
@example([record(b'{"id":"a","x":{"i":"\xff","i":[1,2],"v":[1,2]}}')] * FEW)
@example([record(b'{"id":"a","x":{"i":[1,2],"v":1e999,"v":[1,2]}}')] * FEW)
@example([record(b'{"id":"\\u003a","x":{"i":"\xff","i":[1]}}', b":")] * FEW)
@example([record(b'{"id":"a:b","x":{"i":[1]}}', b"a:b")] * FEW)
@example([record(b'{"id":"a","x":{"i":%s}}' % (b"[" * 1_000 + b"]" * 1_000))] * FEW)
@example([record(b'{"id":"a","x":{"i":[1]}}')] + [record(b'{"id":"a","x":{"i":[1],"v":[1e-7]}}')] * FEW)
@given(st.lists(RECORDS, min_size=FEW, max_size=2 * FEW))
def test_contexts_are_decoded_together_as_one_by_one(records: list[Record]) -> None:
    assert together(records) == one_by_one(records)
    log = LogReading(N_CLASSES)
    assert together(records, log) == one_by_one(records, log)


@pytest.mark.parametrize("count", [0, 1, FEW - 1, FEW, CHUNK, CHUNK + 1, 2 * CHUNK + FEW])
def test_each_of_any_number_is_decoded_in_its_place(count: int) -> None:
    dataset = load("optdigits")
    records = [record(encode_context(f"id-{row}", dataset.row(row).x), f"id-{row}".encode()) for row in range(count)]
    found = list(decode_contexts(records, dataset.n_features, None, None))
    assert [context.id for context in found if isinstance(context, Context)] == [f"id-{row}" for row in range(count)]
    for row, context in enumerate(found):
        assert isinstance(context, Context)
        assert [array.tobytes() for array in context.x] == [array.tobytes() for array in dataset.row(row).x]


def test_what_onebit_writes_is_decoded_together() -> None:
    for dataset in (load("optdigits"), load("synsep")):
        contexts = [encode_context("a", dataset.row(row).x) for row in range(FEW)]
        # And what Python's own json writes, which has blanks; dense vectors; and numbers of many digits.
        contexts += [json.dumps(json.loads(context)).encode() for context in contexts]
        contexts += [json.dumps({"id": "a", "x": [0.5] * dataset.n_features}).encode()]
        contexts += [b'{"id":"a","x":{"i":[0,1],"v":[0.30000000000000004,-1e-07]}}']
        together = decoding._together([record(context) for context in contexts], dataset.n_features)
        assert all(isinstance(context, Context) for context in together)


@pytest.mark.parametrize(
    "x",
    [
        b'{"i":[0],"v":[%s1]}' % (b" " * TEXT_BYTES_MAX),  # with as many numbers it would take much memory
        b'{"i":[0],"i":[1]}',
        b"[%s]" % b",".join([b"0.30000000000000004"] * N_FEATURES),
        b'{"i":[0],"unknown":1}',
    ],
)
def test_what_is_decoded_by_itself(x: bytes) -> None:
    context = record(b'{"id":"a","x":%s}' % x)
    assert decoding._together([context], N_FEATURES) == [None]
    assert together([context] * FEW) == one_by_one([context] * FEW)
