"""JSON Schemas for the record values in the event topics, for services in any language.

The schemas are generated from the structs that the codec decodes: members, types, ranges, defaults and descriptions.
`_EVENTS` adds the rules that a struct cannot express. JSON Schema cannot express some of them: increasing indices,
equal numbers of values and indices, the size of an id in bytes, and the learner's classes and features. These rules are
given in `$comment` and in docs/formats.md.

Contexts and feedback records that a schema rejects are malformed. Records that the schemas accept can still be
malformed. The schemas accept everything that Onebit writes.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType
from msgspec.json import schema_components

from stream.wire.actions import ACTIONS_MAX
from stream.wire.codec import VALUE_BYTES_MAX, VERSION
from stream.wire.records import ID_BYTES_MAX, Example, Logged
from stream.wire.typed_fields import ActionFields, ContextFields, PartFields, PredictionFields, SparseFields


def json_schema(type_: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, without references, so that it can be part of any document."""
    (schema,), parts = schema_components((type_,), ref_template="{name}")
    resolved: dict[str, Any] = _resolved(schema, parts)
    return resolved


def _resolved(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        schema = parts[schema["$ref"]] | schema  # a field's description replaces the description of its type
    return {name: _resolved(value, parts) for name, value in schema.items() if name != "$ref"}


_Dense = Annotated[list[float], Meta(title="Dense", description="One number for each feature.", min_length=1)]
_Sparse = Annotated[SparseFields, Meta(title="Sparse")]
_Named = Annotated[
    dict[str, float | str | bool | None],
    Meta(title="Named", description="Values by feature name, for a learner with a feature encoder."),
]
_Features = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [json_schema(features) for features in (_Dense, _Sparse, _Named)]})
]
"""The features of any learner. A learner's decoder reads the dense form, and either the sparse or the named form."""


class _Context(ContextFields[_Features]):
    """The data on which the learner bases its decision about an event."""

    actions: Annotated[
        list[Annotated[ActionFields[_Features], Meta(title="Action")]] | UnsetType,
        Meta(
            description="The actions to decide among, in a pipeline with actions_max. The place of an action in this "
            "list is its number in the prediction. x is optional then, and eligible and baseline contain ids.",
            extra_json_schema={"minItems": 1, "maxItems": ACTIONS_MAX},
        ),
    ] = UNSET

    logged: Annotated[
        Logged | UnsetType,
        Meta(
            description="The logged decision, if a log of decisions is replayed. It is read only if the log's "
            "decisions are played or matched."
        ),
    ] = UNSET


class _Feedback(PartFields):
    """A decision's reward. A record without a reward reports that a deferred decision was shown."""


_ID = f"The id has 1 to {ID_BYTES_MAX} bytes in UTF-8, and equals the record's key if there is one."
_LATER = "A later version may add members; ignore unknown members."
_EVENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "contexts": (
        _Context,
        {
            "title": "Context",
            "required": ["id"],
            "anyOf": [{"required": ["x"]}, {"required": ["actions"]}],
            "$comment": f"{_ID} A value has at most {VALUE_BYTES_MAX:,} bytes. A dense list has one number for each "
            "feature of the learner. The indices in i are strictly increasing and less than the number of features; v "
            "has the same length as i. Integers are written without a decimal point or an exponent. Other members are "
            "ignored.",
        },
    ),
    "predictions": (
        PredictionFields,
        {
            "title": "Prediction",
            "$comment": f"There is one score for each class; an action is less than the number of classes. {_LATER}",
            "if": {"properties": {"propensity": {"type": "null"}}},
            "then": {"required": ["target"], "properties": {"target": {"type": "object"}}},
        },
    ),
    "feedback": (
        _Feedback,
        {
            "title": "Feedback",
            "$comment": f"{_ID} A reward is 0 or 1 as a number or a boolean, or, with graded rewards, a number in the "
            "pipeline's range or, if it is a part of a sum, any number. The id of a part has the size of an id. Label "
            "and action, unless it is an id, are less than the number of classes, and are written without a decimal "
            "point or an exponent. Other members are ignored.",
            "anyOf": [{"required": ["reward"]}, {"required": ["shown"]}],
        },
    ),
    "examples": (Example, {"title": "Example", "$comment": _LATER}),
}
"""A topic's struct, and the members of its schema that the struct cannot express."""

EVENTS = tuple(_EVENTS)
"""Topics whose values have a schema, named without their prefix."""


def payload_of(topic: str) -> dict[str, Any]:
    """Return the schema for a topic's values as a part of a document, given the topic's name without its prefix."""
    struct, rules = _EVENTS[topic]
    return json_schema(struct) | rules


def schema_of(topic: str) -> dict[str, Any]:
    """Return the schema (draft 2020-12) for a topic's values, given the topic's name without its prefix."""
    payload = payload_of(topic)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:onebit:wire:{VERSION}:{payload['title'].lower()}",
        **payload,
    }
