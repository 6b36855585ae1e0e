"""The OpenAPI document for the HTTP interface. It uses the schemas of the records that the gateway writes."""

from collections.abc import Iterable, Sequence
from typing import Any

from producers.gateway.decisions import PipelineFacts
from producers.gateway.server import BATCH_MAX, DECIDE, DECISIONS, FEEDBACK, SHOWN
from stream.wire.schemas import payload_of

_JSON = "application/json"
_ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    404: "The gateway does not remember a decision with this id.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The Content-Type is not application/json.",
    421: "The host name is not known.",
    422: "A field is invalid or unknown, or the learner has rejected the context.",
    429: "The rate limit was exceeded; Retry-After contains the number of seconds to wait.",
    503: "The gateway is not ready, the broker refused or did not acknowledge a record, or too many requests are open.",
    504: "No decision was made in time.",
}
_BODY_ERRORS = (400, 408, 413, 415, 422, 503)


def document(version: str, facts: PipelineFacts | None, *, has_token: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document. It includes the numbers of classes and features once they are known."""
    context, feedback = payload_of("contexts")["properties"], payload_of("feedback")["properties"]
    eligible, _ = context["eligible"]["anyOf"]  # or null
    eligible |= {"minItems": 1, "uniqueItems": True}  # checked even if the learner ignores the list
    if facts is not None:
        _add_sizes(context, feedback, facts)
    required = ["id", "reward"] if facts is None or facts.rule != "sum" else ["id", "reward", "part"]
    event_id = context["id"]
    page = {
        code: {"description": text} for code, text in (("200", "Yes."), ("503", "No; the body contains the reason."))
    }
    schemas = {
        "Context": _context_schema(context, facts),
        "Feedback": _schema(feedback, ("id", "reward", "action", "part", "final"), required),
        "Notice": _schema({"id": event_id}, ["id"], ["id"]),
        "Decision": {
            "type": "object",
            "required": ["id", "action"],
            "properties": {
                "id": event_id,
                "action": {"type": "integer", "minimum": 0},
                "class": {"type": "string", "description": "The name of the class, or the action's id."},
                "propensity": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                "model_version": {"type": "integer", "minimum": 0},
                "scores": {
                    "type": ["array", "object"],
                    "items": {"type": "number"},
                    "additionalProperties": {"type": "number"},
                    "description": "As in the prediction; with actions, by id. Present only if requested, and not in a "
                    "fallback.",
                },
                "fallback": {"const": True, "description": "Present only in a fallback."},
            },
        },
        "Problem": {
            "type": "object",
            "required": ["error"],
            "properties": {"error": {"type": "string"}, "id": {"type": "string"}},
        },
        "Contexts": {"type": "array", "items": _ref("Context"), "minItems": 1, "maxItems": BATCH_MAX},
        "Results": {
            "description": "A decision or an error for each context, in the same order.",
            "type": "array",
            "items": {"anyOf": [_ref("Decision"), _ref("PartProblem")]},
        },
        "PartProblem": {
            "type": "object",
            "required": ["error", "status"],
            "properties": {"error": {"type": "string"}, "id": {"type": "string"}, "status": {"enum": [422, 503, 504]}},
        },
        "DecideBody": {"anyOf": [_ref("Context"), _ref("Contexts")]},
        "DecideResult": {"anyOf": [_ref("Decision"), _ref("Results")]},
    }
    by_id = {"name": "event_id", "in": "path", "required": True, "schema": event_id}
    scores = {
        "name": "scores",
        "in": "query",
        "description": "Whether decisions contain the scores of all classes or actions.",
        "schema": {"type": "boolean", "default": False},
    }
    decide = _post("Request a decision, or several at once", "DecideBody", 200, "DecideResult", (*_BODY_ERRORS, 504))
    operations = {
        DECIDE: ("post", {**decide, "parameters": [scores]}),
        FEEDBACK: ("post", _post("Send feedback", "Feedback", 202, "Feedback", _BODY_ERRORS)),
        SHOWN: ("post", _post("Report that a deferred decision was shown", "Notice", 202, "Notice", _BODY_ERRORS)),
        f"{DECISIONS}{{event_id}}": (
            "get",
            {**_operation("Return a decision by id", 200, "Decision", (404, 422, 503)), "parameters": [by_id, scores]},
        ),
    }
    pages = {
        "/healthz": ("Whether the program is alive", page),
        "/readyz": ("Whether the program is ready", page),
        "/metrics": ("Metrics for Prometheus", {"200": {"description": "Samples."}}),
    }
    paths = {path: {method: operation} for path, (method, operation) in operations.items()} | {
        path: {"get": {"summary": summary, "responses": responses, "security": []}}
        for path, (summary, responses) in pages.items()
    }
    token = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if has_token else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Onebit", "version": version},
        "paths": paths,
        "components": {"schemas": schemas, **token},
        "security": [{"token": []}] if has_token else [],
    }


def _context_schema(context: dict[str, Any], facts: PipelineFacts | None) -> dict[str, Any]:
    """Return the schema of a context. Actions are required in a pipeline with actions, and rejected in others."""
    names = ["id", "x", "actions", "eligible", "deferred", "baseline"]
    if facts is None:
        return _schema(context, names, []) | {"anyOf": [{"required": ["x"]}, {"required": ["actions"]}]}
    if facts.reading is not None:
        return _schema(context, names, ["actions"])
    names.remove("actions")
    return _schema(context, names, ["x"])


def _add_sizes(context: dict[str, Any], feedback: dict[str, Any], facts: PipelineFacts) -> None:
    """Restrict the request fields to the pipeline's features, classes and rewards."""
    _limit_features(context["x"], facts.n_features, has_names=facts.encoder is not None)
    number, text, null = feedback["action"]["anyOf"]
    if facts.reading is not None:
        blocks, encoder = facts.reading.blocks, facts.reading.encoder
        context["actions"]["maxItems"] = blocks.places
        x = context["actions"]["items"]["properties"]["x"]
        _limit_features(x, blocks.features, has_names=encoder is not None)
    feedback["action"]["anyOf"] = [
        number | {"maximum": facts.n_classes - 1} if facts.reading is None else text,
        null,
    ]
    del feedback["reward"]["anyOf"]  # a number or a boolean
    if facts.graded is None:
        feedback["reward"]["enum"] = [0, 1, False, True]
    else:
        low, high = facts.graded
        limits = {} if facts.rule == "sum" else {"minimum": low, "maximum": high}
        feedback["reward"] |= {"type": "number", **limits}
    if facts.open_classes or facts.reading is not None:
        classes: dict[str, Any] = {"type": "string"}
    elif facts.class_names is None:
        classes = {"type": "integer", "minimum": 0, "maximum": facts.n_classes - 1}
    else:
        classes = {"enum": facts.class_names}
    context["eligible"]["anyOf"][0]["items"] = classes
    if facts.unsupported is not None:
        context["eligible"] = False  # no list is valid


def _limit_features(x: dict[str, Any], n_features: int, *, has_names: bool) -> None:
    dense, sparse, named = x["anyOf"]
    dense |= {"minItems": n_features, "maxItems": n_features}
    sparse["properties"]["i"]["items"]["maximum"] = n_features - 1
    x["anyOf"] = [dense, sparse, named] if has_names else [dense, sparse]


def _schema(properties: dict[str, Any], names: Sequence[str], required: Sequence[str]) -> dict[str, Any]:
    fields = {name: properties[name] for name in names}
    return {"type": "object", "required": required, "properties": fields, "additionalProperties": False}


def _ref(schema: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _content(schema: str) -> dict[str, Any]:
    return {"content": {_JSON: {"schema": _ref(schema)}}}


def _operation(summary: str, code: int, schema: str, errors: Iterable[int]) -> dict[str, Any]:
    failures = {str(one): {"description": _ERRORS[one], **_content("Problem")} for one in (401, 421, 429, *errors)}
    return {"summary": summary, "responses": {str(code): {"description": "Success.", **_content(schema)}, **failures}}


def _post(summary: str, body: str, code: int, schema: str, errors: Iterable[int]) -> dict[str, Any]:
    return {**_operation(summary, code, schema, errors), "requestBody": {"required": True, **_content(body)}}
