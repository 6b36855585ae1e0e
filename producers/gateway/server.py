"""The HTTP server, and its checks on requests before they reach the application: token, rate, size and time."""

import asyncio
import errno
import hmac
import math
import resource
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson
import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from producers.gateway import personalizer
from producers.gateway.protocol import KEEP_ALIVE_S, Protocol
from stream.kafka.port import BrokerError
from stream.parsing import shown
from stream.telemetry import metrics
from stream.telemetry.metrics import Sample
from stream.telemetry.sketch import Sketch
from stream.wire.codec import VALUE_BYTES_MAX, MalformedError

API = "/v1/"
DECIDE, FEEDBACK, SHOWN, DECISIONS = "/v1/decide", "/v1/feedback", "/v1/shown", "/v1/decisions/"
OPENAPI = "/openapi.json"
PATHS = frozenset((DECIDE, FEEDBACK, SHOWN, "/healthz", "/readyz", "/metrics", OPENAPI))

BATCH_MAX = 100
"""Limit on the contexts in one request to `/v1/decide`. A larger batch would delay the decisions on other requests."""

BODY_S = 10.0
"""Time limit for reading a body."""

REQUESTS_MAX = 1_000
"""Limit on concurrent requests to `/v1` and `/personalizer`; further requests get status 503."""

CONNECTIONS_MAX = 10_000
"""Limit on open connections, including idle ones. If there are more, uvicorn responds to every request with 503."""

FILES_OTHER = 100
"""Number of open files reserved for the Kafka client and the rest of the program."""

CLIENT_CLOSED = 499
"""Status under which a request is counted if its client closes the connection before receiving the response."""

CLOSE_S = 5
"""Time allowed for completing open requests after a stop, in addition to the timeout for a decision."""


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Create a response with a JSON body."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, "application/json")


def problem(status: int, error: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Create an error response from a message, or from an object whose `error` is the message."""
    return json_response(error if isinstance(error, dict) else {"error": error}, status, headers)


def personalizer_problem(status: int, error: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Create an error response as Personalizer does. Its clients expect status 400 for an invalid field."""
    status = 400 if status == 422 else status
    return json_response(personalizer.error_fields(status, error), status, headers)


Problem = Callable[..., Response]


def explanation(error: MalformedError | BrokerError | HTTPException, problem: Problem = problem) -> Response:
    """Create the response for an error that a client or the broker has caused."""
    match error:
        case MalformedError():
            return problem(422, str(error))
        case BrokerError():
            return problem(503, str(error), {"Retry-After": "1"})
    return problem(error.status_code, error.detail, error.headers)


class Counts:
    """Counts of responses since startup."""

    def __init__(self) -> None:
        self.fallbacks = 0
        self._requests: Counter[tuple[str, str]] = Counter()
        self._decide = Sketch()

    def add(self, path: str, code: int, took_s: float) -> None:
        """Count a response."""
        known = path if path in PATHS else f"{DECISIONS}{{id}}" if path.startswith(DECISIONS) else None
        self._requests[known or personalizer.operation_of(path) or "other", str(code)] += 1
        if path in (DECIDE, personalizer.RANK):
            self._decide.add(1_000 * took_s)

    def samples(self) -> Iterator[Sample]:
        """Return the samples."""
        yield from (metrics.HTTP_REQUESTS.at(count, *labels) for labels, count in self._requests.items())
        yield self._decide.sample_of(metrics.HTTP_DECIDE)
        yield metrics.HTTP_FALLBACKS.at(self.fallbacks)


class RateLimit:
    """A token bucket with a capacity of one second's requests."""

    def __init__(self, per_s: float, now_s: Callable[[], float] = monotonic) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._tokens = self._tokens_max = max(1.0, per_s)
        self._seen_s = now_s()

    def wait_s(self) -> int:
        """Admit a request and return 0, or return the number of seconds after which the client can try again.

        >>> rate = RateLimit(0.5, now_s=lambda: 0.0)
        >>> rate.wait_s(), rate.wait_s()
        (0, 2)
        """
        now_s = self._now_s()
        self._tokens = min(self._tokens_max, self._tokens + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        if self._tokens < 1.0:
            return math.ceil((1.0 - self._tokens) / self._per_s)
        self._tokens -= 1.0
        return 0


class Limits(NamedTuple):
    """Limits on requests to `/v1` and `/personalizer`. None means no limit."""

    tokens: tuple[str, ...] = ()  # requests need one of these tokens; empty if they need none
    hosts: Collection[str] | None = None  # known host names, in lower case; used if there are no tokens
    rate: RateLimit | None = None
    requests_max: int = REQUESTS_MAX
    body_bytes_max: int = VALUE_BYTES_MAX
    body_s: float = BODY_S


class Guard:
    """An ASGI application that checks requests to another one, responds to errors, and counts the responses."""

    def __init__(self, app: ASGIApp, limits: Limits, counts: Counts, announce: Callable[[str], None]) -> None:
        self._app = app
        self._limits = limits
        self._counts = counts
        self._announce = announce
        self._requests = 0  # number of open requests to which the limits apply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app  # without it, Starlette itself responds to an unknown path or method
        path = scope["path"] = personalizer.normalized(scope["path"])
        started_s, code = monotonic(), CLIENT_CLOSED
        is_personalizer = path.startswith(personalizer.PREFIX)
        is_limited = is_personalizer or path.startswith(API)
        respond: Problem = personalizer_problem if is_personalizer else problem

        async def counted(message: Message) -> None:
            nonlocal code
            code = message.get("status", code)
            await send(message)

        self._requests += is_limited
        try:
            if is_limited and (refusal := self._refusal(scope, respond)) is not None:
                await refusal(scope, receive, counted)
            elif is_limited:
                await self._call(scope, receive, counted, respond)
            else:  # no other path reads a body
                await self._app(scope, receive, counted)
        except (MalformedError, BrokerError, HTTPException) as error:
            error.__traceback__ = None  # its frames contain the body, and through a future also the error itself
            await explanation(error, respond)(scope, receive, counted)
        except Exception as error:
            self._announce(f"internal error: {path}: {type(error).__name__}: {error}")
            if code == CLIENT_CLOSED:  # no response has been started
                await respond(500, "internal error")(scope, receive, counted)
        finally:
            self._requests -= is_limited
            self._counts.add(path, code, monotonic() - started_s)

    def _refusal(self, scope: Scope, problem: Problem) -> Response | None:
        """Return the error response for a request that is not admitted, otherwise None."""
        tokens, hosts, rate = self._limits.tokens, self._limits.hosts, self._limits.rate
        if tokens and not _has_token(scope, tokens):
            expected = "Authorization: expected Bearer and the token, or the token in Ocp-Apim-Subscription-Key"
            return problem(401, expected, {"WWW-Authenticate": "Bearer"})
        if not tokens and hosts is not None and (unknown := _unknown_host(scope, hosts)) is not None:
            return problem(421, f"Host: unknown name {shown(unknown)}; add it to the gateway's setting allow_host")
        if self._requests > self._limits.requests_max:
            return problem(
                503, f"expected at most {self._limits.requests_max} concurrent requests", {"Retry-After": "1"}
            )
        if rate is not None and (wait_s := rate.wait_s()):
            return problem(429, f"rate limit exceeded; try again in {wait_s} s", {"Retry-After": str(wait_s)})
        return None

    async def _call(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        """Read the body and call the application."""
        body, is_whole, bytes_max, body_s = bytearray(), False, self._limits.body_bytes_max, self._limits.body_s
        try:
            async with asyncio.timeout(body_s):
                while not is_whole and (message := await receive())["type"] == "http.request":
                    body += message.get("body", b"")
                    if len(body) > bytes_max:
                        await problem(413, f"body: expected at most {bytes_max} bytes")(scope, receive, send)
                        return
                    is_whole = not message.get("more_body", False)
        except TimeoutError:
            await problem(408, f"body: expected the complete body within {body_s:g} s", {"Connection": "close"})(
                scope, receive, send
            )
            return
        read = [{"type": "http.request", "body": bytes(body)}]

        async def reread() -> Message:
            return read.pop() if read else await receive()

        if is_whole:  # a client that has disconnected does not get a response
            await self._app(scope, reread, send)


def _has_token(scope: Scope, tokens: Sequence[str]) -> bool:
    headers = dict(reversed(scope["headers"]))  # the first of each name
    scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
    given = (secret if scheme.lower() == b"bearer" else b"", headers.get(personalizer.KEY_HEADER, b""))
    return any(hmac.compare_digest(secret, one.encode()) for secret in given for one in tokens)


def _unknown_host(scope: Scope, hosts: Collection[str]) -> str | None:
    """Return the host name of a request if the name is not known, otherwise None.

    This check prevents DNS rebinding, in which a page's own host name is resolved to this host. Such a name has a dot,
    because nobody can register another one. A browser sends a Host header with every request.
    """
    for name, value in scope["headers"]:
        given: str = value.decode("latin-1")
        if name == b"host" and not is_host_known(given, hosts):
            return given
    return None


def is_host_known(given: str, hosts: Collection[str]) -> bool:
    """Return whether a Host header contains an address, a name without a dot, or a known name.

    >>> [is_host_known(host, {"a.example"}) for host in ("A.example:80", "[::1]:80", "10.0.0.1", "serve", "b.example")]
    [True, True, True, True, False]
    """
    try:
        host = urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return False
    host = host.removesuffix(".")
    if host in hosts or "." not in host:
        return True
    try:
        ip_address(host)
    except ValueError:
        return host.endswith(".localhost")
    return True


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address.

    Raises:
        OSError: the address is in use or not assigned to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=REQUESTS_MAX)
    # asyncio does not set TCP_NODELAY for accepted connections. Without it, the second write to a connection waits up
    # to 40 ms for a delayed ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def connections_max() -> int:
    """Return the limit on open connections, reduced if necessary to fit the process's limit on open files.

    Raises:
        OSError: the limit on open files allows no connections.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    if files <= FILES_OTHER:
        raise OSError(errno.EMFILE, f"expected a limit of more than {FILES_OTHER} open files; got {files}")
    return min(CONNECTIONS_MAX, files - FILES_OTHER)


class Server(uvicorn.Server):
    """Serves an application until `stop` returns True, then completes the open requests."""

    def __init__(
        self, app: ASGIApp, stop: Callable[[], bool], timeout_s: float, certificate: Path | None, key: Path | None
    ) -> None:
        """Load the certificate.

        Args:
            app: the application.
            stop: returns whether to stop; called every 0.1 s.
            timeout_s: timeout for a decision.
            certificate: in PEM; None means plain HTTP.
            key: private key for the certificate, in PEM.

        Raises:
            OSError: a file cannot be read, or does not contain a certificate or its key (`ssl.SSLError`).
        """
        config = uvicorn.Config(
            app, log_config=None, log_level="critical", access_log=False, server_header=False, proxy_headers=False,
            lifespan="on", http=Protocol, ws="none",
            limit_concurrency=connections_max(), timeout_graceful_shutdown=CLOSE_S + math.ceil(timeout_s),
            timeout_keep_alive=KEEP_ALIVE_S, ssl_certfile=certificate, ssl_keyfile=key,
        )  # fmt: skip
        config.load()
        super().__init__(config)
        self._stop = stop

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn."""
        return await super().on_tick(counter) or self._stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not install signal handlers, because the command line handles signals."""
        yield
