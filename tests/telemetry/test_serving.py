"""The HTTP server limits the duration of requests, the number of connections and the accepted host names."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from itertools import count
from select import select

import pytest

from stream.telemetry.heartbeat import Heartbeat
from stream.telemetry.serving import CONNECTIONS_MAX, EVENT_S, HealthServer, Page, SharedEvent, Site

SITE = Site({"/": Page("text/html", b"<!doctype html>")}, lambda: b"{}", ("Onebit.example", "fd00::1"))
WAIT_S = 10.0


@contextmanager
def served(request_s: float = WAIT_S) -> Iterator[int]:
    """Run a server on 127.0.0.1. Yields the server's port."""
    server = HealthServer(Heartbeat("monitor", "1.2.3", lambda: 0), "127.0.0.1", 0, SITE, request_s)
    with closing(server):
        yield server.port


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WAIT_S)


@contextmanager
def answer(port: int, method: str, path: str, host: str = "localhost") -> Iterator[HTTPResponse]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as connection:
        connection.request(method, path, headers={"Host": host})
        yield connection.getresponse()


def is_cut_off(client: socket.socket, pause_s: float, bytes_max: int) -> bool:
    """Return whether the server disconnects a client that sends one byte after each pause."""
    client.sendall(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(bytes_max):
        if select([client], [], [], pause_s)[0]:
            return True
        client.sendall(b"x")
    return False


def test_slow_client_is_disconnected() -> None:
    with served(request_s=0.3) as port, connected(port) as client:
        assert is_cut_off(client, 0.02, bytes_max=500)


def test_connection_over_the_limit_is_closed_immediately() -> None:
    with served() as port, ExitStack() as clients:
        for _ in range(CONNECTIONS_MAX):
            clients.enter_context(connected(port)).sendall(b"GET ")
        assert clients.enter_context(connected(port)).recv(1) == b""


def test_closed_connection_does_not_count_toward_the_limit() -> None:
    with served() as port:
        for _ in range(CONNECTIONS_MAX + 1):
            with connected(port) as client:
                client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert client.makefile("rb").read().startswith(b"HTTP/1.1 200 ")


HOSTS = {
    "localhost": 200,
    "LOCALHOST:9470": 200,
    "127.0.0.1:9470": 200,
    "[::1]:9470": 200,
    "onebit.example:8000": 200,
    "[fd00::1]": 200,
    "attacker.example": 421,
    "localhost.attacker.example:9470": 421,
    "10.0.0.1": 421,
    "[": 421,
    "": 421,
}


@pytest.mark.parametrize("path", ["/", "/events"])
def test_pages_and_events_require_a_known_host_name(path: str) -> None:
    with served() as port:
        statuses = {}
        for host in HOSTS:
            with answer(port, "HEAD", path, host) as response:
                statuses[host] = response.status
    assert statuses == HOSTS


def test_metrics_can_be_requested_with_any_host_name() -> None:
    with served() as port, answer(port, "GET", "/metrics", "learner.example") as response:
        assert response.status == 200


@pytest.mark.parametrize("path", ["/", "/healthz"])
def test_response_to_head_has_the_headers_of_get(path: str) -> None:
    with served() as port:
        with answer(port, "GET", path) as got:
            length = len(got.read())
        with answer(port, "HEAD", path) as head:
            assert (head.status, head.headers["Content-Length"], head.read()) == (200, str(length), b"")


def test_head_request_for_events_completes() -> None:
    with served() as port, answer(port, "HEAD", "/events") as response:
        assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")


def test_clients_share_an_event_until_it_expires() -> None:
    numbers, now_s = count(1), [0.0]
    event = SharedEvent(lambda: b"%d" % next(numbers), lambda: now_s[0])
    assert [event.current(), event.current()] == [b"1", b"1"]
    now_s[0] += EVENT_S
    assert [event.current(), event.current()] == [b"2", b"2"]
