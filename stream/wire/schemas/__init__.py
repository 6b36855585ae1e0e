"""JSON Schemas for the record values in the event topics, for services in any language.

JSON Schema cannot express some rules: increasing indices, equal numbers of values and indices, the size of an id, and
the learner's classes and features. These rules are given in `$comment` and in docs/formats.md. Contexts and feedback
records that a schema rejects are malformed. Records that the schemas accept can still be malformed. The schemas accept
everything that Onebit writes.
"""

from importlib.resources import files
from typing import Any

import orjson

EVENTS = ("contexts", "predictions", "feedback", "examples")
"""Topics whose values have a schema, named without their prefix."""


def schema_of(topic: str) -> dict[str, Any]:
    """Return the schema (draft 2020-12) for a topic's values, given the topic's name without its prefix."""
    schema: dict[str, Any] = orjson.loads(files(__name__).joinpath(f"{topic}.json").read_bytes())
    return schema
