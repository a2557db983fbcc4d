"""Routes of ``/v1/batches``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import (
    Receive,
    Scope,
    Send,
    encode_json,
    ignored_header,
    read_json_body,
    send_json,
)
from gatewayd.http.parse import parse
from gatewayd.http.query import listed, page_of, query_of
from gatewayd.http.schema.batches import BatchRequest
from gatewayd.resources.batches import records
from gatewayd.resources.batches.open_batches import Batches
from gatewayd.resources.batches.records import BatchRow
from gatewayd.resources.files import records as file_records
from gatewayd.store.ids import new_id
from gatewayd.store.tenant_shares import BATCH_BYTES
from gatewayd.tenants.principal import Principal, principal_of

_BODY_BYTES = 64 * 1024
_DEFAULT_LIMIT, _MOST = 20, 100


class BatchCreate:
    """``POST /v1/batches``."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Create a batch; its input is validated after the response."""
        body = await read_json_body(scope, receive, _BODY_BYTES)
        request, ignored = parse(BatchRequest, body)
        now = int(self._batches.clock.stamp())
        principal = principal_of(scope)
        await self._check_room(principal, request)
        values = _values(request, now, self._batches.limits.window, principal)

        def add(connection: Connection) -> BatchRow:
            # In the transaction that adds the batch: from then on the input cannot be deleted.
            _check_input(connection, principal.tenant, request.input_file_id)
            return records.add(connection, values)

        self._batches.cap.reserve(principal.tenant)
        try:
            row = await self._batches.database.write(add)
        except BaseException:
            self._batches.cap.release(principal.tenant)
            raise
        self._batches.start_batch(principal.tenant, row.id)
        await send_json(send, records.shown(row), headers=ignored_header(ignored))

    async def _check_room(self, principal: Principal, request: BatchRequest) -> None:
        """Refuse a batch whose results would not fit; a missing input is reported later."""
        room, file_id = self._batches.room, request.input_file_id
        row_bytes = BATCH_BYTES + len(encode_json(request.metadata))
        await room.check(principal, row_bytes)
        size = await self._batches.database.read(
            lambda connection: file_records.size(connection, principal.tenant, file_id)
        )
        await room.check_batch(principal, size)


class BatchList:
    """``GET /v1/batches``."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List batches, newest first."""
        page = page_of(query_of(scope), default=_DEFAULT_LIMIT, most=_MOST)
        tenant = principal_of(scope).tenant
        rows = await self._batches.database.read(
            lambda connection: records.page(connection, tenant, page)
        )
        await send_json(send, listed([records.shown(row) for row in rows], page))


class BatchOne:
    """``GET /v1/batches/{batch_id}``."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Show a batch."""
        batch_id, tenant = scope["path_params"]["batch_id"], principal_of(scope).tenant
        row = await self._batches.database.read(
            lambda connection: records.find_of(connection, tenant, batch_id)
        )
        await send_json(send, records.shown(row))


class BatchCancel:
    """``POST /v1/batches/{batch_id}/cancel``."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancel a batch; it ends once its lines were stopped and results are in files."""
        batch_id, now = scope["path_params"]["batch_id"], self._batches.clock.stamp()
        tenant = principal_of(scope).tenant
        row = await self._batches.database.write(
            lambda connection: records.cancel(connection, tenant, batch_id, now)
        )
        self._batches.cancel(batch_id)
        await send_json(send, records.shown(row))


def _check_input(connection: Connection, tenant: str, file_id: str) -> None:
    purpose = file_records.find(connection, tenant, file_id, param="input_file_id").purpose
    if purpose != "batch":
        raise InvalidRequest(
            f"the file {file_id} has the purpose {purpose}; upload it with the purpose batch",
            param="input_file_id",
        )


def _values(request: BatchRequest, now: int, window: int, principal: Principal) -> dict[str, Any]:
    expiry = request.output_expires_after
    return {
        "id": new_id("batch_"),
        "tenant": principal.tenant,
        "key_id": principal.key_id,
        "created_at": now,
        "expires_at": now + window,
        "endpoint": request.endpoint,
        "input_file_id": request.input_file_id,
        "completion_window": request.completion_window,
        "metadata": request.metadata,
        "output_seconds": None if expiry is None else expiry.seconds,
    }
