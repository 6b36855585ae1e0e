"""The HTTP interface: decide, feedback, decisions by id, health and metrics."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from producers.gateway.decisions import Answer, Decisions, FallbackError, PipelineFacts, fallback_answer
from producers.gateway.link import Link
from producers.gateway.openapi import document
from producers.gateway.server import (
    BATCH_MAX,
    CLIENT_CLOSED,
    DECIDE,
    DECISIONS,
    FEEDBACK,
    OPENAPI,
    SHOWN,
    Counts,
    explanation,
    json_response,
    problem,
)
from stream.kafka.port import BrokerError
from stream.parsing import shown
from stream.telemetry import metrics
from stream.telemetry.exposition import exposition
from stream.telemetry.heartbeat import Verdict
from stream.wire.codec import (
    HEADERS,
    MalformedError,
    decode_context,
    decode_feedback,
    encode_feedback,
    trace_of,
)
from stream.wire.named_features import HASH_BITS_MAX, build
from stream.wire.records import ID_BYTES_MAX, Context, Headers, Record, Shown
from stream.wire.rewards import FeedbackRule, RewardRange
from stream.wire.topics import Topics

if TYPE_CHECKING:  # not imported at run time: OpenTelemetry is optional
    from stream.telemetry.tracing import Tracing

_ANY = 2**31 - 1  # limit on class numbers and indices until the pipeline's sizes are known
_ANY_REWARD = RewardRange(-inf, inf)
_ANY_NAMES = build({}, HASH_BITS_MAX, unknown=True)  # encodes features of any name and kind


@dataclass(slots=True)
class _Request:
    """The headers of the record that a request writes, and the status of its response."""

    headers: Headers
    status: int = CLIENT_CLOSED


@dataclass(frozen=True, slots=True)
class Gateway:
    """The interface's operations. docs/running.md describes the requests and responses."""

    link: Link
    decisions: Decisions
    topics: Topics
    counts: Counts
    timeout_s: float
    fallback: str | None = None  # response after the timeout; None for status 504
    tracing: "Tracing | None" = None  # None if no spans are exported

    async def decide(self, request: Request) -> Response:
        """Write a context and return its decision once it is committed. A repeated id gets the same decision.

        For an array of contexts, return an array with a decision or an error for each context, in the same order.
        """
        given, value = await json_of(request)
        headers, with_scores = headers_of(request), _flag(request, "scores")
        if type(given) is not list:
            status, fields = await self.decide_one(given, value, headers, with_scores=with_scores)
            return json_response(fields, status)
        if not 0 < len(given) <= BATCH_MAX:
            raise MalformedError(f"body: expected 1 to {BATCH_MAX} contexts; got {len(given)}")
        parts = (self._decide_part(one, headers, with_scores=with_scores) for one in given)
        return json_response(await asyncio.gather(*parts))

    async def _decide_part(self, given: Any, headers: Headers, *, with_scores: bool) -> dict[str, Any]:
        """Decide one context of an array. An error is a part of the response, and does not affect other contexts."""
        try:
            status, fields = await self.decide_one(given, encoded(given), headers, with_scores=with_scores)
        except (MalformedError, BrokerError) as error:
            error.__traceback__ = None  # as in `Guard`
            status, fields = (422 if isinstance(error, MalformedError) else 503), {"error": str(error)}
            if type(given) is dict and type(given.get("id")) is str:
                fields["id"] = given["id"]
        return fields if status == 200 else {**fields, "status": status}

    async def decide_one(
        self, body: Any, value: bytes, headers: Headers, *, with_scores: bool
    ) -> tuple[int, dict[str, Any]]:
        """Write a context and return the status and the fields of its response."""
        with self._request("onebit.decide", headers) as request:
            request.status, fields = await self._decision_on(body, value, request.headers, with_scores=with_scores)
        return request.status, fields

    async def _decision_on(
        self, body: Any, value: bytes, headers: Headers, *, with_scores: bool
    ) -> tuple[int, dict[str, Any]]:
        given = _fields(body, "id", "x", "actions", "eligible", "deferred", "baseline")
        if "id" not in given:
            given["id"] = uuid4().hex
            value = encoded(given)
        event_id = _id_of(given)
        context = _checked(given, value, self.link.facts)
        if (answer := self.decisions.find(event_id)) is None:
            try:
                with self.decisions.expected(event_id, value) as expected:
                    self.link.put(self.topics.contexts, event_id, value, headers, expected)
                    async with asyncio.timeout(self.timeout_s):
                        answer = await expected
            except TimeoutError:
                return self._late(event_id, context)
        return 200, self._decision(event_id, answer, with_scores=with_scores)

    def _late(self, event_id: str, context: Context | None) -> tuple[int, dict[str, Any]]:
        """Return the fallback, or status 504 if there is none or the context could not be checked."""
        why = ""
        if context is not None and self.fallback is not None and self.link.facts is not None:
            try:
                answer = fallback_answer(self.fallback, event_id, self.link.facts, context.eligible, context.actions)
            except FallbackError as unusable:
                why = f". There is no fallback: {unusable}"
            else:
                self.counts.fallbacks += 1
                return 200, {**self._decision(event_id, answer, with_scores=False), "fallback": True}
        self.decisions.time_out(monotonic())
        error = (
            f"no prediction within {self.timeout_s:g} s; repeat the request with this id. Check the learner, and run: "
            f"onebit tail dead-letter{why}"
        )
        return 504, {"error": error, "id": event_id}

    def _decision(self, event_id: str, answer: Answer, *, with_scores: bool) -> dict[str, Any]:
        fields = {
            "id": event_id, "action": answer.action, "class": answer.class_name, "propensity": answer.propensity,
            "model_version": answer.model_version, "scores": self.decisions.scores(event_id) if with_scores else None,
        }  # fmt: skip
        return {name: value for name, value in fields.items() if value is not None}

    @contextmanager
    def _request(self, name: str, headers: Headers, event_id: object = None) -> "Iterator[_Request]":
        """Create a span for a request, if spans are exported; see `Tracing.request`.

        Args:
            name: The span's name.
            headers: The headers of the record that the request writes.
            event_id: The id of an earlier decision to link to.
        """
        if self.tracing is None:
            yield _Request(headers)
            return
        earlier = self.decisions.find(event_id) if type(event_id) is str else None
        span = self.tracing.request(name, headers, None if earlier is None else earlier.trace)
        request = _Request(span.headers)
        try:
            yield request
        except (MalformedError, BrokerError) as error:
            request.status = explanation(error).status_code
            raise
        finally:
            span.end(request.status)

    async def feedback(self, request: Request) -> Response:
        """Write a feedback record and return its fields once the broker has acknowledged the record."""
        body, value = await json_of(request)
        given = _fields(body, "id", "reward", "action", "part", "final")
        await self.send_feedback(given, value, headers_of(request))
        return json_response(given, 202)

    async def send_feedback(self, given: dict[str, Any], value: bytes, headers: Headers) -> None:
        """Check a feedback record, and write it."""
        event_id = _id_of(given)
        with self._request("onebit.feedback", headers, event_id) as traced:
            self._check_feedback(given, value)
            await self.link.write(self.topics.feedback, event_id, value, traced.headers)
            traced.status = 202

    def _check_feedback(self, given: dict[str, Any], value: bytes) -> None:
        """Check feedback as the learner does. Until the pipeline's settings are known, any number is a reward."""
        facts = self.link.facts
        if facts is not None:
            has_actions = facts.reading is not None
            decode_feedback(
                _record(value), facts.n_classes, graded=facts.graded, rule=facts.rule, has_actions=has_actions
            )
        else:
            is_bit, has_actions = isinstance(given.get("reward"), bool), isinstance(given.get("action"), str)
            graded = None if is_bit else _ANY_REWARD
            rule: FeedbackRule = "sum" if "part" in given else "max"
            decode_feedback(_record(value), _ANY, graded=graded, rule=rule, has_actions=has_actions)

    async def shown(self, request: Request) -> Response:
        """Record that a deferred decision was shown, and return its id once the broker has acknowledged the record."""
        body, _ = await json_of(request)
        given = _fields(body, "id")
        await self.send_shown(given, headers_of(request))
        return json_response(given, 202)

    async def send_shown(self, given: dict[str, Any], headers: Headers) -> None:
        """Write a record which states that a deferred decision was shown."""
        event_id = _id_of(given)
        with self._request("onebit.shown", headers, event_id) as traced:
            await self.link.write(self.topics.feedback, event_id, encode_feedback(Shown(event_id)), traced.headers)
            traced.status = 202

    async def decision(self, request: Request) -> Response:
        """Return a remembered decision by its id."""
        event_id = request.path_params["event_id"]
        if (answer := self.decisions.find(event_id)) is None:
            self.link.check_ready()
            return problem(404, {"error": "the gateway does not remember a decision with this id", "id": event_id})
        return json_response(self._decision(event_id, answer, with_scores=_flag(request, "scores")))

    async def healthz(self, _: Request) -> Response:
        """Return status 200 while the program is alive."""
        return _page(self.link.heartbeat.alive())

    async def readyz(self, _: Request) -> Response:
        """Return status 200 while the program is connected, has read earlier decisions, and gets predictions."""
        return _page(self.link.heartbeat.ready())

    async def metrics(self, request: Request) -> Response:
        """Return metrics for Prometheus."""
        waiting = metrics.HTTP_WAITING.at(self.decisions.waiting)
        remembered = metrics.HTTP_REMEMBERED.at(self.decisions.remembered)
        samples = (*self.link.heartbeat.samples(), *self.counts.samples(), waiting, remembered)
        content_type, text = exposition(samples, request.headers.get("Accept", ""))
        return Response(text, headers={"Content-Type": content_type})


class _IdConvertor(PathConvertor):
    """Matches the rest of a path. Starlette's `path` converter does not match newlines and drops a trailing one."""

    regex = "(?s:.*)"


register_url_convertor("id", _IdConvertor())


def make_app(gateway: Gateway, version: str, *, has_token: bool = False, more: Sequence[Route] = ()) -> Router:
    """Create the application. The link's threads run during the application's lifespan.

    Args:
        gateway: the operations.
        version: Onebit's version.
        has_token: whether requests need a token.
        more: routes of another interface.
    """

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        gateway.link.start()
        yield
        gateway.link.close()

    async def describe(_: Request) -> Response:
        return json_response(document(version, gateway.link.facts, has_token=has_token))

    return Router(
        routes=[
            Route(DECIDE, gateway.decide, methods=["POST"]),
            Route(FEEDBACK, gateway.feedback, methods=["POST"]),
            Route(SHOWN, gateway.shown, methods=["POST"]),
            Route(f"{DECISIONS}{{event_id:id}}", gateway.decision),
            Route("/healthz", gateway.healthz),
            Route("/readyz", gateway.readyz),
            Route("/metrics", gateway.metrics),
            Route(OPENAPI, describe),
            *more,
        ],
        redirect_slashes=False,  # a redirect would contain the Host header of the request
        lifespan=lifespan,
    )


async def json_of(request: Request) -> tuple[Any, bytes]:
    """Return the content of a request's body, and the body itself.

    Only JSON is accepted. Browsers let pages from other sites send other media types without asking the gateway (CORS).
    """
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip()
    if media_type.lower() != "application/json":
        raise HTTPException(415, f"Content-Type: expected application/json; got {shown(media_type)}")
    body = await request.body()
    try:
        return orjson.loads(body), body
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"body: expected JSON; {error}") from error


def _fields(body: Any, *names: str) -> dict[str, Any]:
    """Return the fields of an object. Fields other than the named ones are rejected."""
    if type(body) is not dict:
        raise MalformedError(f"body: expected an object; got {shown(body)}")
    if unknown := body.keys() - names:
        raise MalformedError(f"body: expected only the fields {', '.join(names)}; got {shown(min(unknown))}")
    return body


def _flag(request: Request, name: str) -> bool:
    """Return whether a query parameter is true.

    Raises:
        MalformedError: the parameter is neither true nor false.
    """
    given = request.query_params.get(name, "false")
    if given not in ("true", "false"):
        raise MalformedError(f"{name}: expected true or false; got {shown(given)}")
    return given == "true"


def _id_of(given: dict[str, Any]) -> str:
    event_id = given.get("id")
    if type(event_id) is not str or not 0 < len(event_id.encode()) <= ID_BYTES_MAX:
        raise MalformedError(f"id: expected a string of 1 to {ID_BYTES_MAX} bytes; got {shown(event_id)}")
    return event_id


def _record(value: bytes, headers: Headers = HEADERS) -> Record:
    return Record("", 0, 0, 0, None, value, headers)


def encoded(given: Any) -> bytes:
    """Return a value as JSON.

    Raises:
        MalformedError: the value is nested too deeply, or has a number that is too large.
    """
    try:
        return orjson.dumps(given)
    except TypeError as error:
        raise MalformedError(f"body: {error}") from error


def _checked(given: dict[str, Any], value: bytes, facts: PipelineFacts | None) -> Context | None:
    """Check a context record's value as the learner does and return the context.

    Returns None before the learner's first step. Names, sizes and actions are not checked then.

    Raises:
        MalformedError: the context is invalid.
    """
    if facts is None:
        if "actions" in given:
            given = {"x": {}, **given}
        x = given.get("x")
        decode_context(_record(encoded(given)), len(x) if type(x) is list else _ANY, encoder=_ANY_NAMES)
        return None
    if "actions" in given and facts.reading is None:
        raise MalformedError(
            "actions: expected no actions, because the pipeline decides among classes. Start the learner with "
            "actions_max"
        )
    names_are_unknown = facts.open_classes and given.get("eligible") is None
    classes = None if names_are_unknown else facts.classes()
    return decode_context(
        _record(value), facts.n_features, encoder=facts.encoder, classes=classes, actions=facts.reading
    )


def headers_of(request: Request) -> Headers:
    """Return the headers of the record that a request writes."""
    given = tuple((name.decode("latin-1"), value) for name, value in request.scope["headers"])
    return HEADERS + trace_of(_record(b"", given))


def _page(verdict: Verdict) -> Response:
    return PlainTextResponse(f"{verdict.why}\n", 200 if verdict.ok else 503)
