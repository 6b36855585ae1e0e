"""Requests in the control topic."""

from pathlib import Path

import pytest

from stream.wire.codec import HEADERS, MalformedError
from stream.wire.control import (
    MODEL_HEADER,
    PART_BYTES,
    Balance,
    Moved,
    Part,
    Replaced,
    Request,
    decode_request,
    encode_model,
    encode_request,
    model_digest,
    part_of,
)
from stream.wire.records import Headers, Record
from tests.wire.test_dead_letters import lines_of

REQUEST = Request("7f3a", "ann@ops1", {"window_ms": Replaced(300_000, 120_000)})
TARGET = Moved("localhost:9092", "shop2.", 12, Balance(14, 0, 3))
MOVED = Request("9c01", "ann@ops1", {}, moved_to=TARGET)
MODEL = bytes(range(256)) * 4_000
MODEL_HEADERS = [headers for _, _, headers in encode_model(MODEL)][1]
GOLDEN = Path(__file__).parents[1] / "golden"


def record(value: bytes | None, headers: Headers = HEADERS) -> Record:
    return Record("onebit.control", 0, 0, 0, b"7f3a", value, headers)


@pytest.mark.parametrize(("request_", "name"), [(REQUEST, "control.json"), (MOVED, "control.moved.json")])
def test_request_equals_the_golden_file(request_: Request, name: str) -> None:
    assert encode_request(request_) + b"\n" == (GOLDEN / name).read_bytes()


def test_headers_of_a_part_equal_the_golden_file() -> None:
    assert lines_of(MODEL_HEADERS).encode() == (GOLDEN / "control.model.headers").read_bytes()


def test_parts_of_a_model_file_are_its_content() -> None:
    parts = list(encode_model(MODEL))
    found = [part_of(Record("onebit.control", 0, 0, 0, key, value, headers)) for key, value, headers in parts]
    assert found == [Part(model_digest(MODEL), number, 3) for number in range(3)]
    assert b"".join(value for _, value, _ in parts) == MODEL
    assert max(len(value) for _, value, _ in parts) == PART_BYTES


@pytest.mark.parametrize("position", [b"", b"1", b"a/2", b"-1/2", b"1/2/3"])
def test_part_without_a_position_is_malformed(position: bytes) -> None:
    with pytest.raises(MalformedError):
        part_of(record(b"", (*HEADERS, (MODEL_HEADER, position))))


def test_request_is_no_part_of_a_model_file() -> None:
    assert part_of(record(encode_request(REQUEST))) is None


@pytest.mark.parametrize("request_", [REQUEST, MOVED, Request("9c02", "ann", {}, moved_from=TARGET)])
def test_request_round_trips(request_: Request) -> None:
    assert decode_request(record(encode_request(request_))) == request_


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"{",
        b"[]",
        b'{"id": "a", "by": "b"}',
        b'{"id": "a", "by": "b", "changes": {"window_ms": 1}}',
        b'{"id": "a", "by": "b", "changes": {"window_ms": {"to": 1}}}',
        b'{"id": "", "by": "b", "changes": {}}',
        b'{"id": "' + b"a" * 257 + b'", "by": "b", "changes": {}}',
    ],
)
def test_other_value_is_malformed(value: bytes | None) -> None:
    with pytest.raises(MalformedError):
        decode_request(record(value))


@pytest.mark.parametrize("headers", [(), (("onebit-version", b"2"),)])
def test_request_of_another_version_is_malformed(headers: Headers) -> None:
    with pytest.raises(MalformedError):
        decode_request(record(encode_request(REQUEST), headers))
