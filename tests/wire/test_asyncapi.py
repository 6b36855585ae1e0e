"""The AsyncAPI document is valid and describes the records that Onebit reads and writes."""

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft7Validator

from stream.wire.asyncapi import document
from stream.wire.codec import HEADERS, step_headers, tick_headers
from stream.wire.control import Replaced, Request, encode_request
from stream.wire.dead_letters import dead_letter_headers
from stream.wire.records import Headers
from stream.wire.topics import Topics
from tests.wire.test_schemas import GOLDEN, GOLDEN_EVENTS

SPECIFICATION = Draft7Validator(
    orjson.loads(gzip.decompress((Path(__file__).parent / "asyncapi" / "3.0.0.json.gz").read_bytes()))
)
TOPICS = Topics.with_prefix("my.")
DOCUMENT = document(TOPICS, "1.2.3")
MESSAGES = {"contexts": "context", "predictions": "prediction", "feedback": "feedback", "examples": "example"}


def references(part: Any) -> list[str]:
    """Return all references in a part of the document."""
    if isinstance(part, list):
        return [found for one in part for found in references(one)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
    return own + [found for one in part.values() for found in references(one)]


def resolved(reference: str) -> Any:
    found: Any = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def accepts(message: str, part: str, value: Any) -> bool:
    return Draft7Validator({**DOCUMENT["components"]["messages"][message][part], **COMPONENTS}).is_valid(value)


COMPONENTS = {"components": DOCUMENT["components"]}


def named(headers: Headers) -> dict[str, str]:
    return {name: content.decode() for name, content in headers}


def test_document_is_valid_asyncapi() -> None:
    assert [error.message for error in SPECIFICATION.iter_errors(DOCUMENT)] == []


@pytest.mark.parametrize("wrong", [{"channels": 1}, {"operations": {"a": {"action": "publish"}}}, {"topics": {}}])
def test_specification_rejects_a_wrong_document(wrong: dict[str, Any]) -> None:
    assert not SPECIFICATION.is_valid(DOCUMENT | wrong)


def test_every_reference_has_a_target() -> None:
    assert all(resolved(one) is not None for one in references(DOCUMENT))


def test_channels_are_the_topics_for_services() -> None:
    addresses = {channel["address"] for channel in DOCUMENT["channels"].values()}
    assert addresses == {*TOPICS.of_events(), TOPICS.control}


@pytest.mark.parametrize("path", GOLDEN_EVENTS, ids=lambda path: path.name)
def test_payload_accepts_the_golden_events(path: Path) -> None:
    message = MESSAGES[path.name.partition(".")[0]]
    assert accepts(message, "payload", orjson.loads(path.read_bytes()))


@pytest.mark.parametrize(
    ("message", "headers"),
    [
        ("context", HEADERS),
        ("context", ()),
        ("prediction", (*step_headers(7), ("traceparent", b"00-1-2-01"))),
        ("feedback", HEADERS),
        ("tick", tick_headers(7)),
        ("example", step_headers(7)),
        ("dead-letter", (*dead_letter_headers("my.contexts", 0, 7, "malformed", "x: expected a list"), ("own", b"a"))),
        ("request", HEADERS),
    ],
)
def test_headers_accept_those_of_records(message: str, headers: Headers) -> None:
    assert accepts(message, "headers", named(headers))


@pytest.mark.parametrize("message", ["prediction", "tick", "example", "dead-letter", "request"])
def test_headers_that_onebit_always_writes_are_required(message: str) -> None:
    assert not accepts(message, "headers", {})


def test_payload_of_a_request_is_that_of_its_encoder() -> None:
    value = orjson.loads(encode_request(Request("7f3a", "ann", {"window_ms": Replaced(1, 2)})))
    assert accepts("request", "payload", value)
    assert accepts("request", "payload", orjson.loads((GOLDEN / "control.json").read_bytes()))
    assert not accepts("request", "payload", value | {"changes": {"window_ms": 2}})
