"""Azure Personalizer's requests and responses as Onebit's contexts, feedback and decisions.

A rank request is a context with actions: each action has an id and features, and the first action that is not excluded
is the baseline.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from producers.personalizer_features import flat_features, list_of, object_of
from stream.parsing import shown
from stream.wire.codec import MalformedError
from stream.wire.named_features import text_of
from stream.wire.records import ID_BYTES_MAX

PREFIX = "/personalizer/"

KEY_HEADER = b"ocp-apim-subscription-key"
"""The header with the token."""

RANK, STATUS = f"{PREFIX}rank", f"{PREFIX}status"

START = re.compile(r"/+personalizer/(?:v[0-9][^/]*/)?", re.IGNORECASE | re.ASCII)
"""The start of a path, with the version that older clients put into it. Newer clients have it in the query. An endpoint
that ends with a slash leads to two slashes."""

OPERATION = re.compile(r"(rank|status)|(events/)((?s:.*)/)(reward|activate)", re.IGNORECASE | re.ASCII)
"""The rest of a path: an operation, with the event's id between its parts. Azure ignores the case of the names."""

CODES = {
    401: "401",
    404: "ResourceNotFound",
    413: "PayloadSizeExceeded",
    429: "429",
    501: "InvalidApiAccess",
}
"""Error codes by status. Other errors of a client have the code `BadRequest`, and other errors of the gateway have the
code `InternalServerError`."""

INSTEAD = {
    "multislot": "send one rank request per slot, and exclude the actions of the earlier slots",
    "configurations/service": "show the settings with `onebit config`, and change them with `onebit change`",
    "configurations/policy": "list learners with `onebit learners`, and add one with `onebit change`",
    "configurations/applyFromEvaluation": "let another learner decide with `onebit change`",
    "evaluations": "estimate other policies with `onebit estimate`",
    "featureImportances": "export the model with `onebit model export`, and compare models with `onebit model diff`",
    "logs": "export the decisions with `onebit export`",
    "model": "export or import the model with `onebit model`",
}
"""What to use instead of an operation, by the start of its path."""


FIELDS = (
    (re.compile(r"^reward:"), "value:"),
    (re.compile(r"^x:"), "contextFeatures:"),
    (re.compile(r"^(actions\[[0-9]+\])\.x:"), r"\1.features:"),
)
"""Onebit's names of fields at the start of an error's message, and Personalizer's."""


class RankRequest(NamedTuple):
    """A checked rank request."""

    context: dict[str, Any]  # a context's fields
    offered: tuple[str, ...]  # ids of the actions to decide among
    excluded: Mapping[int, str]  # ids of the other actions, by their position in the request


def normalized(path: str) -> str:
    """Return a path of Personalizer without its version, in lower case except the event's id.

    Other paths, and the operations that Onebit does not support, are returned unchanged.

    >>> normalized("//personalizer/v1.1-preview.3/rank"), normalized("/Personalizer/Rank"), normalized("/v1/decide")
    ('/personalizer/rank', '/personalizer/rank', '/v1/decide')
    >>> normalized("/personalizer/v1.0/Events/Visit-1/Reward")
    '/personalizer/events/Visit-1/reward'
    """
    start = START.match(path)
    if start is None:
        return path
    operation = path[start.end() :]
    if (found := OPERATION.fullmatch(operation)) is not None:
        alone, events, event_id, act = found.groups(default="")
        operation = f"{alone}{events}".lower() + event_id + act.lower()
    return PREFIX + operation


def operation_of(path: str) -> str | None:
    """Return a normalized path without the event's id, or None if Onebit does not support it.

    >>> operation_of("/personalizer/events/visit-1/reward"), operation_of("/personalizer/evaluations")
    ('/personalizer/events/{id}/reward', None)
    """
    found = OPERATION.fullmatch(path.removeprefix(PREFIX))
    return None if found is None else path if found[1] else f"{PREFIX}events/{{id}}/{found[4]}"


def unsupported(path: str) -> str | None:
    """Return why Onebit does not support an operation of Personalizer, or None if Personalizer has no such operation.

    >>> unsupported("/personalizer/model/properties")
    'model/properties is not supported; export or import the model with `onebit model`'
    """
    operation = path.removeprefix(PREFIX)
    for start, remedy in INSTEAD.items():
        if f"{operation}/".lower().startswith(f"{start}/".lower()):
            return f"{operation} is not supported; {remedy}"
    return None


def error_fields(status: int, message: str) -> dict[str, Any]:
    """Return the fields of an error's response. The message contains Personalizer's name of a field.

    >>> error_fields(400, "reward: expected 0 or 1; got 7")
    {'error': {'code': 'BadRequest', 'message': 'value: expected 0 or 1; got 7'}}
    """
    for ours, theirs in FIELDS:
        message = ours.sub(theirs, message)
    code = CODES.get(status, "BadRequest" if status < 500 else "InternalServerError")
    return {"error": {"code": code, "message": message}}


def rank_request(body: Any) -> RankRequest:
    """Check a rank request's body and return its context. Unknown fields are ignored.

    >>> request = rank_request({
    ...     "contextFeatures": [{"timeOfDay": "Morning"}],
    ...     "actions": [{"id": "News", "features": [{"length": 3}]}, {"id": "Sport", "features": [{"live": True}]}],
    ...     "excludedActions": ["News"],
    ...     "eventId": "visit-1",
    ... })
    >>> request.context["x"], request.context["actions"][1]
    ({'timeOfDay': 'Morning'}, {'id': 'Sport', 'x': {'live': True}})
    >>> request.context["eligible"], request.context["baseline"]
    (['Sport'], 'Sport')

    Raises:
        MalformedError: a field is invalid, or there is no action to decide among.
    """
    fields = object_of("body", body)
    actions = [_action(f"actions[{n}]", one) for n, one in enumerate(list_of("actions", fields.get("actions")))]
    if not actions:
        raise MalformedError("actions: expected at least one action; got none")
    listed = list_of("excludedActions", fields.get("excludedActions"))
    names = {_id(f"excludedActions[{n}]", one) for n, one in enumerate(listed)}
    offered = tuple(one["id"] for one in actions if one["id"] not in names)
    if not offered:
        raise MalformedError("excludedActions: expected at least one action that is not excluded; got none")
    given, deferred = fields.get("eventId"), fields.get("deferActivation")
    event_id = uuid4().hex if given is None else _id("eventId", given)
    if not 0 < len(event_id.encode()) <= ID_BYTES_MAX:
        raise MalformedError(f"eventId: expected a string of 1 to {ID_BYTES_MAX} bytes; got {shown(event_id)}")
    if deferred is not None and type(deferred) is not bool:
        raise MalformedError(f"deferActivation: expected true or false; got {shown(deferred)}")
    context: dict[str, Any] = {
        "id": event_id,
        "x": flat_features("contextFeatures", fields.get("contextFeatures")),
        "actions": actions,
        "baseline": offered[0],
        "deferred": bool(deferred),
    }
    if len(offered) < len(actions):
        context["eligible"] = list(offered)
    return RankRequest(context, offered, {n: one["id"] for n, one in enumerate(actions) if one["id"] in names})


def rank_response(request: RankRequest, decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a rank request's response.

    The played action is first, and the other actions follow by descending score. An excluded action keeps its position
    in the request, and has the probability 0. The played action has its propensity. The rest of the probability is
    divided equally among the others, because a decision contains only the propensity of the played action.

    >>> request = rank_request({"actions": [{"id": "a"}, {"id": "b"}, {"id": "c"}], "excludedActions": ["b"]})
    >>> answer = rank_response(request, {"id": "7", "class": "c", "propensity": 0.9, "scores": {"a": 0.1, "c": 0.2}})
    >>> [(one["id"], round(one["probability"], 3)) for one in answer["ranking"]], answer["rewardActionId"]
    ([('c', 0.9), ('b', 0.0), ('a', 0.1)], 'c')

    Args:
        request: The request.
        decision: The response of `/v1/decide`. Without scores, the other actions are in the request's order.

    Raises:
        MalformedError: an earlier request with the same id had other actions.
    """
    played, propensity, scores = decision["class"], decision.get("propensity"), decision.get("scores", {})
    if played not in request.offered:
        raise MalformedError(
            f"eventId: the event {shown(decision['id'])} was decided earlier, for other actions: {shown(played)}. "
            "Use a new eventId for each rank request"
        )
    others = sorted((one for one in request.offered if one != played), key=lambda one: -scores.get(one, 0.0))
    probabilities = dict.fromkeys(request.excluded.values(), 0.0)
    if propensity is not None:
        probabilities |= dict.fromkeys(others, (1.0 - propensity) / max(len(others), 1)) | {played: propensity}
    order = [played, *others]
    for position, excluded in request.excluded.items():
        order.insert(position, excluded)
    ranking = [{"id": one, "probability": probabilities.get(one)} for one in order]
    return {"ranking": ranking, "eventId": decision["id"], "rewardActionId": played}


def feedback_of(event_id: str, body: Any, *, is_part: bool) -> dict[str, Any]:
    """Check a reward's body and return the fields of the feedback.

    >>> feedback_of("visit-1", {"value": 0.5}, is_part=False)
    {'id': 'visit-1', 'reward': 0.5}

    Args:
        event_id: The event's id.
        body: The body.
        is_part: Whether rewards are summed. Every request is then a part of its own, because it does not name one.

    Raises:
        MalformedError: the value is missing or not a number.
    """
    value = object_of("body", body).get("value")
    if type(value) not in (int, float):
        raise MalformedError(f"value: expected a number; got {shown(value)}")
    return {"id": event_id, "reward": value} | ({"part": uuid4().hex} if is_part else {})


def _action(name: str, given: Any) -> dict[str, Any]:
    fields = object_of(name, given)
    return {"id": _id(f"{name}.id", fields.get("id")), "x": flat_features(f"{name}.features", fields.get("features"))}


def _id(name: str, given: Any) -> str:
    """Return an id as a string. Some clients send numbers."""
    text = given if type(given) is str else text_of(given) if type(given) is int else None
    if text is None:
        raise MalformedError(f"{name}: expected a string; got {shown(given)}")
    return text
