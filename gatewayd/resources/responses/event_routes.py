"""``GET /v1/responses/{response_id}``, optionally as a stream of its events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Header, Receive, Scope, Send, send_body
from gatewayd.http.openai.wire import PING
from gatewayd.http.protocols.pieces import PieceWriter
from gatewayd.http.query import query_of
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.http.services import Services
from gatewayd.resources.responses import records
from gatewayd.resources.responses.background import Background
from gatewayd.resources.responses.event_log import ResponseLogReader
from gatewayd.resources.responses.events import HEADERS, EventEncoder, end_of, initial_body, replay
from gatewayd.resources.responses.records import StoredResponse
from gatewayd.store.database import Database
from gatewayd.tenants.principal import principal_of


async def follow(
    reader: ResponseLogReader,
    headers: Sequence[Header],
    ping_seconds: float,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Stream events as they come; a disconnect does not affect the response.

    Raises:
        ClientGone: the client has disconnected.
    """
    departure, lease = disconnect_signal(scope, receive), principal_of(scope).lease
    departure.add_listener(reader.stop)
    if lease is not None:
        # A key that ends stops its followers, too, not only the generation.
        lease.add(reader.stop)
    try:
        pieces = PieceWriter(
            send, 200, lambda: [*HEADERS, *headers], keepalive=PING, seconds=ping_seconds
        )
        await pieces.write(reader)
    finally:
        departure.remove_listener(reader.stop)
        if lease is not None:
            lease.discard(reader.stop)


class ResponseOne:
    """``GET /v1/responses/{response_id}``."""

    def __init__(self, services: Services, database: Database, background: Background) -> None:
        self._services = services
        self._database = database
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Show a response, or stream its events: recorded ones, or live while it runs."""
        query, response_id = query_of(scope), scope["path_params"]["response_id"]
        tenant = principal_of(scope).tenant
        if query.get("stream") not in ("true", "True", "1"):
            shown = await self._database.read(
                lambda connection: records.shown(connection, tenant, response_id)
            )
            await send_body(send, shown)
            return
        kept = await self._find(tenant, response_id)
        after, seconds = _after(query, kept.body), self._services.limits.ping_seconds
        if kept.body["status"] in records.RUNNING:
            log = self._background.log_of(response_id)
            # From the log, which also has the events that came before the client.
            if log is not None:
                await follow(ResponseLogReader(log, after), [], seconds, scope, receive, send)
                return
            kept = await self._find(tenant, response_id)  # it has ended in the meantime
        pieces = PieceWriter(send, 200, lambda: HEADERS, keepalive=PING, seconds=seconds)
        await pieces.write(_events(kept, after))

    async def _find(self, tenant: str, response_id: str) -> StoredResponse:
        return await self._database.read(
            lambda connection: records.find_stored(connection, tenant, response_id)
        )


async def _events(kept: StoredResponse, after: int) -> AsyncIterator[bytes]:
    numbers, body = EventEncoder(after), kept.body
    yield numbers.opening(initial_body(body))
    if body["status"] in records.RUNNING:  # the daemon stops
        return
    for event in replay(kept):
        yield numbers.event(event)
    if kept.cuts is None and body["status"] == "failed":
        numbers.skip_to_last()  # the number of events before the crash is unknown
    yield numbers.event(end_of(body))


def _after(query: Mapping[str, str], body: dict[str, Any]) -> int:
    """Number of the last event that the client has received."""
    text = query.get("starting_after")
    if text is None:
        return -1
    # Its deltas were not recorded, so a replay has other events than the client has received.
    if not body["background"]:
        raise InvalidRequest(
            f"the response {body['id']} was streamed to its client in other chunks; omit "
            "starting_after to get it from the beginning",
            param="starting_after",
        )
    # Nine digits at most: Python refuses to convert very long numbers.
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(
            f"starting_after is {text[:32]!r}; it must be the number of an event",
            param="starting_after",
        )
    return int(text)
