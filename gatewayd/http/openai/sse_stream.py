"""Streaming as server-sent events: each write contains all output since the previous one.

The response starts with the first event, so that earlier failures have their own status. While a
write waits for a slow client, output is buffered and coalesced; chunks need not be single tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gatewayd.http.asgi import Header, Send
from gatewayd.http.openai.large_answers import is_large, run_in_thread
from gatewayd.http.openai.wire import PING, Wire, error_events
from gatewayd.http.server.body_writer import BodyWriter
from gatewayd.pipeline.generation import Generation

_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_MANY_BYTES = 64 * 1024
"""Flush threshold for scored prompts, which would be copied again and again while buffered."""


class SseStream:
    """Writer of one streamed response."""

    def __init__(
        self,
        generation: Generation,
        wire: Wire,
        send: Send,
        body: BodyWriter | None = None,
        *,
        headers: Callable[[], Sequence[Header]],
        ping_seconds: float,
    ) -> None:
        self._generation = generation
        self._wire = wire
        self._send = send
        self._body = body
        self._headers = headers
        self._ping_seconds = ping_seconds
        self._is_ping_due = False
        self._has_started = False
        self._is_silent = False
        self._open = generation.choices
        self._error: Exception | None = None
        # By the log-probabilities of the prompt: no token is generated yet.
        self._is_large = is_large(generation)

    async def run(self) -> None:
        """Stream the response until its end.

        Raises:
            GatewayError: the request failed before anything was written.
        """
        self._arm()
        try:
            await self._run()
        finally:
            self._timer.cancel()

    async def _run(self) -> None:
        generation, wire = self._generation, self._wire
        output = generation.output
        if self._body is not None and not self._is_large:
            output.write_with(self._write_chunks)
        while True:
            if not output.is_awake:  # wait(), without a coroutine for each chunk
                await output.waiter()
                if self._error is not None:
                    raise self._error
            # Before output is popped: what arrives during a write wakes this loop again.
            output.is_awake = False
            if generation.is_abandoned:
                return
            error = generation.error
            if error is not None and not self._has_started:
                raise error
            events, still_open = b"", []
            for choice in self._open:
                if self._is_large:
                    if len(events) > _MANY_BYTES:
                        await self._write(events)
                        events = b""
                    # Both a write and a thread may have taken long.
                    if generation.is_abandoned:
                        return
                    work = wire.before_chunk(generation, choice)
                    if work is not None:
                        await run_in_thread(work)
                events += wire.chunk(generation, choice)
                # Checked after the chunk: a choice may end later, while others are written.
                if not choice.is_done:
                    still_open.append(choice)
            if error is not None:  # after output that arrived before it
                await self._write(events + error_events(error), more=False)
                return
            self._open = still_open
            if not still_open:
                await self._write(events + wire.closing(generation), more=False)
                return
            if events and self._has_started:  # fast path, without another coroutine
                await self._send({"type": "http.response.body", "body": events, "more_body": True})
                self._is_silent = False
            elif events:
                await self._write(events)
            elif self._is_ping_due:
                await self._write(PING)
            self._is_ping_due = False

    def _write_chunks(self) -> bool:
        """Write new output without the stream's task; return whether that was possible.

        The task writes the beginning and the end, pings, and what a slow client has to wait for.
        """
        generation, body = self._generation, self._body
        if (
            body is None
            or not (self._has_started and body.can_write_body)
            or self._is_ping_due
            or generation.error is not None
            or generation.is_abandoned
        ):
            return False
        for choice in self._open:
            if choice.is_done:
                return False
        try:
            events = b"".join([self._wire.chunk(generation, choice) for choice in self._open])
        except Exception as error:  # noqa: BLE001 - the wire's and a parser's belong to the task
            self._error = error
            return False
        if events:
            body.write_body(events)
            self._is_silent = False
        return True

    async def _write(self, events: bytes, *, more: bool = True) -> None:
        if not self._has_started:
            self._has_started = True
            await self._send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [*_HEADERS, *self._headers()],
                }
            )
            events = self._wire.opening(self._generation) + events
        await self._send({"type": "http.response.body", "body": events, "more_body": more})
        self._is_silent = False

    def _tick(self) -> None:
        """Request a keep-alive comment if nothing was written since the last tick."""
        if self._is_silent:
            self._is_ping_due = True
            # Written by the stream's own task: a write here could overlap with another.
            self._generation.wake()
        self._is_silent = True
        self._arm()

    def _arm(self) -> None:
        # The second silent tick counts: pings follow half the idle time to all of it.
        self._timer = asyncio.get_running_loop().call_later(self._ping_seconds / 2, self._tick)
