"""The image's health check, docker/ready.sh."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker/ready.sh"


@contextmanager
def program(status: int) -> Iterator[int]:
    """Serve /readyz with a status; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def exit_code(**variables: str) -> int:
    return subprocess.run(
        ["/usr/bin/env", "bash", str(SCRIPT)], env=variables, check=False, stderr=subprocess.DEVNULL
    ).returncode


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1)])
@pytest.mark.parametrize("variable", ["ONEBIT_METRICS_PORT", "ONEBIT_PAGE_PORT", "ONEBIT_SERVE_PORT"])
def test_program_is_healthy_while_it_is_ready(status: int, expected: int, variable: str) -> None:
    with program(status) as port:
        assert exit_code(**{variable: str(port)}) == expected


def test_program_whose_port_is_closed_is_unhealthy() -> None:
    with program(200) as port:
        pass
    assert exit_code(ONEBIT_METRICS_PORT=str(port)) == 1


def test_program_without_a_port_is_healthy() -> None:
    assert exit_code() == 0
    assert exit_code(ONEBIT_METRICS_PORT="0") == 0


def test_gateway_with_tls_is_healthy_while_its_port_is_open() -> None:
    with program(503) as port:
        assert exit_code(ONEBIT_SERVE_PORT=str(port), ONEBIT_SERVE_CERTIFICATE="certificate.pem") == 0
