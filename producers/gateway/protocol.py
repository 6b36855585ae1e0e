"""uvicorn's HTTP protocol with limits on the time, size and number of a connection's requests and responses."""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 65_536
"""Limit on the size of an incomplete request head, checked after each PART_BYTES."""

HEAD_S = 10.0
"""Time limit for receiving a request head, and for receiving the rest of a body after the response has been sent."""

WRITE_S = 10.0
"""Time limit for a client to read responses: those beyond the transport's limit for unsent data (64 KiB), and the rest
when the connection is closed. Without this limit, a client that reads nothing would occupy a request's slot forever."""

KEEP_ALIVE_S = 75
"""Time to keep an idle connection open. Load balancers reuse connections, and usually close them sooner, after 60 s."""

PART_BYTES = 2_048
"""Number of bytes to parse at once. A pipelined request needs 100 times as much memory as its shortest head, so only
the requests in one part are parsed before the responses to the previous ones."""


class _JoinedWrites:
    """A transport that joins the writes of one iteration of the event loop, such as a response's head and body.

    It ignores writes after the connection has been lost: uvicorn notifies only the last of several pipelined requests.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """See asyncio."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Close the connection after the client has read the responses, or after WRITE_S; see asyncio."""
        self._flush()
        if not self._transport.is_closing() and self._transport.get_write_buffer_size() > 0:
            self._loop.call_later(WRITE_S, self._transport.abort)
        self._transport.close()

    def _flush(self) -> None:
        if self._parts and not self._transport.is_closing():
            self._transport.write(b"".join(self._parts))
        self._parts.clear()


class _Flow(FlowControl):
    """Flow control that does not resume reading while received data waits to be parsed."""

    is_held = False

    def resume_reading(self) -> None:
        """See uvicorn."""
        if not self.is_held:
            super().resume_reading()

    def hold(self, *, is_held: bool) -> None:
        """Pause reading, or allow uvicorn to resume it."""
        if is_held == self.is_held:
            return
        self.is_held = is_held
        if is_held:
            self.pause_reading()
        else:
            self.resume_reading()


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits, one write per response, and support for HTTP/1.1 clients that offer HTTP/2.

    uvicorn limits neither a head's size, nor the number of pipelined requests, nor the time for writing. Its only
    timeout starts after a response and ends with the next byte. It loses the body of a request that offers an upgrade.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self.transport = _JoinedWrites(transport, self.loop)  # type: ignore[assignment]
        self.flow = self._flow = _Flow(transport)
        self._held = bytearray()  # received data that has not been parsed
        self._is_head, self._head_bytes, self._offers_upgrade = True, 0, False
        self._timer = self.loop.call_later(HEAD_S, self._close)
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._held.clear()
        self.resume_writing()
        super().connection_lost(exc)
        self._timer.cancel()

    def pause_writing(self) -> None:
        """Limit the time until the client has read enough; see asyncio."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    @property
    def _is_busy(self) -> bool:
        """Whether a complete request has not been answered."""
        return self._is_head and self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._held += data
        self._parse_held()

    def _parse_held(self) -> None:
        """Parse received data until a request is complete. The rest waits for the response."""
        while self._held and not self._is_busy and not self.transport.is_closing():
            part = bytes(self._held[:PART_BYTES])
            del self._held[:PART_BYTES]
            self._parse(part)
        self._flow.hold(is_held=len(self._held) > 0)

    def _parse(self, data: bytes) -> None:
        """Parse data, and close the connection if it is not HTTP or if the request's head is too large."""
        self._unset_keepalive_if_required()
        is_start = self._head_bytes == 0
        if self._is_head:
            self._head_bytes += len(data)
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response(f"head: expected at most {HEAD_BYTES_MAX} bytes")
        elif self._head_bytes > 0 and is_start:
            self._close_after(HEAD_S)

    def _feed(self, data: bytes) -> bytes:
        """Parse data. If a request offers an upgrade, return its head without the offer, and the rest of the data.

        Java's HttpClient offers an upgrade to HTTP/2 with every request. A server may ignore the offer (RFC 9110,
        section 7.8), but the parser then treats the body as data of the other protocol.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method = self.parser.get_method()
            if method == b"CONNECT":
                raise httptools.HttpParserError("CONNECT") from upgrade
            lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
            lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
            return b"\r\n".join((*lines, b"", b"")) + data[upgrade.args[0] :]
        return b""

    def on_headers_complete(self) -> None:
        """Stop the timer for the head; `Guard` limits the time until the body is complete. See httptools."""
        self._offers_upgrade = self.parser.should_upgrade()
        if not self._offers_upgrade:
            self._timer.cancel()
            self._is_head, self._head_bytes = False, 0
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._offers_upgrade:
            return
        super().on_message_complete()
        self._is_head = True
        if self.cycle.response_complete:  # receiving this body cancelled uvicorn's timeout
            self._close_after(KEEP_ALIVE_S)

    def on_response_complete(self) -> None:
        """Parse the next request, and limit the time for receiving its head or an ignored body; see uvicorn."""
        super().on_response_complete()
        if self.cycle.response_complete:
            if not self._is_head or self._head_bytes > 0:
                self._close_after(HEAD_S)
            if self._held:  # in a later iteration, so that other connections get a turn
                self.loop.call_soon(self._parse_held)

    def _close_after(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        """Close the connection, unless a request waits for its response; its completion sets the timer again."""
        if not self._is_busy:
            self.timeout_keep_alive_handler()
