"""Server-sent events: one write for all that has come since the last one.

The answer begins with the first event, so that what fails before has a status of its own. While
a write waits for a slow client, text gathers and goes out together: nobody counts tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gatewayd.http.asgi import Header, Send
from gatewayd.http.openai.large_answers import apart, is_large
from gatewayd.http.openai.wire import PING, Wire, error_events
from gatewayd.pipeline.generation import Generation

_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_MANY_BYTES = 64 * 1024
"""Of prompts with their log-probabilities: gathered, they would be copied for each one more."""


class SseStream:
    """Writes one streamed answer."""

    def __init__(
        self,
        generation: Generation,
        wire: Wire,
        send: Send,
        *,
        headers: Callable[[], Sequence[Header]],
        ping_seconds: float,
    ) -> None:
        self._generation = generation
        self._wire = wire
        self._send = send
        self._headers = headers
        self._ping_seconds = ping_seconds
        self._is_ping_due = False
        self._has_begun = False
        self._is_silent = False
        self._is_large = is_large(generation)

    async def run(self) -> None:
        """Write until the end.

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
        open_choices = list(generation.choices)
        while True:
            if not generation.is_awake:  # wait(), without a coroutine for each chunk
                await generation.waiter()
            generation.is_awake = False
            if generation.is_abandoned:
                return
            error = generation.error
            if error is not None and not self._has_begun:
                raise error
            events, still_open = b"", []
            for choice in open_choices:
                if self._is_large:
                    if len(events) > _MANY_BYTES:
                        await self._write(events)
                        events = b""
                    if generation.is_abandoned:
                        return
                    work = wire.before_chunk(generation, choice)
                    if work is not None:
                        await apart(work)
                events += wire.chunk(generation, choice)
                # Asked here: one that ends while the others are written has not told its end.
                if not choice.is_done:
                    still_open.append(choice)
            if error is not None:  # after what came with it
                await self._write(events + error_events(error), more=False)
                return
            open_choices = still_open
            if not open_choices:
                await self._write(events + wire.closing(generation), more=False)
                return
            if events and self._has_begun:  # the common case, without a coroutine more
                await self._send({"type": "http.response.body", "body": events, "more_body": True})
                self._is_silent = False
            elif events:
                await self._write(events)
            elif self._is_ping_due:
                await self._write(PING)
            self._is_ping_due = False

    async def _write(self, events: bytes, *, more: bool = True) -> None:
        if not self._has_begun:
            self._has_begun = True
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
        """Ask for a comment if nothing was written since the last time, twice in the limit."""
        if self._is_silent:
            self._is_ping_due = True
            self._generation.wake()
        self._is_silent = True
        self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._ping_seconds / 2, self._tick)
