"""JSON Schemas for the record values in the event topics, for services in any language.

JSON Schema cannot express some rules: increasing indices, equal numbers of values and indices, the size of an id, and
the learner's classes and features. These rules are in `$comment` and in docs/formats.md. A context or feedback record
that its schema rejects is malformed. A record that the schema accepts can still be malformed. The schemas accept
everything that Onebit writes.
"""

from importlib.resources import files
from typing import Any

import orjson

EVENTS = ("contexts", "predictions", "feedback", "examples")
"""The names, without prefix, of the topics whose values have a schema."""


def schema_of(topic: str) -> dict[str, Any]:
    """Return the schema (draft 2020-12) of a topic's values, by the topic's name without its prefix."""
    schema: dict[str, Any] = orjson.loads(files(__name__).joinpath(f"{topic}.json").read_bytes())
    return schema
