"""The transport's limits: how long, how large and how many, before any route is looked up.

uvicorn's httptools protocol with deadlines for headers, bodies and stalled writes, caps on
headers, chunks and connections, and OpenAI's error object for HTTP that cannot be parsed.

A client that closes its sending side is taken to have gone (a FIN cannot be told from a close).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gatewayd.errors import (
    GatewayError,
    HeadersTooLarge,
    InvalidRequest,
    PayloadTooLarge,
    RequestTimeout,
    TooManyConnections,
)
from gatewayd.http import patience
from gatewayd.http.departure import EXTENSION, ToldDeparture
from gatewayd.http.edge_limits import EdgeLimits, set_options
from gatewayd.http.refusal import REFUSED, Answered, refusal
from gatewayd.http.upgrade import without_upgrade

# Where a connection stands. Between requests only uvicorn's own idle timer runs.
_IDLE, _HEADERS, _BODY = range(3)


class EdgeProtocol(HttpToolsProtocol):
    """One connection."""

    limits: EdgeLimits
    peers: Counter[str]
    answered: Answered

    _phase = _HEADERS
    _armed_phase = _IDLE
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _refusal: GatewayError | None = None
    _held_refusal: GatewayError | None = None
    _header_bytes = 0
    _num_chunks = 0
    _peer = ""
    _answering: RequestResponseCycle | None = None
    _is_deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection or turn it away."""
        super().connection_made(transport)
        self._departure = ToldDeparture()
        self._extensions: dict[str, Any] = {
            EXTENSION: self._departure,
            patience.EXTENSION: self._extend,
        }
        transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        set_options(transport, 4 * self.limits.write_buffer_bytes)
        self._peer = self.client[0] if self.client else ""
        self.peers[self._peer] += 1
        if (
            len(self.connections) > self.limits.connections
            or self.peers[self._peer] > self.limits.peer_connections
        ):
            self._refuse(
                TooManyConnections("too many connections; close some or try later", retry_after=1)
            )
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._disarm()
        if self._stall is not None:
            self._stall.cancel()
        self.peers[self._peer] -= 1
        if not self.peers[self._peer]:
            del self.peers[self._peer]
        super().connection_lost(exc)
        self._departure.tell()

    def data_received(self, data: bytes) -> None:
        """Feed the parser and watch the time of what is still incomplete."""
        if self._is_deaf or self.transport.is_closing():
            return
        was_headers = self._phase != _BODY
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        self._feed(data)
        self._keep_idle(idle)
        if self.transport.is_closing():
            return
        if was_headers and self._phase == _HEADERS:
            # The parser tells a header only when it is whole; count what it holds.
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header_bytes:
                self._refuse(self._headers_too_large())
                return
        if self._phase != self._armed_phase:
            self._disarm()
            self._arm()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("this is not HTTP/1.1")

    def _go_on(self, rest: bytes) -> None:
        """Read a request that offers another protocol as if it did not."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(InvalidRequest("this is no proxy: CONNECT", code="invalid_http"))
            return
        head = without_upgrade(method, self.url, self.parser.get_http_version(), self.headers)
        self.parser = httptools.HttpRequestParser(self)
        # As uvicorn's own: a request after one with ``connection: close`` is no error.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(head + rest)

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._phase = _HEADERS
        self._header_bytes = 0
        self._num_chunks = 0
        self._seen_header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count the path."""
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; what comes after a body (a trailer) is none."""
        if self._phase != _BODY:
            super().on_header(name, value)
        self._count_header(len(name) + len(value) + 4)
        if len(self.headers) > self.limits.num_headers:
            self._stop_parsing(self._headers_too_large())

    def on_headers_complete(self) -> None:
        """The request starts; its body may follow."""
        if self.parser.should_upgrade():
            return  # the parser stops behind the headers, and we go on without it
        super().on_headers_complete()
        self._phase = _BODY
        if not self.pipeline:
            self._answering = self.cycle  # else it waits for its turn

    def on_chunk_header(self) -> None:
        """Count a chunk: tiny ones cost far more than their bytes."""
        self._num_chunks += 1
        if self._num_chunks > self.limits.num_chunks:
            self._stop_parsing(
                PayloadTooLarge(f"the body has more than {self.limits.num_chunks} chunks")
            )

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.parser.should_upgrade():
            return
        self._phase = _IDLE
        super().on_message_complete()
        if not self.pipeline:
            # uvicorn stops reading in a large body; who does not read sees nobody leave.
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The next request has its turn."""
        is_next = bool(self.pipeline)
        if is_next:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._held_refusal is not None and not is_next:
            self._refuse(self._held_refusal)
        elif self._deadline is None:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, or what the parser was stopped for."""
        self._refuse(self._refusal or InvalidRequest(msg, code="invalid_http"))

    # Slow readers

    def pause_writing(self) -> None:
        """The client leaves our bytes unread."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _count_header(self, num_bytes: int) -> None:
        self._seen_header_bytes += num_bytes
        if self._seen_header_bytes > self.limits.header_bytes:
            self._stop_parsing(self._headers_too_large())

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"the headers are over {self.limits.header_bytes} bytes or "
            f"{self.limits.num_headers} in number"
        )

    def _stop_parsing(self, refusal: GatewayError) -> None:
        self._refusal = refusal
        raise ValueError(refusal.message)  # the parser turns it into its own error

    def _keep_idle(self, timer: asyncio.TimerHandle | None) -> None:
        """Time between requests goes on until one begins, whatever else has come."""
        if self._phase == _IDLE and (self.cycle is None or self.cycle.response_complete):
            self.timeout_keep_alive_task = timer or self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif timer is not None:
            timer.cancel()

    def _arm(self) -> None:
        self._armed_phase = self._phase
        if self.pipeline:
            return  # nothing is read until its turn comes
        if self._phase == _HEADERS:
            self._deadline = self.loop.call_later(self.limits.header_seconds, self._expire)
        elif self._phase == _BODY:
            self._deadline = self.loop.call_later(self.limits.body_seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _extend(self) -> None:
        """A body has its time anew, and its chunks."""
        self._num_chunks = 0
        if self._phase == _BODY and self._deadline is not None:
            self._disarm()
            self._arm()

    def _expire(self) -> None:
        what = "headers" if self._phase == _HEADERS else "body"
        self._refuse(RequestTimeout(f"the request's {what} did not arrive in time"))

    def _refuse(self, error: GatewayError) -> None:
        """Answer what is arriving with an error, in its turn, and close."""
        self._disarm()
        cycle = self._answering
        is_its_own = self._phase == _BODY and cycle is self.cycle
        if cycle is None or cycle.response_complete:
            if not is_its_own:  # else its answer is out, and only its body is too late
                self._write_refusal(error)
                self.answered("other", "other", error.status)
        elif is_its_own:
            if not cycle.response_started:
                self._write_refusal(error)
                # Its app counts it, with its endpoint, and must not answer as well.
                cycle.scope[REFUSED] = error.status  # type: ignore[literal-required]
                cycle.disconnected = True
                cycle.message_event.set()
        else:
            # Earlier requests have the word; after their answers this one is the last.
            if self._phase == _BODY:
                self.pipeline.popleft()
            self._held_refusal = error
            self._is_deaf = True
            self.flow.resume_reading()
            return
        self.transport.close()

    def _write_refusal(self, error: GatewayError) -> None:
        # Between requests, the headers are those of the last one.
        headers = self.headers if self._phase != _IDLE and self.headers else []
        self.transport.write(refusal(error, headers))


def edge_protocol(limits: EdgeLimits, answered: Answered) -> type[EdgeProtocol]:
    """The protocol class of one server: its limits, its count of peers, who counts its answers."""
    bound = {"limits": limits, "peers": Counter(), "answered": staticmethod(answered)}
    return type("BoundEdgeProtocol", (EdgeProtocol,), bound)
