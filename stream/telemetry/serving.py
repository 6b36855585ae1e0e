"""The HTTP thread of a program: `/metrics`, `/healthz` and `/readyz`."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from threading import Thread

from stream.telemetry.exposition import exposition
from stream.telemetry.vital import Verdict, Vital

PATHS = ("/metrics", "/healthz", "/readyz")
_PLAIN = "text/plain; charset=utf-8"
_TIMEOUT_S = 10.0
"""How long a connection may say nothing: each has a thread."""


class VitalServer:
    """Answers what is asked of a program, in threads of its own, until it is closed."""

    def __init__(self, vital: Vital, host: str, port: int) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or not one of this machine.
        """
        self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        self._server.vital = vital
        self.port = self._server.server_port  # another one than was asked for, if that was 0
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a connection that is kept open does not keep the program
    address_family = AF_INET
    vital: Vital

    def server_bind(self) -> None:
        """Bind, and look up no name: that may take long, and the base class wants it for CGI alone."""
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: whoever asked has gone away."""


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        vital = self.server.vital
        if path == "/metrics":
            content_type, text = exposition(vital.samples(), self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, content_type, text)
        elif path == "/healthz":
            self._judge(vital.alive())
        elif path == "/readyz":
            self._judge(vital.ready())
        else:
            self._send(HTTPStatus.NOT_FOUND, _PLAIN, f"there are {', '.join(PATHS)}\n".encode())

    def _judge(self, verdict: Verdict) -> None:
        status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
        self._send(status, _PLAIN, f"{verdict.why}\n".encode())

    def _send(self, status: HTTPStatus, content_type: str, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is that of the base class
        """Say nothing: a scrape is no news."""
