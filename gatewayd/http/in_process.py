"""Requests of this process to the data plane's app, without a connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import unquote

from gatewayd.http.asgi import App, Header, Message, Scope
from gatewayd.http.server.disconnect import EXTENSION, EdgeDisconnectSignal
from gatewayd_hooks.protocols import CallAnswer

_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_RESERVED = frozenset(("host", "content-length", "transfer-encoding"))


def scope_of(
    method: str,
    target: str,
    headers: Sequence[Header],
    body: bytes,
    signal: EdgeDisconnectSignal,
    client: str | None = None,
) -> Scope:
    """Return the scope of a request that did not arrive over a connection.

    Args:
        method: in upper case.
        target: path, percent-encoded, perhaps with a query.
        headers: in addition to length and host, names in lower case.
        body: the complete body.
        signal: of the client's disconnect: with it no task waits for ``http.disconnect``.
        client: address of the client, if there is one.
    """
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [*headers, (b"content-length", b"%d" % len(body)), (b"host", b"localhost")],
        "client": None if client is None else (client, 0),
        "server": None,
        "extensions": {EXTENSION: signal},
    }


class InProcessCalls:
    """Calls of one app that are running.

    Attributes:
        app: the app.
    """

    def __init__(self) -> None:
        self.app: App | None = None
        # The loop holds tasks weakly, and one outlives its call if that is left early.
        self._running: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def call(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, client: str | None
    ) -> AsyncGenerator[CallAnswer, None]:
        """See ``gatewayd_hooks.protocols.Gateway.call``."""
        if self.app is None:
            raise RuntimeError("the gateway is not built yet")
        call = _Call(body)
        scope = scope_of(method, target, _encoded(headers), body, call.signal, client)
        task = asyncio.create_task(call.run(self.app, scope), name=f"call of {method} {target}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            yield await call.answer()
        finally:
            call.leave()


class _Call:
    """One request and its answer, of which a message is sent when the last one was taken.

    Attributes:
        signal: of the caller's disconnect.
    """

    def __init__(self, body: bytes) -> None:
        self.signal = EdgeDisconnectSignal()
        self._incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._messages = asyncio.Queue[Message | None](maxsize=1)
        self._is_left = False

    async def run(self, app: App, scope: Scope) -> None:
        """Run the app; its failure, which it has logged, ends the answer early."""
        try:
            await app(scope, self._receive, self._send)
        except Exception:  # noqa: BLE001 - raised to close the connection, of which there is none
            pass
        finally:
            await self._put(None)

    async def answer(self) -> CallAnswer:
        """Wait for the start of the answer.

        Raises:
            ConnectionError: there is none.
        """
        head = await self._messages.get()
        if head is None:
            raise ConnectionError("the request was not answered")
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in head["headers"]
        }
        return CallAnswer(head["status"], headers, self._pieces())

    def leave(self) -> None:
        """End the call; without effect on an answer that is complete."""
        self._is_left = True
        self.signal.notify()
        # Makes room for a message that waits; further ones are dropped.
        while not self._messages.empty():
            self._messages.get_nowait()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body", False):
                return
        raise ConnectionError("the answer ends early")

    async def _receive(self) -> Message:
        return self._incoming.pop() if self._incoming else {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._put(message)

    async def _put(self, message: Message | None) -> None:
        if not self._is_left:
            await self._messages.put(message)


def _encoded(headers: Mapping[str, str]) -> list[Header]:
    """Encode headers.

    Raises:
        ValueError: one is invalid.
    """
    for name, value in headers.items():
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)) or name in _RESERVED:
            raise ValueError(f"the header {name[:64]!r} cannot be sent")
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
