"""Routes of ``/v1/responses``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection

from gatewayd.errors import GatewayError, InvalidRequest, StoreUnavailable
from gatewayd.http.asgi import (
    JSON_HEADER,
    Receive,
    Scope,
    Send,
    encode_json,
    ignored_header,
    send_body,
    send_json,
)
from gatewayd.http.openai.generate import BODY_BYTES, receive_request
from gatewayd.http.openai.wire import PING
from gatewayd.http.protocols.answer import ProtocolAnswer
from gatewayd.http.protocols.pieces import PieceWriter
from gatewayd.http.protocols.route import ProtocolRefused
from gatewayd.http.query import listed, page_of, query_of
from gatewayd.http.schema.responses import InputTokensRequest, ResponseRequest
from gatewayd.http.server.disconnect import disconnect_signal
from gatewayd.http.services import Services
from gatewayd.resources.responses import records
from gatewayd.resources.responses.background import Background
from gatewayd.resources.responses.conversations import Conversations
from gatewayd.resources.responses.event_log import ResponseLog, ResponseLogReader
from gatewayd.resources.responses.event_routes import follow
from gatewayd.resources.responses.events import HEADERS, EventEncoder
from gatewayd.resources.responses.previous_responses import TruncationPoint
from gatewayd.resources.responses.response_object import initial_response
from gatewayd.resources.responses.run import (
    ResponseProgress,
    StartedResponse,
    count,
    start_response,
)
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import ACCEPTED, DiskQuota
from gatewayd.store.ids import new_id
from gatewayd.store.tenant_shares import RESPONSE_BYTES, TenantShare
from gatewayd.tenants.principal import principal_of
from gatewayd_hooks.protocols import RequestRefusal

_DEFAULT_LIMIT, _MOST = 20, 100


class _Given(NamedTuple):
    """Input items, their owner, and where the truncated conversation begins."""

    tenant: str
    items: list[dict[str, Any]]
    chain_cut: TruncationPoint | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ResponseCreate:
    """``POST /v1/responses``."""

    _services: Services
    _database: Database
    _conversations: Conversations
    _background: Background
    _room: DiskQuota

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        # Before the body is read: `queue_timeout` counts from here.
        arrival = self._services.clock()
        request, ignored = await receive_request(self._services, ResponseRequest, scope, receive)
        _check(request)
        with self._room.coming.counted(principal_of(scope).tenant) as hold:
            if request.store is not False:
                await self._check_room(scope, hold)
            await self._serve(request, ignored, arrival, scope, receive, send)

    async def _check_room(self, scope: Scope, hold: TenantShare) -> None:
        """Refuse a response that does not fit, by its body's size; count it while it runs."""
        num_bytes = RESPONSE_BYTES + scope[BODY_BYTES]
        # Room for lines of a batch was checked when the batch was accepted.
        if ACCEPTED not in scope.get("extensions", ()):
            await self._room.check(principal_of(scope), num_bytes)
        # Without an await after the check; see `TenantShare`.
        hold.add(num_bytes)

    async def _serve(
        self,
        request: ResponseRequest,
        ignored: list[str],
        arrival: float,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        services = self._services
        principal = principal_of(scope)
        start = partial(
            start_response,
            services,
            self._conversations,
            request,
            scope["request_id"],
            arrival,
            principal,
        )
        if request.background:
            log, body = await self._start_background(request, principal.tenant, start)
            headers = ignored_header(ignored)
            if request.stream:
                seconds = services.limits.ping_seconds
                await follow(ResponseLogReader(log, -1), headers, seconds, scope, receive, send)
            else:
                await send_json(send, body, headers=headers)
            return
        answer, items, cut = await start()
        given = _Given(principal.tenant, items, cut)
        response_id = new_id("resp_")
        progress = ResponseProgress(answer, initial_response(request, response_id, "in_progress"))
        departure = disconnect_signal(scope, receive)
        # Not for background responses, which go on without their client.
        departure.add_listener(answer.abandon)
        try:
            if request.stream:
                await self._stream(progress, answer, given, send, ignored)
            else:
                await progress.finish()
                # Before the answer: its id may be used in the next request.
                await self._store(progress.body, given)
                headers = [JSON_HEADER, *ignored_header(ignored)]
                headers += answer.headers()
                await send_body(send, encode_json(progress.body), headers=headers)
        except RequestRefusal as refusal:
            raise ProtocolRefused(refusal) from refusal
        finally:
            answer.close()
            departure.remove_listener(answer.abandon)

    async def _start_background(
        self,
        request: ResponseRequest,
        tenant: str,
        start: Callable[[], Awaitable[StartedResponse]],
    ) -> tuple[ResponseLog, dict[str, Any]]:
        """Start a background response."""
        # Before the work of preparing it; held until the response has ended.
        self._background.cap.reserve(tenant)
        try:
            answer, items, cut = await start()
            try:
                body = initial_response(request, new_id("resp_"), "in_progress")
                await self._store(body, _Given(tenant, items, cut))
            except BaseException:
                # The generation runs already, and would have no reader.
                answer.close()
                raise
        except BaseException:
            self._background.cap.release(tenant)
            raise
        return self._background.start_response(tenant, answer, body, cut), body

    async def _store(self, body: dict[str, Any], given: _Given) -> None:
        if body["store"]:
            await self._database.write(
                lambda connection: records.add(
                    connection, given.tenant, body, given.items, given.chain_cut
                )
            )

    async def _stream(
        self,
        progress: ResponseProgress,
        answer: ProtocolAnswer,
        given: _Given,
        send: Send,
        ignored: list[str],
    ) -> None:
        services = self._services
        pieces = PieceWriter(
            send,
            200,
            lambda: [
                *HEADERS,
                *ignored_header(ignored),
                *answer.headers(),
            ],
            keepalive=PING,
            seconds=services.limits.ping_seconds,
        )
        numbers = EventEncoder()
        try:
            await pieces.write(self._events(progress, given, numbers))
        except (RequestRefusal, GatewayError) as error:
            # The status is not sent yet, so that the error is an HTTP error.
            if not pieces.has_started:
                raise
            body = {**progress.body, "status": "failed"}
            if body["error"] is None:
                body["error"] = {"code": "server_error", "message": str(error)}
            # Empty if the client has the initial events already.
            opening = numbers.opening({**body, "status": "in_progress", "error": None})
            last = numbers.event({"type": "response.failed", "response": body})
            with contextlib.suppress(StoreUnavailable):  # logged where it was raised
                await self._store(body, given)
            await pieces.end(opening + last)

    async def _events(
        self, progress: ResponseProgress, given: _Given, numbers: EventEncoder
    ) -> AsyncIterator[bytes]:
        async for event in progress.events():
            # With the first event and not before: until then a refusal has a status of its own.
            yield numbers.opening(progress.body) + numbers.event(event)
        # Before the final event: a client that has read the end may continue from it.
        await self._store(progress.body, given)
        kind = f"response.{progress.body['status']}"
        yield numbers.event({"type": kind, "response": progress.body})


class ResponseCount:
    """``POST /v1/responses/input_tokens``."""

    def __init__(self, services: Services, conversations: Conversations) -> None:
        self._services = services
        self._conversations = conversations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the tokens of a response's input, which may exceed the context."""
        request, ignored = await receive_request(self._services, InputTokensRequest, scope, receive)
        tenant = principal_of(scope).tenant
        told = {
            "object": "response.input_tokens",
            "input_tokens": await count(self._services, self._conversations, request, tenant),
        }
        await send_json(send, told, headers=ignored_header(ignored))


class ResponseDelete:
    """``DELETE /v1/responses/{response_id}``."""

    def __init__(self, database: Database, background: Background) -> None:
        self._database = database
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delete a response, and stop it if it runs; its successors lose their context."""
        response_id, tenant = scope["path_params"]["response_id"], principal_of(scope).tenant
        await self._database.write(
            lambda connection: records.remove(connection, tenant, response_id)
        )
        # After the row: storing the end of the run then has no effect.
        await self._background.stop_deleted(response_id)
        await send_json(send, {"id": response_id, "object": "response", "deleted": True})


class ResponseCancel:
    """``POST /v1/responses/{response_id}/cancel``."""

    def __init__(self, background: Background) -> None:
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancel a background response."""
        tenant, response_id = principal_of(scope).tenant, scope["path_params"]["response_id"]
        await send_json(send, await self._background.cancel(tenant, response_id))


class ResponseInput:
    """``GET /v1/responses/{response_id}/input_items``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List the input items of a response."""
        page = page_of(query_of(scope), default=_DEFAULT_LIMIT, most=_MOST)
        response_id, tenant = scope["path_params"]["response_id"], principal_of(scope).tenant

        def read(connection: Connection) -> list[dict[str, Any]]:
            return records.input_items(connection, tenant, response_id, page)

        await send_json(send, listed(await self._database.read(read), page))


def _check(request: ResponseRequest) -> None:
    if request.background and request.store is False:
        raise InvalidRequest("background needs store to be true", param="store")
