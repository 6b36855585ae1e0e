"""Contexts and feedback from other programs: with the prefix of a schema registry, or as CloudEvents."""

from collections.abc import Callable
from typing import Any

import pytest

from stream.wire.codec import (
    HEADERS,
    MalformedError,
    decode_context,
    decode_example,
    decode_feedback,
    decode_prediction,
    is_framed,
)
from stream.wire.records import Envelope, Headers, Record

CONTEXT = b'{"id":"a","x":[0.5,0,1]}'
FEEDBACK = b'{"id":"a","reward":1}'
PREFIX = b"\x00\x00\x00\x01\x2a"
STRUCTURED = (("content-type", b"application/cloudevents+json"),)


def cloud_event(data: bytes) -> bytes:
    return b'{"specversion":"1.0","id":"e-1","source":"/shop","type":"visit","data":' + data + b"}"


def decoded(value: bytes, headers: Headers = (), envelope: Envelope = "none") -> Any:
    record = Record("contexts", 0, 0, 0, b"a", value, headers)
    if b"reward" in value:
        return decode_feedback(record, 3, envelope=envelope)
    found = decode_context(record, 3, envelope=envelope)
    return found.id, found.x.indices.tolist(), found.x.values.tolist()


PLAIN = {event: decoded(event) for event in (CONTEXT, FEEDBACK)}


@pytest.mark.parametrize("headers", [(), HEADERS], ids=["no headers", "version"])
@pytest.mark.parametrize("event", [CONTEXT, FEEDBACK], ids=["context", "feedback"])
def test_prefix_of_a_schema_registry_is_skipped(event: bytes, headers: Headers) -> None:
    assert decoded(PREFIX + event, headers) == PLAIN[event]


@pytest.mark.parametrize(
    "value",
    [
        b"\x00", PREFIX, PREFIX[:3] + CONTEXT, PREFIX + PREFIX + CONTEXT, b"\x01" + PREFIX[1:] + CONTEXT,
        PREFIX + b"\x00" + CONTEXT, PREFIX + b"\x02a\x00\x06", PREFIX + b"7", b"\x00" * 9,
    ],
)  # fmt: skip
def test_other_content_with_a_prefix_is_malformed(value: bytes) -> None:
    with pytest.raises(MalformedError):
        decoded(value)


@pytest.mark.parametrize("decode", [decode_prediction, decode_example])
def test_events_that_onebit_writes_have_no_prefix(decode: Callable[[Record], object]) -> None:
    with pytest.raises(MalformedError, match="value"):
        decode(Record("", 0, 0, 0, None, PREFIX + FEEDBACK, HEADERS))


def test_framed_records_are_recognized_by_their_first_byte() -> None:
    values = (PREFIX + CONTEXT, PREFIX, CONTEXT, b"", None)
    assert [is_framed(Record("", 0, 0, 0, None, value, ())) for value in values] == [True, True, False, False, False]


@pytest.mark.parametrize("envelope", ["none", "cloudevents"])
def test_cloud_event_in_binary_mode_is_read_like_any_other_record(envelope: Envelope) -> None:
    headers = (
        ("ce_specversion", b"1.0"), ("ce_id", b"e-1"), ("ce_type", b"visit"), ("ce_source", b"/shop"),
        ("content-type", b"application/json"),
    )  # fmt: skip
    assert decoded(CONTEXT, headers, envelope) == PLAIN[CONTEXT]


@pytest.mark.parametrize(
    "headers",
    [
        STRUCTURED,
        (("Content-Type", b"Application/CloudEvents+JSON; charset=utf-8"),),
        (*HEADERS, ("ce_id", b"e-1"), *STRUCTURED),
    ],
)
@pytest.mark.parametrize("event", [CONTEXT, FEEDBACK], ids=["context", "feedback"])
def test_data_of_a_cloud_event_in_structured_mode_is_the_event(event: bytes, headers: Headers) -> None:
    assert decoded(cloud_event(event), headers, "cloudevents") == PLAIN[event]


def test_cloud_event_can_have_the_prefix_of_a_schema_registry() -> None:
    assert decoded(PREFIX + cloud_event(CONTEXT), STRUCTURED, "cloudevents") == PLAIN[CONTEXT]


def test_record_without_the_content_type_has_no_envelope() -> None:
    assert decoded(CONTEXT, (), "cloudevents") == PLAIN[CONTEXT]
    with pytest.raises(MalformedError, match="x: expected a value"):
        decoded(cloud_event(CONTEXT), (), "cloudevents")


def test_structured_mode_is_malformed_without_the_setting() -> None:
    with pytest.raises(MalformedError, match="x: expected a value"):
        decoded(cloud_event(CONTEXT), STRUCTURED)


@pytest.mark.parametrize(
    "value",
    [
        CONTEXT, b"7", b"", b'{"specversion":"1.0"}', b'{"specversion":"1.0","data_base64":"e30="}', cloud_event(b"{"),
        cloud_event(b'"text"'), cloud_event(b"null"), cloud_event(b"\xff"),
    ],
)  # fmt: skip
def test_invalid_cloud_event_is_malformed(value: bytes) -> None:
    with pytest.raises(MalformedError):
        decoded(value, STRUCTURED, "cloudevents")


def test_key_equals_the_id_of_the_event_and_not_of_its_envelope() -> None:
    record = Record("contexts", 0, 0, 0, b"e-1", cloud_event(CONTEXT), STRUCTURED)
    with pytest.raises(MalformedError, match="id: expected the record's key"):
        decode_context(record, 3, envelope="cloudevents")
