"""Connection handling with limits on time, sizes and numbers, before any route is looked up.

uvicorn's httptools protocol with deadlines for headers, bodies and stalled writes, limits on
headers, chunks and connections, and OpenAI's error object for malformed HTTP.

Requests may be pipelined, but none is parsed before the previous one is answered: until then its
bytes are buffered up to a limit, beyond which reading is paused. At most one request of a
connection starts per iteration of the event loop.

A client that closes its sending side counts as disconnected, as a FIN does not differ from a close.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from gatewayd.errors import (
    GatewayError,
    RequestTimeout,
    TooManyConnections,
)
from gatewayd.http.server import body_deadline, body_writer
from gatewayd.http.server.client_address import subscriber
from gatewayd.http.server.disconnect import EXTENSION, EdgeDisconnectSignal
from gatewayd.http.server.edge_closing import EdgeTransport
from gatewayd.http.server.edge_errors import REFUSED, Answered, refusal
from gatewayd.http.server.edge_limits import EdgeLimits, set_options, set_send_buffer
from gatewayd.http.server.edge_parsing import BODY, HEADERS, IDLE, ParsingProtocol
from gatewayd.http.server.edge_reading import BODY_READ_BYTES, ConnectionReader, ReadFlow
from gatewayd.http.server.edge_scheduler import ConnectionScheduler
from gatewayd.http.server.receive_buffer import ReceiveBuffer
from gatewayd.tenants.principal import IN_SCOPE, Principal

_PIECES = 64
_PIECES_BYTES = 4096
"""Maximum pieces and bytes of one connection parsed per iteration of the event loop, excluding data
of bodies or chunks with known length, which is cheap: 64 one-byte chunks take 0.5 ms."""
_PIECES_AFTER_DATA = 8
"""Pieces parsed without queueing when they follow body data: as cheap as reading them."""
_MIN_EXTENSION = 0.1
"""Minimum extension, in seconds, of the deadline of a queued connection."""


class EdgeProtocol(ParsingProtocol):
    """HTTP/1.1 protocol of one connection."""

    peers: Counter[str]
    scheduler: ConnectionScheduler
    answered: Answered
    read_buffer: memoryview

    flow: ReadFlow
    transport: EdgeTransport  # type: ignore[assignment]

    _armed_phase = IDLE
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _is_queued = False
    _enqueued = _waited = 0.0
    _peer = ""
    _is_authenticated = False
    _has_received = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it if there are too many."""
        super().connection_made(transport)
        # uvicorn has set its own transport and flow control.
        self.transport = EdgeTransport(transport, self.limits.stall_seconds, self._end_input)
        self.flow = ReadFlow(self.transport)  # type: ignore[arg-type]
        self._receive_buffer = ReceiveBuffer()
        transport.set_protocol(ConnectionReader(self, self.read_buffer))
        self._disconnect = EdgeDisconnectSignal()
        self._extensions = {
            EXTENSION: self._disconnect,
            body_deadline.EXTENSION: self._extend,
            body_writer.EXTENSION: self,
        }
        transport.set_write_buffer_limits(high=self.limits.unauthenticated_buffer_bytes)
        set_options(transport, 2 * self.limits.unauthenticated_buffer_bytes)
        self._peer = subscriber(self.client[0]) if self.client else ""
        self.peers[self._peer] += 1
        # This connection is counted already.
        if (
            len(self.connections) > self.limits.connections
            or self.peers[self._peer] > self.limits.peer_connections
        ):
            self._refuse(
                TooManyConnections("too many connections; close some or try later", retry_after=1),
                at_once=True,  # lingering would keep one more connection open
            )
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all resources of the connection."""
        self._disarm()
        self._receive_buffer.clear()
        self.transport.on_connection_lost()
        if self._stall is not None:
            self._stall.cancel()
        self.peers[self._peer] -= 1
        if not self.peers[self._peer]:
            del self.peers[self._peer]
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does not if the client has reset
        # Break reference cycles; otherwise the connection and its last body would stay in memory
        # until a full garbage collection.
        del self._extensions[body_deadline.EXTENSION], self._extensions[body_writer.EXTENSION]
        self._disconnect.notify()

    def read_size(self) -> int:
        """Return the bytes to read next: the rest of a sized body, plus the free buffer."""
        if self.transport.is_over:
            return BODY_READ_BYTES  # discarded: fewer reads are better
        room = self.limits.unparsed_bytes - self._receive_buffer.size
        if self._phase == BODY:
            room += self._body_left
        # At least one byte: asyncio does not accept an empty buffer.
        return room if 0 < room < BODY_READ_BYTES else max(1, min(room, BODY_READ_BYTES))

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, or buffer them until the connection may parse."""
        if self.transport.is_over:
            self.transport.discard(len(data))
            return
        self._has_received = True
        self._receive_buffer.add(data)
        # Bytes of a later request or piece wait.
        if self._is_queued or self._is_answering:
            self._limit_reading()
        elif self._phase == BODY and not self._body_left:
            # Chunk lines and trailers cost far more than data, so they go through the scheduler.
            self._enqueue()
            self._limit_reading()
        else:
            self._parse(_PIECES if self._phase != BODY else _PIECES_AFTER_DATA)

    def _end_input(self) -> bool:
        """Discard buffered input; return whether more input may be in flight or in the kernel."""
        is_fed = self._has_received and (self._phase != IDLE or self._receive_buffer.size > 0)
        self._receive_buffer.clear()
        return is_fed

    def _parse(self, pieces: int = _PIECES) -> None:
        """Feed the parser, at most to the end of a request, and set the phase's deadline."""
        # Taken over, so that the timer goes on unless a request has begun.
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        buffer, left = self._receive_buffer, _PIECES_BYTES
        while self._body_left or (pieces > 0 and left > 0):
            was_body = self._phase == BODY
            if cost := self._parse_piece(left):
                left -= cost
                pieces -= 1
            if self.transport.is_over:
                buffer.clear()
                break
            if not buffer.size or self._is_answering:
                break
            if was_body and self._phase == IDLE:
                break  # answered before it was complete; the next request is queued separately
        self._update_idle_timer(idle)
        if self.transport.is_over:
            return
        # Each phase has its own deadline, which starts with it.
        if self._phase != self._armed_phase:
            self._disarm()
            self._arm()
        if buffer.size:
            self._enqueue()
            self._limit_reading()
        elif self.flow.is_unparsed_full:
            self.flow.set_unparsed_full(False)

    def _parse_piece(self, most: int) -> int:
        """Parse one piece; return its cost in bytes, 0 for data of known length."""
        if self._phase == BODY and self._body_left:
            piece = self._receive_buffer.read(self._body_left)
            self._body_left -= len(piece)
            self._feed(piece)
            return 0
        if self._phase == BODY and self._chunk_lines is not None and not self._chunk_lines.are_over:
            piece = self._receive_buffer.read_through_line(most)
            length = self._chunk_lines.add(piece)
            self._feed(piece)
            self._body_left = length  # irrelevant if the parser refused it: parsing has stopped
            return len(piece)
        was_headers = self._phase != BODY
        piece = self._receive_buffer.read_through_empty_line(most)
        self._feed(piece)
        if was_headers and self._phase == HEADERS and not self.transport.is_over:
            # The parser reports only complete headers, so count what it has buffered.
            self._header_bytes += len(piece)
            if self._header_bytes > self.limits.header_bytes:
                self._refuse(self._headers_too_large())
        return len(piece)

    def _enqueue(self) -> None:
        # A connection is at most once in the scheduler; a response enqueues it when it is complete.
        if not self._is_queued and not self._is_answering:
            self._is_queued = True
            self._enqueued = self.loop.time()
            if self._phase == BODY and self._principal() is None:
                # The app authenticates in its first step, which may already be scheduled.
                self.loop.call_soon(self._enter_queue)
            else:
                self._enter_queue()

    def _enter_queue(self) -> None:
        self.scheduler.enqueue(self, self._peer, self._principal(), is_first=self.cycle is None)

    def _principal(self) -> Principal | None:
        """Return the principal of the current or last request; None before authentication."""
        found: Any = None if self.cycle is None else self.cycle.scope.get(IN_SCOPE)
        principal: Principal | None = found
        return principal

    def resume(self) -> None:
        """Parse the buffered bytes of the queued connection."""
        self._is_queued = False
        # The queue's time, not the client's: deadlines are extended by it.
        self._waited += self.loop.time() - self._enqueued
        if not self.transport.is_over:
            self._parse()

    def _limit_reading(self) -> None:
        """Pause reading at the limit of unparsed bytes; resume at half of it, as hysteresis."""
        most = self.limits.unparsed_bytes
        if self.flow.is_unparsed_full:
            most //= 2
        self.flow.set_unparsed_full(self._receive_buffer.size >= most)

    def on_response_complete(self) -> None:
        """Queue the next pipelined request."""
        self._is_answering = False
        if not self._is_authenticated:
            self._raise_buffer_limits()
        super().on_response_complete()
        if self._receive_buffer.size and not self.transport.is_over:
            self._enqueue()

    # BodyWriter: as the app's ``send`` does, for the request that is being answered.

    @property
    def can_write_body(self) -> bool:
        """See ``BodyWriter``."""
        cycle = self.cycle
        return bool(cycle.chunked_encoding) and not (
            cycle.response_complete or cycle.disconnected or self.flow.write_paused
        )

    def write_body(self, piece: bytes) -> None:
        """See ``BodyWriter``."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    # Slow readers

    def pause_writing(self) -> None:
        """Start the stall timer: the client does not read the response."""
        super().pause_writing()
        if not self._is_authenticated:
            self._raise_buffer_limits()
        if self._stall is None:
            self._stall = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def _raise_buffer_limits(self) -> None:
        """Raise the write-buffer limits of a client that is authenticated."""
        if self.cycle is None or IN_SCOPE not in self.cycle.scope or self.transport.is_over:
            return
        self._is_authenticated = True
        self.transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        if (sock := self.transport.get_extra_info("socket")) is not None:
            set_send_buffer(sock, 4 * self.limits.write_buffer_bytes)

    def resume_writing(self) -> None:
        """Stop the stall timer: the client reads again."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _update_idle_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """Keep the idle timer running between requests until the next one starts."""
        if self._phase == IDLE and (self.cycle is None or self.cycle.response_complete):
            self.timeout_keep_alive_task = timer or self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif timer is not None:
            timer.cancel()

    def _arm(self) -> None:
        self._armed_phase = self._phase
        self._waited, self._enqueued = 0.0, self.loop.time()
        if self._phase == HEADERS:
            self._deadline = self.loop.call_later(self.limits.header_seconds, self._expire)
        elif self._phase == BODY:
            self._deadline = self.loop.call_later(self.limits.body_seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _extend(self) -> None:
        """Restart the deadline and chunk count of a body."""
        self._num_chunks = 0
        if self._phase == BODY and self._deadline is not None:
            self._disarm()
            self._arm()

    def _expire(self) -> None:
        """Refuse the request at its deadline, which is extended by the time spent in the queue."""
        now = self.loop.time()
        if self._is_queued:
            self._waited += now - self._enqueued
            self._enqueued = now
        if self._is_queued or self._waited > 0:
            more = max(self._waited, _MIN_EXTENSION if self._is_queued else 0.0)
            # May become negative by a minimum extension; further waiting makes up for that.
            self._waited -= more
            self._deadline = self.loop.call_later(more, self._expire)
            return
        what = "headers" if self._phase == HEADERS else "body"
        self._refuse(RequestTimeout(f"the request's {what} did not arrive in time"))

    def _refuse(self, error: GatewayError, *, at_once: bool = False) -> None:
        """Answer the arriving request with an error and close the connection."""
        self._disarm()
        cycle = self.cycle
        # The app has the request: answer in its place, unless its response has started.
        if self._phase == BODY:
            if not cycle.response_started:
                self._write_refusal(error)
                # The app counts it with its endpoint, and must not answer, too.
                cycle.scope[REFUSED] = error.status  # type: ignore[literal-required]
                # The app's `receive` then reports a disconnect.
                cycle.disconnected = True
                cycle.message_event.set()
        elif cycle is None or cycle.response_complete:
            self._write_refusal(error)
            self.answered("other", "other", error.status)
        # else it would be written into the response of another request
        self.transport.close(at_once=at_once)

    def _write_refusal(self, error: GatewayError) -> None:
        # Between requests, ``headers`` are those of the last one.
        headers = self.headers if self._phase != IDLE and self.headers else []
        self.transport.write(refusal(error, headers))


def edge_protocol(limits: EdgeLimits, answered: Answered) -> type[EdgeProtocol]:
    """Create a server's protocol class, bound to its limits, counters and scheduler."""
    # uvicorn creates the instances, so these are attributes of the class.
    bound = {
        "limits": limits,
        "peers": Counter(),
        "scheduler": ConnectionScheduler(),
        "answered": staticmethod(answered),
        "read_buffer": memoryview(bytearray(BODY_READ_BYTES)),
    }
    return type("BoundEdgeProtocol", (EdgeProtocol,), bound)
