"""A connection's limits: pipelined requests, unread responses, and offers to upgrade."""

import json
import socket
import tracemalloc
from contextlib import closing

import pytest

from onebit.testing.processes import wait_for
from producers.gateway import protocol
from producers.gateway.server import Limits
from tests.serving.gateway import HOST, WAIT_S, GatewayClient, a_pipeline, served

SHORT = b"GET /v1/decisions/ HTTP/1.1\r\n\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


def connected(gateway: GatewayClient) -> socket.socket:
    return socket.create_connection((HOST, gateway.port), WAIT_S)


def post(path: bytes, body: bytes, headers: bytes = b"", *, chunked: bool = False) -> list[bytes]:
    """Return a request's head and body."""
    size = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n%b%b\r\n\r\n" % (path, headers, size)
    return [head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body]


def context(event_id: str) -> bytes:
    return json.dumps({"id": event_id, "x": [1.0, 0.5]}).encode()


def responses(client: socket.socket, count: int) -> list[int]:
    """Receive a number of responses, and return their statuses."""
    data = b""
    while data.count(b"HTTP/1.1 ") < count or not data.endswith(b"}"):
        part = client.recv(100_000)
        assert part, data
        data += part
    return [int(one[:3]) for one in data.split(b"HTTP/1.1 ")[1:]]


def test_pipelined_requests_get_their_responses_in_order() -> None:
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        ids = [f"visit-{number}" for number in range(50)]
        bodies = b"".join(b"".join(post(b"/v1/decide", context(event_id))) for event_id in ids)
        client.sendall(bodies)
        data = b""
        while data.count(b'"id":') < len(ids):
            data += client.recv(100_000)
    found = [json.loads(part.split(b"\r\n\r\n")[1])["id"] for part in data.split(b"HTTP/1.1 ")[1:]]
    assert found == ids


def test_memory_for_pipelined_requests_is_bounded() -> None:
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        gateway.broker.responds.clear()
        client.sendall(b"".join(post(b"/v1/decide", context("visit-1"))))  # waits until the broker responds
        wait_for(lambda: gateway.broker.flushes == 1, "the context is written", WAIT_S)
        client.settimeout(0.5)
        requests = SHORT * 1_000_000
        tracemalloc.start()
        try:
            with pytest.raises(TimeoutError):  # the gateway reads no more
                client.sendall(requests)
            assert gateway.ask("GET", "/healthz").status == 200
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gateway.broker.responds.set()
    assert peak_bytes < 5_000_000


def test_other_clients_are_served_while_one_sends_many_short_requests() -> None:
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        client.sendall(SHORT * 5_000)
        assert gateway.decide("visit-1").status == 200
        got = responses(client, 5_000)
    assert got == [404] * 5_000


def test_client_that_reads_no_response_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_S", 0.2)
    echoed = b"GET /v1/decisions/" + b"x" * 50_000 + b" HTTP/1.1\r\n\r\n"  # the response contains the id
    with served(a_pipeline(), limits=Limits(requests_max=1)) as gateway:
        with closing(connected(gateway)) as client, pytest.raises(ConnectionError):
            client.sendall(echoed * 1_000)
        assert gateway.decide("visit-1").status == 200


def test_closed_connection_with_unread_responses_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_S", 0.2)
    monkeypatch.setattr(protocol, "HEAD_BYTES_MAX", 1_000_000)
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        client.sendall(SHORT * 3_000 + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        ended = b""
        while part := client.recv(1_000_000):
            ended += part
    assert ended.count(b"HTTP/1.1 404") == 3_001


@pytest.mark.parametrize("offered", [b"h2c", b"websocket", b"TLS/1.0"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 1_000])
def test_body_of_a_request_that_offers_an_upgrade_is_read(offered: bytes, chunked: bool, parts: int) -> None:
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        for number in range(2):  # the connection stays open
            head, body = post(b"/v1/decide", context(f"visit-{number}"), OFFER % offered, chunked=chunked)
            data = head + body
            cuts = {1: [data], 2: [head, body]}.get(parts, [data[i : i + 1] for i in range(len(data))])
            for part in cuts:
                client.sendall(part)
            assert responses(client, 1) == [200]


def test_pipelined_requests_that_offer_an_upgrade_are_answered() -> None:
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        client.sendall(b"".join(b"".join(post(b"/v1/decide", context(one), OFFER % b"h2c")) for one in "abc"))
        assert responses(client, 3) == [200] * 3


def test_connect_requests_are_rejected() -> None:
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        client.sendall(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.recv(1_000).startswith(b"HTTP/1.1 400 ")


def test_pipelined_request_does_not_end_a_request_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    with served(a_pipeline()) as gateway, closing(connected(gateway)) as client:
        gateway.broker.responds.clear()
        client.sendall(b"".join(post(b"/v1/decide", context("visit-1"))) + b"GET /heal")
        client.settimeout(0.4)
        with pytest.raises(TimeoutError):
            client.recv(1)
        gateway.broker.responds.set()
        client.settimeout(WAIT_S)
        assert responses(client, 1) == [200]
