"""The values of the topics of events as JSON Schema, for services in any language.

A schema says all that JSON Schema can say. What it cannot (indices that increase, as many values as indices, an id's
bytes, the learner's classes and features) stands in its `$comment`, and in docs/formats.md. So a context or a feedback
that its schema refuses is malformed, and one that it accepts may still be. What Onebit writes is accepted.
"""

from importlib.resources import files
from typing import Any

import orjson

EVENTS = ("contexts", "predictions", "feedback", "examples")
"""The topics whose values have a schema, without their prefix."""


def schema_of(topic: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of a topic's values, by the topic's name without its prefix."""
    schema: dict[str, Any] = orjson.loads(files(__name__).joinpath(f"{topic}.json").read_bytes())
    return schema
