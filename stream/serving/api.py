"""The HTTP interface: decide, feedback, decisions by id, health and metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

import orjson
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema
from starlette.exceptions import HTTPException as RoutingError

from stream.kafka.port import BrokerError
from stream.parsing import shown
from stream.serving.decisions import Decisions, FallbackError, PipelineFacts, fallback_answer
from stream.serving.link import Link
from stream.serving.server import DECIDE, DECISIONS, FEEDBACK, SHOWN, Counts, problem
from stream.telemetry import metrics
from stream.telemetry.exposition import exposition
from stream.telemetry.heartbeat import Verdict
from stream.wire.codec import (
    HEADERS,
    ID_BYTES_MAX,
    MalformedError,
    decode_context,
    decode_feedback,
    encode_feedback,
    trace_of,
)
from stream.wire.records import Headers, IndexArray, Record, Shown
from stream.wire.topics import Topics

_ANY = 2**31 - 1  # limit on class numbers and indices until the pipeline's sizes are known


def _check_id(event_id: str) -> str:
    if len(event_id.encode()) > ID_BYTES_MAX:
        raise ValueError(f"expected at most {ID_BYTES_MAX} bytes")
    return event_id


Id = Annotated[str, Field(min_length=1, max_length=ID_BYTES_MAX), AfterValidator(_check_id)]
_NUMBERS = {"type": "array", "items": {"type": "number"}}
X = Annotated[Any, WithJsonSchema({"anyOf": [_NUMBERS, {"type": "object"}]})]  # checked by the learner's decoder


ClassIndex = Annotated[int, Field(ge=0, lt=_ANY, strict=True)]


_CLASSES = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}, "minItems": 1}
Eligible = Annotated[list[Any] | None, WithJsonSchema({"anyOf": [_CLASSES, {"type": "null"}]})]  # checked like x


class Context(BaseModel):
    """A context: one number per feature, `{"i": [...], "v": [...]}`, or named features.

    The id is optional. If eligible classes are given, as names or numbers, the decision is among these classes. A
    deferred decision counts only after it was shown.
    """

    id: Id | None = None
    x: X
    eligible: Eligible = None
    deferred: Annotated[bool, Field(strict=True)] = False


class Decision(BaseModel):
    """A committed decision, or a fallback: the class (number and name), its probability, and the model's version."""

    id: str
    action: int
    class_name: Annotated[str | None, Field(serialization_alias="class")] = None
    propensity: float | None = None
    model_version: int | None = None
    fallback: bool | None = None  # True for a fallback, otherwise absent


class Bit(BaseModel):
    """Feedback for a decision: 1 if it was right, 0 if wrong. The action, if given, must equal the decision's."""

    id: Id
    reward: Annotated[int, Field(ge=0, le=1, strict=True)]
    action: ClassIndex | None = None


class Notice(BaseModel):
    """The notice that a deferred decision was shown."""

    id: Id


class Problem(BaseModel):
    """An error response."""

    error: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Gateway:
    """The operations of the interface."""

    link: Link
    decisions: Decisions
    topics: Topics
    counts: Counts
    timeout_s: float
    fallback: str | None = None  # None to respond with status 504

    async def decide(self, body: Context, request: Request) -> Decision:
        """Write a context, and return its decision when it is committed. A repeated id returns the same decision."""
        event_id = body.id or uuid4().hex
        if (answer := self.decisions.find(event_id)) is None:
            self.link.check_ready()
            value, eligible = _context_value(event_id, body, self.link.facts)
            try:
                with self.decisions.expected(event_id) as expected:
                    async with asyncio.timeout(self.timeout_s):
                        await self.link.write(self.topics.contexts, event_id, value, _headers_of(request))
                        answer = await expected
            except TimeoutError:
                return self._late(event_id, eligible, is_checked=body.eligible is None or eligible is not None)
        return Decision(id=event_id, **answer._asdict())

    def _late(self, event_id: str, eligible: IndexArray | None, *, is_checked: bool) -> Decision:
        """Return the fallback, or an error if there is no fallback or the eligible classes could not be checked."""
        answer = None
        if is_checked and self.fallback is not None and self.link.facts is not None:
            with suppress(FallbackError):
                answer = fallback_answer(self.fallback, event_id, self.link.facts, eligible)
        if answer is None:
            error = f"no prediction within {self.timeout_s:g} s; repeat the request with this id, and check the learner"
            raise HTTPException(504, {"error": error, "id": event_id})
        self.counts.fallbacks += 1
        return Decision(id=event_id, **answer._asdict(), fallback=True)

    async def feedback(self, body: Bit) -> Bit:
        """Write feedback, and return it when the broker has acknowledged it."""
        self.link.check_ready()
        value = orjson.dumps(body.model_dump(exclude_none=True))
        decode_feedback(_record(value), _ANY if self.link.facts is None else self.link.facts.n_classes)
        await self.link.write(self.topics.feedback, body.id, value, HEADERS)
        return body

    async def shown(self, body: Notice) -> Notice:
        """Write that a deferred decision was shown, and return the id when the broker has acknowledged it."""
        self.link.check_ready()
        await self.link.write(self.topics.feedback, body.id, encode_feedback(Shown(body.id)), HEADERS)
        return body

    async def decision(self, event_id: str) -> Decision:
        """Return a decision from memory, by id."""
        if (answer := self.decisions.find(event_id)) is None:
            self.link.check_ready()
            raise HTTPException(404, {"error": "no decision with this id is remembered", "id": event_id})
        return Decision(id=event_id, **answer._asdict())

    async def healthz(self) -> Response:
        """Return status 200 while the program is alive."""
        return _page(self.link.heartbeat.alive())

    async def readyz(self) -> Response:
        """Return status 200 while the program is connected and has read the remembered decisions."""
        return _page(self.link.heartbeat.ready())

    async def metrics(self, request: Request) -> Response:
        """Return metrics for Prometheus."""
        waiting = metrics.HTTP_WAITING.at(self.decisions.waiting)
        remembered = metrics.HTTP_REMEMBERED.at(self.decisions.remembered)
        samples = (*self.link.heartbeat.samples(), *self.counts.samples(), waiting, remembered)
        content_type, text = exposition(samples, request.headers.get("Accept", ""))
        return Response(text, headers={"Content-Type": content_type})


def make_app(gateway: Gateway, version: str, *, has_token: bool = False) -> FastAPI:
    """Create the application; the link's threads run during its lifespan."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        gateway.link.start()
        yield
        gateway.link.close()

    app = FastAPI(title="Onebit", version=version, lifespan=lifespan, docs_url=None, redoc_url=None)
    token = [Depends(HTTPBearer(auto_error=False))] if has_token else []  # for OpenAPI only; `Guard` checks it
    for path, operation, method, success, errors in (
        (DECIDE, gateway.decide, "POST", 200, (400, 408, 413, 422, 503, 504)),
        (FEEDBACK, gateway.feedback, "POST", 202, (400, 408, 413, 422, 503)),
        (SHOWN, gateway.shown, "POST", 202, (400, 408, 413, 422, 503)),
        (f"{DECISIONS}{{event_id:path}}", gateway.decision, "GET", 200, (404, 422, 503)),
    ):
        app.add_api_route(
            path, operation, methods=[method], status_code=success, dependencies=token,
            response_model_exclude_none=True, responses={code: {"model": Problem} for code in (401, 429, *errors)},
        )  # fmt: skip
    for path, page in (("/healthz", gateway.healthz), ("/readyz", gateway.readyz), ("/metrics", gateway.metrics)):
        app.add_api_route(path, page, response_class=PlainTextResponse, responses={503: {}})
    for kind in (RequestValidationError, MalformedError, BrokerError, RoutingError, Exception):
        app.add_exception_handler(kind, _explain)
    return app


def _record(value: bytes) -> Record:
    return Record("", 0, 0, 0, None, value, HEADERS)


def _context_value(event_id: str, body: Context, facts: PipelineFacts | None) -> tuple[bytes, IndexArray | None]:
    """Check a context as the learner does, and return the value of its record and its eligible classes.

    Raises:
        MalformedError: the context is invalid. Before the learner's first step, only its form is checked.
    """
    x, eligible = body.x, None
    try:
        given = body.model_dump(include={"x", "eligible", "deferred"}, exclude_none=True, exclude_defaults=True)
        value = orjson.dumps({"id": event_id} | given)
    except TypeError as error:  # text is not UTF-8, a number exceeds 64 bits, or nesting is too deep
        raise MalformedError(f"x: {error}") from error
    if facts is not None:
        classes = None if facts.open_classes and body.eligible is None else facts.classes()  # names unknown
        context = decode_context(_record(value), facts.n_features, encoder=facts.encoder, classes=classes)
        eligible = context.eligible
    elif type(x) is not dict or type(x.get("i")) is list:
        decode_context(_record(value), len(x) if type(x) is list else _ANY)
    return value, eligible


def _headers_of(request: Request) -> Headers:
    given = tuple((name.decode("latin-1"), value) for name, value in request.scope["headers"])
    return HEADERS + trace_of(_record(b"")._replace(headers=given))


def _page(verdict: Verdict) -> Response:
    return PlainTextResponse(f"{verdict.why}\n", 200 if verdict.ok else 503)


async def _explain(_: Request, error: Exception) -> Response:
    """Return the response to an error."""
    match error:
        case MalformedError():
            return problem(422, str(error))
        case HTTPException() | RoutingError():
            return problem(error.status_code, error.detail, error.headers)
        case BrokerError():
            return problem(503, str(error), {"Retry-After": "1"})
        case RequestValidationError():
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                return problem(400, f"body: expected JSON; {first['ctx']['error']}")
            field = ".".join(map(str, first["loc"][1:])) or "body"
            got = "" if first["type"] == "missing" else f"; got {shown(first['input'])}"
            return problem(422, f"{field}: {first['msg']}{got}")
    return problem(500, "internal error")  # `Guard` logs the error
