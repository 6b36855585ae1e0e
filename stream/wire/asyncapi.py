"""The AsyncAPI 3 document of a pipeline's event topics, for tools that generate clients, pages and checks.

The document is built from the JSON Schemas of the values and the constants of the codec. The topics for recovery
(journal, snapshots and updates) are not in the document; see docs/formats.md.
"""

from typing import Any, NamedTuple

from stream.wire.codec import (
    TICK_HEADER,
    TRACE_HEADERS,
    VERSION,
    VERSION_HEADER,
    step_headers,
)
from stream.wire.control import Request, RequestId
from stream.wire.dead_letters import dead_letter_headers
from stream.wire.records import EventId
from stream.wire.schemas import json_schema, payload_of
from stream.wire.topics import BATCH_BYTES_MAX, Topics

_BINDING = "0.5.0"
_DIGITS = {"type": "string", "pattern": "^[0-9]+$"}
_VERSION = {VERSION_HEADER[0]: {"const": str(VERSION), "description": "The version of the format."}}
_STEP = {step_headers(0)[1][0]: {**_DIGITS, "description": "The number of the step that wrote the record."}}
_TRACE = {name: {"type": "string", "description": "W3C Trace Context."} for name in TRACE_HEADERS}


class _Message(NamedTuple):
    channel: str  # the topic, without its prefix
    action: str  # send or receive, from Onebit's point of view
    summary: str
    payload: dict[str, Any]
    headers: dict[str, Any]
    required: tuple[str, ...] = ()  # names of required headers
    key: dict[str, Any] | None = json_schema(EventId)


def document(topics: Topics, version: str) -> dict[str, Any]:
    """Return the AsyncAPI document for a pipeline's topics, as JSON.

    Args:
        topics: The names of the topics.
        version: The version of the program.
    """
    messages = _messages()
    names = {channel: getattr(topics, channel.replace("-", "_")) for _, (channel, *_) in messages.items()}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Onebit",
            "version": version,
            "description": "Topics of a pipeline that learns from one late bit of feedback. Records for an event have "
            "its id as key, partitioned by murmur2. Read the topics with isolation.level=read_committed.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            channel: {
                "address": name,
                "messages": {
                    message: {"$ref": f"#/components/messages/{message}"}
                    for message, one in messages.items()
                    if one.channel == channel
                },
                "bindings": {
                    "kafka": {
                        "topic": name,
                        "topicConfiguration": {"cleanup.policy": ["delete"], "max.message.bytes": BATCH_BYTES_MAX},
                        "bindingVersion": _BINDING,
                    }
                },
            }
            for channel, name in names.items()
        },
        "operations": {
            f"{one.action}-{message}": {
                "action": one.action,
                "summary": one.summary,
                "channel": {"$ref": f"#/channels/{one.channel}"},
                "messages": [{"$ref": f"#/channels/{one.channel}/messages/{message}"}],
            }
            for message, one in messages.items()
        },
        "components": {"messages": {message: _content(one) for message, one in messages.items()}},
    }


def _messages() -> dict[str, _Message]:
    """Return the messages by name."""
    letter = {name: {"type": "string"} for name, _ in dead_letter_headers("", 0, 0, "", "")} | _VERSION
    return {
        "context": _Message(
            "contexts", "receive", "A request for a decision.", payload_of("contexts"), {**_VERSION, **_TRACE}
        ),
        "prediction": _Message(
            "predictions", "send", "A decision.", payload_of("predictions"), {**_VERSION, **_STEP, **_TRACE},
            (*_VERSION, *_STEP),
        ),
        "feedback": _Message(
            "feedback", "receive", "The bit for a decision, or a notice that the decision was shown.",
            payload_of("feedback"), {**_VERSION, **_TRACE},
        ),
        "tick": _Message(
            "feedback", "send", "A record without a key or value that advances stream time. Skip it.",
            {"type": "null"}, {**_VERSION, TICK_HEADER: _DIGITS}, (TICK_HEADER,), None,
        ),
        "example": _Message(
            "examples", "send", "A settled decision.", payload_of("examples"), {**_VERSION, **_STEP, **_TRACE},
            (*_VERSION, *_STEP),
        ),
        "dead-letter": _Message(
            "dead-letter", "send", "A record that could not be applied, unchanged. Its own headers follow Onebit's.",
            {}, letter, tuple(letter), {},
        ),
        "request": _Message(
            "control", "receive", "A request to change the pipeline's settings, from `onebit change`.",
            json_schema(Request), _VERSION, tuple(_VERSION), json_schema(RequestId),
        ),
    }  # fmt: skip


def _content(message: _Message) -> dict[str, Any]:
    headers: dict[str, Any] = {"type": "object", "properties": message.headers}
    if message.required:
        headers["required"] = list(message.required)
    content = {"summary": message.summary, "headers": headers, "payload": message.payload}
    if message.key is not None:
        content["bindings"] = {"kafka": {"key": message.key, "bindingVersion": _BINDING}}
    return content
