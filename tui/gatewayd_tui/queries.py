"""Queries of the admin API for data that is not in snapshots, made when a screen shows it."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from gatewayd.wire.models import CatalogueView
from gatewayd.wire.plugins import PluginSettings, PluginView
from gatewayd.wire.requests import Explanation
from gatewayd.wire.snapshot import PrefixSummary
from gatewayd_tui.client import AdminRefused, Calls

_LISTED = 50
_PAGES = 200
USED_DAYS = 30
"""Period for which the last use of keys is looked up."""
FormT = TypeVar("FormT")


class FinishedRequest(msgspec.Struct, frozen=True):
    """Row of ``GET /admin/requests``."""

    id: str
    endpoint: str
    priority: str
    outcome: str
    arrived: float
    ms: float
    ttft_ms: float | None
    cause: str
    request_id: str = ""
    error: str = ""
    strategy: str = ""


class _PluginList(msgspec.Struct, frozen=True):
    plugins: list[PluginView]


class _Slot(msgspec.Struct, frozen=True):
    kind: str
    names: list[str]


class _SlotList(msgspec.Struct, frozen=True):
    slots: list[_Slot]


class _FinishedList(msgspec.Struct, frozen=True):
    requests: list[FinishedRequest]


class Key(msgspec.Struct, frozen=True):
    """Row of ``GET /admin/keys``; times are Unix times.

    Attributes:
        key: its id, the part of the key after ``gw_``.
        old_until: end of validity of the secret before the last rotation.
        last_at: last use within ``USED_DAYS``; from ``GET /admin/usage``.
    """

    key: str
    tenant: str
    name: str
    scopes: list[str]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    old_until: int | None = None
    last_at: int | None = None


class _Used(msgspec.Struct, frozen=True):
    key_id: str | None
    last_at: int


async def keys(source: Calls, now: float) -> list[Key]:
    """Return all keys with their last use, without secrets.

    Raises:
        DaemonUnreachable, AdminRefused: the query failed.
    """
    rows = _as(await source.call("GET", "/admin/keys"), list[Key])
    since = int(now) - USED_DAYS * 86_400
    # Keys do not record their use: it is the latest of their usage rows.
    used = _as(await source.call("GET", f"/admin/usage?by=key&since={since}"), list[_Used])
    last = {row.key_id: row.last_at for row in used}
    return [msgspec.structs.replace(row, last_at=last.get(row.key)) for row in rows]


async def terms_of(source: Calls, tenant: str) -> dict[str, Any]:
    """Return the terms of a tenant (limits, budgets, rights) as stored.

    Raises:
        DaemonUnreachable, AdminRefused: there is no such tenant, or no answer.
    """
    # The API has no route for one tenant.
    rows = _as(await source.call("GET", "/admin/tenants"), list[dict[str, Any]])
    for row in rows:
        if row.get("tenant") == tenant:
            return row
    raise AdminRefused(f"tenant {tenant} no longer exists")


async def prefixes(source: Calls, engine: int, parent: int | None) -> PrefixSummary:
    """Return the children of a cached page, or the roots if ``parent`` is None.

    Raises:
        DaemonUnreachable, AdminRefused: the query failed.
    """
    page = "" if parent is None else parent
    route = f"/admin/prefixes?engine={engine}&parent={page}&limit={_PAGES}"
    return _as(await source.call("GET", route), PrefixSummary)


async def plugins(source: Calls) -> list[PluginView]:
    """Return the plugins installed in the daemon's environment.

    Raises:
        DaemonUnreachable, AdminRefused: the query failed.
    """
    return _as(await source.call("GET", "/admin/plugins"), _PluginList).plugins


async def settings(source: Calls, kind: str, name: str) -> PluginSettings:
    """Return the settings of a strategy.

    Raises:
        DaemonUnreachable, AdminRefused: it is not installed, cannot be loaded, or no answer comes.
    """
    route = f"/admin/plugins/{quote(kind, safe='')}/{quote(name, safe='')}"
    return _as(await source.call("GET", route), PluginSettings)


async def active_strategies(source: Calls, kind: str) -> list[str]:
    """Return the active strategies of a kind, in order.

    Raises:
        DaemonUnreachable, AdminRefused: the query failed.
    """
    slots = _as(await source.call("GET", "/admin/strategies"), _SlotList).slots
    return next((slot.names for slot in slots if slot.kind == kind), [])


async def catalogue(source: Calls) -> CatalogueView:
    """Return all models of the daemon.

    Raises:
        DaemonUnreachable, AdminRefused: the query failed.
    """
    return _as(await source.call("GET", "/admin/models"), CatalogueView)


async def requests(source: Calls, order: str) -> list[FinishedRequest]:
    """Return the ``newest`` or the ``slowest`` recorded requests.

    Raises:
        DaemonUnreachable, AdminRefused: the query failed.
    """
    found = await source.call("GET", f"/admin/requests?order={order}&limit={_LISTED}")
    return _as(found, _FinishedList).requests


async def explanation_of(source: Calls, request: str) -> Explanation:
    """Return the latency breakdown of a finished request.

    Raises:
        DaemonUnreachable, AdminRefused: the request is unknown, or has not finished.
    """
    found = await source.call("GET", f"/admin/requests/{quote(request, safe='')}")
    return _as(found, Explanation)


def _as(found: object, form: type[FormT]) -> FormT:
    try:
        return msgspec.convert(found, form)
    except msgspec.ValidationError as error:
        raise AdminRefused(f"invalid response of the daemon: {error}") from error
