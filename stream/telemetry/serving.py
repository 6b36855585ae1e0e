"""A program's HTTP server: `/metrics`, `/healthz`, `/readyz`, and static pages."""

import sys
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, RawIOBase
from socket import AF_INET, AF_INET6, socket
from socketserver import TCPServer
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from stream.telemetry.exposition import exposition
from stream.telemetry.heartbeat import Heartbeat, Heartbeats, Verdict

PATHS = ("/metrics", "/healthz", "/readyz")
_PLAIN = "text/plain; charset=utf-8"

REQUEST_S = 10.0
"""Time limit for receiving a request, counted from the end of the previous one, and for writing a response."""

CONNECTIONS_MAX = 64
"""Limit on open connections. Each connection has a thread. Connections above the limit are closed immediately."""

LOCAL_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))

EVENT_S = 0.3
"""Interval between server-sent events."""

_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"


class Page(NamedTuple):
    """A static file to serve."""

    content_type: str
    content: bytes


class Site(NamedTuple):
    """A program's pages."""

    pages: Mapping[str, Page] = {}  # files by URL path
    event: Callable[[], bytes] | None = None  # returns the data for the next server-sent event on /events
    allow_hosts: Collection[str] = ()  # accepted Host names in addition to localhost and the server's address


class SharedEvent:
    """A server-sent event shared by all clients. An event is created at most once every EVENT_S seconds."""

    def __init__(self, make: Callable[[], bytes], now_s: Callable[[], float] = monotonic) -> None:
        self._make = make
        self._now_s = now_s
        self._lock = Lock()
        self._made_s = -EVENT_S
        self._event = b""

    def current(self) -> bytes:
        """Return the event. If it is outdated, create a new one first."""
        with self._lock:
            if (now_s := self._now_s()) - self._made_s >= EVENT_S:
                self._event, self._made_s = self._make(), now_s
            return self._event


class HealthServer:
    """Serves requests in its own threads until it is closed."""

    def __init__(
        self,
        heartbeat: Heartbeat | Heartbeats,
        host: str,
        port: int,
        site: Site | None = None,
        request_s: float = REQUEST_S,
    ) -> None:
        """Start listening.

        Raises:
            OSError: the address is in use or not assigned to this machine.
        """
        self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        self._server.heartbeat, self._server.site, self._server.closed = heartbeat, site or Site(), Event()
        event = self._server.site.event
        self._server.event = None if event is None else SharedEvent(event)
        self._server.request_s, self._server.open = request_s, set()
        self._server.hosts = {name.lower() for name in (*LOCAL_HOSTS, host, *self._server.site.allow_hosts)}
        self.port = self._server.server_port  # the assigned port if port 0 was requested
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end all event streams."""
        self._server.closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # threads with open connections must not delay the program's exit
    address_family = AF_INET
    request_queue_size = CONNECTIONS_MAX  # with a shorter queue, simultaneous connections are delayed by a second
    heartbeat: Heartbeat | Heartbeats
    site: Site
    event: SharedEvent | None
    closed: Event
    request_s: float
    hosts: Collection[str]
    open: set[Any]  # open connections

    def server_bind(self) -> None:
        """Bind the socket without looking up the host name. The lookup may be slow, and only CGI needs it."""
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        if len(self.open) >= CONNECTIONS_MAX:
            return False
        self.open.add(request)
        return True

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors from clients that disconnected."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = AF_INET6


class _RequestBytes(RawIOBase):
    """Reads from a connection, and enforces a deadline even if bytes arrive slowly."""

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self.deadline_s = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self.deadline_s - monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._bytes = _RequestBytes(self.connection)
        self.rfile = BufferedReader(self._bytes)

    def handle_one_request(self) -> None:
        self._bytes.deadline_s = monotonic() + self.server.request_s
        super().handle_one_request()

    def do_GET(self) -> None:
        """Handle a GET request."""
        self.connection.settimeout(self.server.request_s)
        path = self.path.partition("?")[0]
        heartbeat, site = self.server.heartbeat, self.server.site
        event = self.server.event if path == "/events" else None
        if (path in site.pages or event is not None) and not self._is_host_known():
            refusal = b"this host name is not known; start the monitor with --allow-host NAME\n"
            self._send(HTTPStatus.MISDIRECTED_REQUEST, _PLAIN, refusal)
        elif path in site.pages:
            self._send(HTTPStatus.OK, *site.pages[path])
        elif event is not None:
            self._send_events(event)
        elif path == "/metrics":
            content_type, text = exposition(heartbeat.samples(), self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, content_type, text)
        elif path == "/healthz":
            self._judge(heartbeat.alive())
        elif path == "/readyz":
            self._judge(heartbeat.ready())
        else:
            self._send(HTTPStatus.NOT_FOUND, _PLAIN, f"unknown path; available: {', '.join(PATHS)}\n".encode())

    do_HEAD = do_GET  # noqa: N815 - name required by the base class

    def _is_host_known(self) -> bool:
        """Return whether the Host header names this server. This check prevents DNS rebinding."""
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in self.server.hosts
        except ValueError:
            return False

    def _send_events(self, event: SharedEvent) -> None:
        """Send events until the client or the server closes the connection."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        while self.command == "GET" and not self.server.closed.is_set():
            self.wfile.write(b"data: %b\n\n" % event.current())
            self.server.closed.wait(EVENT_S)

    def _judge(self, verdict: Verdict) -> None:
        status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
        self._send(status, _PLAIN, f"{verdict.why}\n".encode())

    def _send(self, status: HTTPStatus, content_type: str, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name required by the base class
        """Log nothing, because scrapes are frequent."""
