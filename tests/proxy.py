"""A TCP proxy between Kafka clients and a broker that holds, repeats and drops requests, and closes connections.

The broker must advertise the proxy's address. Requests are selected by their API key, in the order of their arrival:

    fault = proxy.hold(END_TXN, cuts=True)  # hold the next EndTxn, and close its client's connection
    producer.commit()                       # the client connects again and repeats the request
    fault.release()                         # send the held request to the broker, on its old connection
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import HOST

INIT_PRODUCER_ID = 22
END_TXN = 26
_FLEXIBLE = {INIT_PRODUCER_ID: 2, END_TXN: 3}
"""The first version of a request whose headers and fields have tags."""

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")  # API key, API version, correlation id, length of the client id


class EndTxn(NamedTuple):
    """A request to end a transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    commits: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A request from a client to the broker."""

    api_key: int
    api_version: int
    body: bytes  # without the header

    @property
    def end_txn(self) -> EndTxn:
        """The fields of an EndTxn request."""
        assert self.api_key == END_TXN
        if self.api_version >= _FLEXIBLE[END_TXN]:  # the header ends with tags, and strings are compact
            length, body = self.body[1] - 1, self.body[2:]
        else:
            length, body = struct.unpack(">h", self.body[:2])[0], self.body[2:]
        return EndTxn(body[:length].decode(), *struct.unpack_from(">qh?", body, length))


class Action(Enum):
    """A fault's effect on its request."""

    HOLD = auto()  # not forwarded before `release`
    REPEAT = auto()  # forwarded, and again at `release`
    DROP = auto()  # never forwarded
    REJECT = auto()  # not forwarded, but answered with an error


@dataclass(eq=False)
class Fault:
    """A fault for the next request with an API key."""

    api_key: int
    action: Action
    cuts: bool = False  # whether to close the client's connection
    error: int = 0  # the error code of the response to a rejected request
    request: Request | None = None  # the request that met the fault
    send: Callable[[], None] = lambda: None  # sends the request to the broker
    responses: Callable[[], int] = lambda: 0  # the number of responses on the request's connection

    def wait(self) -> Request:
        """Wait until a request has met the fault, and return it."""
        wait_for(lambda: self.request is not None, f"a request with API key {self.api_key} reaches the proxy")
        assert self.request is not None
        return self.request

    def release(self) -> None:
        """Send the request to the broker on its own connection, and wait for the response."""
        self.wait()
        before = self.responses()
        self.send()
        wait_for(lambda: self.responses() > before, "the broker responds to the released request")


class Proxy:
    """Forwards connections to a broker. Each request meets the first fault that matches it."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"{HOST}:{self.port}"
        self.broker_port = 0  # to be set before the first connection
        self.requests: list[Request] = []  # all requests so far
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._flows = threading.Event()  # cleared while nothing is forwarded
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def hold(self, api_key: int, *, cuts: bool = False) -> Fault:
        """Hold the next such request until the fault is released. `cuts` closes the client's connection."""
        return self._arm(Fault(api_key, Action.HOLD, cuts))

    def repeat(self, api_key: int, *, cuts: bool = False) -> Fault:
        """Forward the next such request, and forward it again when the fault is released."""
        return self._arm(Fault(api_key, Action.REPEAT, cuts))

    def drop(self, api_key: int, *, cuts: bool = False) -> Fault:
        """Discard the next such request."""
        return self._arm(Fault(api_key, Action.DROP, cuts))

    def reject(self, api_key: int, error: int) -> Fault:
        """Respond to the next such request with an error code. Supports InitProducerId and EndTxn."""
        return self._arm(Fault(api_key, Action.REJECT, error=error))

    def ends(self, transactional_id: str) -> list[EndTxn]:
        """Return the EndTxn requests with a transactional id so far."""
        ends = [request.end_txn for request in self.requests if request.api_key == END_TXN]
        return [end for end in ends if end.transactional_id == transactional_id]

    def _arm(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def freeze(self) -> None:
        """Forward nothing in either direction until `thaw` is called. All connections stay open."""
        self._flows.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._flows.set()

    def cut(self) -> None:
        """Close all connections."""
        with self._lock:
            closing, self._sockets = self._sockets, []
        for each in closing:
            _close(each)

    def close(self) -> None:
        """Stop accepting connections, and close all of them."""
        _close(self._listener)
        self.thaw()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):  # raised when the listener is closed
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection((HOST, self.broker_port))
                except OSError:
                    _close(client)
                    continue
                for each in (client, broker):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets += [client, broker]
                connection = _Connection(client, broker)
                threading.Thread(target=self._forward_requests, args=(connection,), daemon=True).start()
                threading.Thread(target=self._forward_responses, args=(connection,), daemon=True).start()

    def _forward_requests(self, connection: "_Connection") -> None:
        client, broker, keeps_broker = connection.client, connection.broker, False
        with suppress(OSError):
            while data := _read_frame(client):
                self._flows.wait()
                request = _request_of(data)
                with self._lock:
                    self.requests.append(request)
                    fault = next((each for each in self._faults if each.api_key == request.api_key), None)
                    if fault is not None:
                        self._faults.remove(fault)
                if fault is None or fault.action is Action.REPEAT:
                    broker.sendall(data)
                if fault is not None:
                    keeps_broker |= fault.action in (Action.HOLD, Action.REPEAT)
                    if fault.action is Action.REJECT:
                        client.sendall(_rejection(data, fault.error))
                    if fault.cuts:
                        _close(client)
                    fault.send, fault.responses = partial(broker.sendall, data), lambda: connection.responses
                    fault.request = request
        _close(client)
        if not keeps_broker:  # otherwise, the fault's release still uses the connection
            _close(broker)

    def _forward_responses(self, connection: "_Connection") -> None:
        client, broker = connection.client, connection.broker
        with suppress(OSError):
            while data := _read_frame(broker):
                self._flows.wait()
                with suppress(OSError):  # raised if the client has gone
                    client.sendall(data)
                connection.responses += 1
        _close(client)
        _close(broker)


@dataclass(eq=False, slots=True)
class _Connection:
    """A client's connection and the corresponding one to the broker."""

    client: socket.socket
    broker: socket.socket
    responses: int = 0  # number of the broker's responses so far


def _request_of(frame: bytes) -> Request:
    api_key, api_version, _, client_length = _HEADER.unpack_from(frame, _SIZE.size)
    return Request(api_key, api_version, frame[_SIZE.size + _HEADER.size + max(0, client_length) :])


def _rejection(frame: bytes, error: int) -> bytes:
    """Return the response to a request, with an error code, and an invalid producer id and epoch if it has them."""
    api_key, api_version, correlation_id, _ = _HEADER.unpack_from(frame, _SIZE.size)
    tags = b"\0" if api_version >= _FLEXIBLE[api_key] else b""
    body = struct.pack(">ih", 0, error) + (struct.pack(">qh", -1, -1) if api_key == INIT_PRODUCER_ID else b"")
    response = struct.pack(">i", correlation_id) + tags + body + tags
    return _SIZE.pack(len(response)) + response


def _read_frame(source: socket.socket) -> bytes:
    """Read a request or response with its size. Return b"" at the end of the connection."""
    size = _read(source, _SIZE.size)
    return size and size + _read(source, *_SIZE.unpack(size))


def _read(source: socket.socket, size: int) -> bytes:
    """Read exactly this number of bytes.

    Raises:
        OSError: the connection ended within them.
    """
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            if not data:
                return b""
            raise OSError("the connection ended within a message")
        data += part
    return bytes(data)


def _close(each: socket.socket) -> None:
    with suppress(OSError):  # raised if the other end has gone
        each.shutdown(socket.SHUT_RDWR)
    each.close()
