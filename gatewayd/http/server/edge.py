"""The transport's limits: how long, how large and how many, before any route is looked up.

uvicorn's httptools protocol with deadlines for headers, bodies and stalled writes, caps on
headers, chunks and connections, and OpenAI's error object for HTTP that cannot be parsed.

Requests may be sent ahead of their answers, but none is parsed before the one in front of it is
answered: until then they are bytes, as many as the limits allow, then nothing is read. Of one
connection at most one request begins in a turn of the event loop.

A client that closes its sending side is taken to have gone (a FIN cannot be told from a close).
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
from gatewayd.http.server import body_deadline
from gatewayd.http.server.client_address import subscriber
from gatewayd.http.server.disconnect import EXTENSION, ToldDeparture
from gatewayd.http.server.edge_closing import EdgeTransport
from gatewayd.http.server.edge_errors import REFUSED, Answered, refusal
from gatewayd.http.server.edge_limits import EdgeLimits, set_options, set_send_buffer
from gatewayd.http.server.edge_parsing import BODY, HEADERS, IDLE, ParsingProtocol
from gatewayd.http.server.edge_reading import BODY_READ_BYTES, ConnectionReader, Flow
from gatewayd.http.server.edge_scheduler import ConnectionScheduler
from gatewayd.http.server.receive_buffer import Intake
from gatewayd.tenants.principal import IN_SCOPE, Principal

_PIECES = 64
_PIECES_BYTES = 4096
"""Parsed of one connection in one turn of the event loop, but for what is known to be a body's or a
chunk's data, which costs nothing: 64 chunks of one byte each take half a millisecond."""
_PIECES_BEHIND_DATA = 8
"""Parsed without a turn in the queue where data came before them: as cheap as their read."""
_LEAST_MORE = 0.1
"""Seconds to the next look at the deadline of a connection that waits for its turn."""


class EdgeProtocol(ParsingProtocol):
    """One connection."""

    peers: Counter[str]
    turns: ConnectionScheduler
    answered: Answered
    read_buffer: memoryview

    flow: Flow
    transport: EdgeTransport  # type: ignore[assignment]

    _armed_phase = IDLE
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _is_in_queue = False
    _asked = _waited = 0.0
    _peer = ""
    _is_known = False
    _has_come = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection or turn it away."""
        super().connection_made(transport)
        self.transport = EdgeTransport(transport, self.limits.stall_seconds, self._end_input)
        self.flow = Flow(self.transport)  # type: ignore[arg-type]
        self._intake = Intake()
        transport.set_protocol(ConnectionReader(self, self.read_buffer))
        self._departure = ToldDeparture()
        self._extensions = {
            EXTENSION: self._departure,
            body_deadline.EXTENSION: self._extend,
        }
        transport.set_write_buffer_limits(high=self.limits.stranger_buffer_bytes)
        set_options(transport, 2 * self.limits.stranger_buffer_bytes)
        self._peer = subscriber(self.client[0]) if self.client else ""
        self.peers[self._peer] += 1
        if (
            len(self.connections) > self.limits.connections
            or self.peers[self._peer] > self.limits.peer_connections
        ):
            self._refuse(
                TooManyConnections("too many connections; close some or try later", retry_after=1),
                at_once=True,  # to wait for its end would be one more
            )
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._disarm()
        self._intake.clear()
        self.transport.ended()
        if self._stall is not None:
            self._stall.cancel()
        self.peers[self._peer] -= 1
        if not self.peers[self._peer]:
            del self.peers[self._peer]
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it where the client has reset
        # What leads back to the connection goes, or all of it, the last body included, would stay
        # until the garbage collector looks through what is old.
        del self._extensions[body_deadline.EXTENSION]
        self._departure.tell()

    def read_size(self) -> int:
        """What may be read next: the rest of a body of known length, and a little more."""
        if self.transport.is_over:
            return BODY_READ_BYTES  # it is thrown away: the fewer reads the better
        room = self.limits.unparsed_bytes - self._intake.size
        if self._phase == BODY:
            room += self._body_left
        return room if 0 < room < BODY_READ_BYTES else max(1, min(room, BODY_READ_BYTES))

    def data_received(self, data: bytes) -> None:
        """Parse, or keep it for its turn."""
        if self.transport.is_over:
            self.transport.throw_away(len(data))
            return
        self._has_come = True
        self._intake.add(data)
        if self._is_in_queue or self._is_answering:
            self._hold()
        elif self._phase == BODY and not self._body_left:
            self._ask_turn()
            self._hold()
        else:
            self._parse(_PIECES if self._phase != BODY else _PIECES_BEHIND_DATA)

    def _end_input(self) -> bool:
        """Drop what has come; whether more that nobody looks at may follow or be in the kernel."""
        is_fed = self._has_come and (self._phase != IDLE or self._intake.size > 0)
        self._intake.clear()
        return is_fed

    def _parse(self, pieces: int = _PIECES) -> None:
        """Feed the parser, to the end of a request at most; time what is incomplete."""
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        intake, left = self._intake, _PIECES_BYTES
        while self._body_left or (pieces > 0 and left > 0):
            was_body = self._phase == BODY
            if cost := self._parse_piece(left):
                left -= cost
                pieces -= 1
            if self.transport.is_over:
                intake.clear()
                break
            if not intake.size or self._is_answering:
                break
            if was_body and self._phase == IDLE:
                break  # it was answered before it was whole; the next one has a turn of its own
        self._keep_idle(idle)
        if self.transport.is_over:
            return
        if self._phase != self._armed_phase:
            self._disarm()
            self._arm()
        if intake.size:
            self._ask_turn()
            self._hold()
        elif self.flow.is_held:
            self.flow.hold_reading(False)

    def _parse_piece(self, most: int) -> int:
        """Returns how many bytes it was, if they have to be looked at."""
        if self._phase == BODY and self._body_left:
            piece = self._intake.take(self._body_left)
            self._body_left -= len(piece)
            self._feed(piece)
            return 0
        if self._phase == BODY and self._chunk_lines is not None and not self._chunk_lines.are_over:
            piece = self._intake.through_line(most)
            length = self._chunk_lines.add(piece)
            self._feed(piece)
            self._body_left = length  # unless the parser has refused it: then nothing is parsed
            return len(piece)
        was_headers = self._phase != BODY
        piece = self._intake.through_empty_line(most)
        self._feed(piece)
        if was_headers and self._phase == HEADERS and not self.transport.is_over:
            # The parser tells a header only when it is whole; count what it holds.
            self._header_bytes += len(piece)
            if self._header_bytes > self.limits.header_bytes:
                self._refuse(self._headers_too_large())
        return len(piece)

    def _ask_turn(self) -> None:
        if not self._is_in_queue and not self._is_answering:
            self._is_in_queue = True
            self._asked = self.loop.time()
            if self._phase == BODY and self._principal() is None:
                # The app looks at the key in its first step, which may be due before this.
                self.loop.call_soon(self._enter_queue)
            else:
                self._enter_queue()

    def _enter_queue(self) -> None:
        self.turns.ask(self, self._peer, self._principal(), is_first=self.cycle is None)

    def _principal(self) -> Principal | None:
        """Whose key the request in front has, or the last one; None before one was found good."""
        found: Any = None if self.cycle is None else self.cycle.scope.get(IN_SCOPE)
        principal: Principal | None = found
        return principal

    def go_on(self) -> None:
        """Parse what has waited for its turn."""
        self._is_in_queue = False
        self._waited += self.loop.time() - self._asked
        if not self.transport.is_over:
            self._parse()

    def _hold(self) -> None:
        """Stop reading at the limit; go on at half of it, not for each request once more."""
        most = self.limits.unparsed_bytes
        if self.flow.is_held:
            most //= 2
        self.flow.hold_reading(self._intake.size >= most)

    def on_response_complete(self) -> None:
        """The next request has its turn."""
        self._is_answering = False
        if not self._is_known:
            self._look_who()
        super().on_response_complete()
        if self._intake.size and not self.transport.is_over:
            self._ask_turn()

    # Slow readers

    def pause_writing(self) -> None:
        """The client leaves our bytes unread."""
        super().pause_writing()
        if not self._is_known:
            self._look_who()
        if self._stall is None:
            self._stall = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def _look_who(self) -> None:
        """Let a client whose key is good have more in flight."""
        if self.cycle is None or IN_SCOPE not in self.cycle.scope or self.transport.is_over:
            return
        self._is_known = True
        self.transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        if (sock := self.transport.get_extra_info("socket")) is not None:
            set_send_buffer(sock, 4 * self.limits.write_buffer_bytes)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _keep_idle(self, timer: asyncio.TimerHandle | None) -> None:
        """Time between requests goes on until one begins, whatever else has come."""
        if self._phase == IDLE and (self.cycle is None or self.cycle.response_complete):
            self.timeout_keep_alive_task = timer or self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif timer is not None:
            timer.cancel()

    def _arm(self) -> None:
        self._armed_phase = self._phase
        self._waited, self._asked = 0.0, self.loop.time()
        if self._phase == HEADERS:
            self._deadline = self.loop.call_later(self.limits.header_seconds, self._expire)
        elif self._phase == BODY:
            self._deadline = self.loop.call_later(self.limits.body_seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _extend(self) -> None:
        """A body has its time anew, and its chunks."""
        self._num_chunks = 0
        if self._phase == BODY and self._deadline is not None:
            self._disarm()
            self._arm()

    def _expire(self) -> None:
        """Its time is over; that in which it waited for its turn was ours."""
        now = self.loop.time()
        if self._is_in_queue:
            self._waited += now - self._asked
            self._asked = now
        if self._is_in_queue or self._waited > 0:
            more = max(self._waited, _LEAST_MORE if self._is_in_queue else 0.0)
            self._waited -= more
            self._deadline = self.loop.call_later(more, self._expire)
            return
        what = "headers" if self._phase == HEADERS else "body"
        self._refuse(RequestTimeout(f"the request's {what} did not arrive in time"))

    def _refuse(self, error: GatewayError, *, at_once: bool = False) -> None:
        """Answer what is arriving with an error, and close."""
        self._disarm()
        cycle = self.cycle
        if self._phase == BODY:
            if not cycle.response_started:
                self._write_refusal(error)
                # Its app counts it, with its endpoint, and must not answer as well.
                cycle.scope[REFUSED] = error.status  # type: ignore[literal-required]
                cycle.disconnected = True
                cycle.message_event.set()
        elif cycle is None or cycle.response_complete:
            self._write_refusal(error)
            self.answered("other", "other", error.status)
        # else it would stand in the middle of another request's answer
        self.transport.close(at_once=at_once)

    def _write_refusal(self, error: GatewayError) -> None:
        # Between requests, the headers are those of the last one.
        headers = self.headers if self._phase != IDLE and self.headers else []
        self.transport.write(refusal(error, headers))


def edge_protocol(limits: EdgeLimits, answered: Answered) -> type[EdgeProtocol]:
    """The protocol class of one server: its limits, its count of peers, who counts its answers."""
    bound = {
        "limits": limits,
        "peers": Counter(),
        "turns": ConnectionScheduler(),
        "answered": staticmethod(answered),
        "read_buffer": memoryview(bytearray(BODY_READ_BYTES)),
    }
    return type("BoundEdgeProtocol", (EdgeProtocol,), bound)
