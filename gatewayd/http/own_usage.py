"""``GET /v1/gateway/usage``: usage, limits and remaining budget of the key's own tenant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Receive, Scope, Send, send_json
from gatewayd.http.query import query_of
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import DiskQuota
from gatewayd.tenants import records
from gatewayd.tenants.billing.budget_periods import current
from gatewayd.tenants.billing.periods import begin_of, end_of
from gatewayd.tenants.billing.usage import summed
from gatewayd.tenants.principal import Principal, principal_of

_DIGITS = 12
"""Maximum digits of a Unix time."""


class OwnUsage:
    """Route of a tenant's own usage.

    Args:
        database: of the store.
        room: disk quota of the store.
        believed: returns the Unix time by which budget periods are determined.
    """

    def __init__(self, database: Database, room: DiskQuota, believed: Callable[[], float]) -> None:
        self._database = database
        self._room = room
        self._believed = believed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        principal, now = principal_of(scope), self._believed()
        since = _since(query_of(scope))
        answer = await self._database.read(lambda c: _answer(c, principal, since, now))
        await send_json(send, {**answer, "store": await self._room.usage_of(principal)})


def _answer(
    connection: Connection, principal: Principal, since: int | None, now: float
) -> dict[str, Any]:
    row = current(records.tenant(connection, principal.tenant), now)
    period = row["budget_period"]
    begin = begin_of(period, now) if since is None else since
    models = summed(connection, by="model", tenant=principal.tenant, since=begin)
    for one in models:
        del one["tenant"]
    return {
        "object": "usage",
        "tenant": principal.tenant,
        "since": begin,
        "models": models,
        "limits": {} if principal.account is None else principal.account.limit_status(),
        "budget": {
            "period": period,
            "ends_at": None if period is None else end_of(period, now),
            "tokens": _amounts(row, "tokens"),
            "micros": _amounts(row, "micros"),
        },
    }


def _amounts(row: Mapping[str, Any], unit: str) -> dict[str, int] | None:
    """Return limit, usage and remainder of a budget; None without one."""
    most, used, reserved = (row[f"{name}_{unit}"] for name in ("most", "used", "reserved"))
    if most is None:
        return None
    left = max(0, most - used - reserved)
    return {"limit": most, "used": used, "reserved": reserved, "remaining": left}


def _since(query: Mapping[str, str]) -> int | None:
    text = query.get("since")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise InvalidRequest(
            f"since is {text[:32]!r}; it must be a Unix time in whole seconds", param="since"
        )
    return int(text)
