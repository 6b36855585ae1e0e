"""The HTTP thread of a program: `/metrics`, `/healthz`, `/readyz`, and the pages that it may have."""

import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from threading import Event, Thread
from typing import Any, NamedTuple

from stream.telemetry.exposition import exposition
from stream.telemetry.vital import Verdict, Vital

PATHS = ("/metrics", "/healthz", "/readyz")
_PLAIN = "text/plain; charset=utf-8"
_TIMEOUT_S = 10.0
"""How long a connection may say nothing: each has a thread."""


EVENT_S = 0.3
"""From one server-sent event to the next."""

_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"


class Page(NamedTuple):
    """A file as browsers get it."""

    content_type: str
    content: bytes


class Site(NamedTuple):
    """What a program has for people to look at."""

    pages: Mapping[str, Page] = {}  # by path
    event: Callable[[], bytes] | None = None  # makes the data of the next server-sent event of /events


class VitalServer:
    """Answers what is asked of a program, in threads of its own, until it is closed."""

    def __init__(self, vital: Vital, host: str, port: int, site: Site | None = None) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or not one of this machine.
        """
        self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        self._server.vital, self._server.site, self._server.closed = vital, site or Site(), Event()
        self.port = self._server.server_port  # another one than was asked for, if that was 0
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; whoever still listens to events hears no more."""
        self._server.closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a connection that is kept open does not keep the program
    address_family = AF_INET
    vital: Vital
    site: Site
    closed: Event

    def server_bind(self) -> None:
        """Bind, and look up no name: that may take long, and the base class wants it for CGI alone."""
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when whoever asked has gone away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        vital, site = self.server.vital, self.server.site
        if path in site.pages:
            self._send(HTTPStatus.OK, *site.pages[path])
        elif path == "/events" and site.event is not None:
            self._tell(site.event)
        elif path == "/metrics":
            content_type, text = exposition(vital.samples(), self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, content_type, text)
        elif path == "/healthz":
            self._judge(vital.alive())
        elif path == "/readyz":
            self._judge(vital.ready())
        else:
            self._send(HTTPStatus.NOT_FOUND, _PLAIN, f"there are {', '.join(PATHS)}\n".encode())

    def _tell(self, event: Callable[[], bytes]) -> None:
        """Tell what happens, as long as somebody listens."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        while not self.server.closed.is_set():
            self.wfile.write(b"data: %b\n\n" % event())
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
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is that of the base class
        """Say nothing: a scrape is no news."""
