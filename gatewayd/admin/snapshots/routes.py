"""``GET /admin/snapshot``, ``GET /admin/stream`` and ``GET /admin/prefixes``."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

import msgspec
from starlette.routing import Route

from gatewayd.admin.snapshots.pages import prefixes_of
from gatewayd.admin.snapshots.snapshot import Snapshots
from gatewayd.admin.watchers import SnapshotBroadcast, Watcher, WatcherEnded
from gatewayd.engines.inspection import EngineInspection
from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Header, Receive, Scope, Send, send_body
from gatewayd.http.methods import route
from gatewayd.http.query import query_of
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.tracing.log_buffer import LogLines
from gatewayd.wire.snapshot import MOST_ROWS, Snapshot

_log = logging.getLogger(__name__)

_FIRST_LINES = 200
MOST_PREFIXES = 1000
_MOST_ENGINES = 9999
_MOST_PAGES = 2**31 - 1
_SLOWEST, _FASTEST, _USUAL = 60.0, 0.1, 0.5
_PING_SECONDS = 15.0
_PING = b": ping\n\n"
_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
_encode = msgspec.json.Encoder().encode
_NO_LINES = b"[]}"


class SnapshotStream:
    """Log lines that one reader has not received yet."""

    def __init__(self, lines: LogLines) -> None:
        self._lines = lines
        self._last = max(0, lines.last - _FIRST_LINES)

    def append_to(self, snapshot: bytes) -> bytes:
        """Append new log lines to an encoded snapshot without lines, which is its last field."""
        new = self._lines.since(self._last)
        if not new:
            return snapshot
        self._last = new[-1].number
        # Spliced as bytes, so that the snapshot is encoded once, whatever lines each reader gets.
        return snapshot.removesuffix(_NO_LINES) + _encode(new) + b"}"


class SnapshotRoute:
    """Returns one snapshot."""

    def __init__(self, snapshots: Snapshots, lines: LogLines) -> None:
        self._snapshots = snapshots
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        snapshot = await self._snapshots.build()
        await send_body(send, SnapshotStream(self._lines).append_to(_encode(snapshot)))


class StreamRoute:
    """Streams snapshots as server-sent events."""

    def __init__(self, watching: SnapshotBroadcast, lines: LogLines) -> None:
        self._watching = watching
        self._lines = lines
        self._encoded: tuple[Snapshot | None, bytes] = None, b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the client disconnects, or the daemon stops."""
        if scope["method"] == "HEAD":
            await send_body(send, b"", headers=_HEADERS)
            return
        watcher = self._watching.add(_interval(scope))
        departure = disconnect_signal(scope, receive)
        # Ends the wait for a snapshot at once; a write would notice the disconnect only later.
        departure.add_listener(watcher.end)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._write(watcher, send)
        finally:
            departure.remove_listener(watcher.end)
            self._watching.remove(watcher)

    async def _write(self, watcher: Watcher, send: Send) -> None:
        lines = SnapshotStream(self._lines)
        try:
            while True:
                event = await self._next(watcher, lines, send)
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except WatcherEnded:
            pass
        except Exception:  # noqa: BLE001 - a response that has begun can only end
            _log.exception("snapshot failed")
        await send({"type": "http.response.body", "body": b""})

    async def _next(self, watcher: Watcher, lines: SnapshotStream, send: Send) -> bytes:
        """Wait for the next event, sending keep-alive comments meanwhile."""
        coming = asyncio.ensure_future(self._watching.next(watcher))
        try:
            # Not ``wait_for``, which would cancel the wait for the snapshot at each ping.
            while not (await asyncio.wait([coming], timeout=_PING_SECONDS))[0]:
                await send({"type": "http.response.body", "body": _PING, "more_body": True})
            return b"data: " + lines.append_to(self._shared(coming.result())) + b"\n\n"
        finally:
            coming.cancel()

    def _shared(self, snapshot: Snapshot) -> bytes:
        """Encode a snapshot once for all readers."""
        if self._encoded[0] is not snapshot:
            self._encoded = snapshot, _encode(snapshot)
        return self._encoded[1]


class PrefixRoute:
    """Lists the cached pages that follow a page.

    Args:
        inspection: queries engines.
        text_of: decodes tokens.
    """

    def __init__(self, inspection: EngineInspection, text_of: Callable[[list[int]], str]) -> None:
        self._inspection = inspection
        self._text_of = text_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        query = query_of(scope)
        engine = _number(query, "engine", 0, _MOST_ENGINES)
        parent = _number(query, "parent", None, _MOST_PAGES)
        limit = _number(query, "limit", MOST_ROWS, MOST_PREFIXES)
        if limit == 0:
            raise InvalidRequest(f"limit is 0; it must be from 1 to {MOST_PREFIXES}", param="limit")
        said = await self._inspection.browse(
            engine or 0, -1 if parent is None else parent, limit or MOST_ROWS
        )
        found = prefixes_of(engine or 0, parent, said, self._text_of)
        await send_body(send, _encode(found))


def snapshot_routes(
    snapshots: Snapshots, watching: SnapshotBroadcast, lines: LogLines, prefixes: PrefixRoute
) -> list[Route]:
    """All routes of snapshots."""
    return [
        route("/admin/prefixes", GET=prefixes),
        route("/admin/snapshot", GET=SnapshotRoute(snapshots, lines)),
        route("/admin/stream", GET=StreamRoute(watching, lines)),
    ]


def _interval(scope: Scope) -> float:
    text = query_of(scope).get("interval", str(_USUAL))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _FASTEST <= seconds <= _SLOWEST:
        raise InvalidRequest(
            f"interval is {text[:32]!r}; it must be from {_FASTEST:g} to {_SLOWEST:g} seconds",
            param="interval",
        )
    return seconds


def _number(query: Mapping[str, str], name: str, default: int | None, most: int) -> int | None:
    """Parse a number of the query; missing or empty means the default."""
    text = query.get(name, "")
    if not text:
        return default
    # The length is checked before int(), which refuses thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= most):
        raise InvalidRequest(
            f"{name} is {text[:32]!r}; it must be a whole number up to {most}", param=name
        )
    return int(text)
