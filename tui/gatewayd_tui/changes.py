"""Changes of a running daemon that the console offers, as calls of the admin API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from gatewayd.wire.operations import EvictAnswer

_ActionT = TypeVar("_ActionT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Change:
    """Call of the admin API that changes the daemon.

    Attributes:
        title: description with its object: ``cancel request r-1``.
        method, route, body: of the admin API.
        destroys: whether it needs confirmation.
    """

    title: str
    method: str
    route: str
    body: object = None
    destroys: bool = False


def changing(action: _ActionT) -> _ActionT:
    """Mark an action of a screen that changes the daemon: ``--read-only`` hides and blocks it."""
    action.is_change = True  # type: ignore[attr-defined]
    return action


class Named(Protocol):
    """Row that refers to a request."""

    @property
    def id(self) -> str:
        """The ``x-request-id`` that the client knows; not necessarily unique."""
        ...

    @property
    def request_id(self) -> str:
        """The gateway's own unique id; empty if it is not reported."""
        ...


class Request(Named, Protocol):
    """Row of a request that can be changed."""

    @property
    def tenant(self) -> str:
        """Tenant of the request."""
        ...


def unique_id(row: Named) -> str:
    """Return the unique id of a request, if it is known."""
    return row.request_id or row.id


def has_id(row: Named, request: str) -> bool:
    """Whether one of the row's ids equals ``request``."""
    # Either one, since `x-request-id` is chosen by clients, and `request_id` may be missing.
    return request in (row.id, row.request_id)


def cancel(row: Request) -> Change:
    """Cancel a request."""
    title = f"cancel request {row.id}" + (f" of {row.tenant}" if row.tenant else "")
    return Change(title, "POST", _request(row, "cancel"), destroys=True)


def hold(row: Request) -> Change:
    """Hold a request: it makes no progress."""
    return Change(f"hold request {row.id}", "POST", _request(row, "hold"))


def release(row: Request) -> Change:
    """Release a held request."""
    return Change(f"release request {row.id}", "POST", _request(row, "release"))


def bump(row: Request, priority: str | None = None) -> Change:
    """Move a request to the front of its class, or to another class."""
    where = "to the front" if priority is None else f"to class {priority}"
    body = None if priority is None else {"priority": priority}
    return Change(f"bump request {row.id} {where}", "POST", _request(row, "bump"), body)


def pause(seconds: float | None = None) -> Change:
    """Pause admission of new requests."""
    title = "pause admission: new requests are refused"
    return Change(title, "POST", "/admin/pause", {"seconds": seconds}, destroys=True)


def resume() -> Change:
    """Resume admission."""
    return Change("resume admission", "POST", "/admin/resume")


def drain() -> Change:
    """Drain the daemon: finish its requests, then stop."""
    title = "drain the daemon: finish its requests, then stop"
    return Change(title, "POST", "/admin/drain", destroys=True)


def evict_tenant(tenant: str) -> Change:
    """Evict all cached pages of a tenant."""
    title = f"evict all cached pages of tenant {tenant}"
    return Change(title, "DELETE", f"/admin/prefixes?tenant={_part(tenant)}", destroys=True)


def reset_cache() -> Change:
    """Evict all cached pages."""
    title = "reset the prefix cache of all engines"
    return Change(title, "DELETE", "/admin/prefixes", destroys=True)


def pin_page(engine: int, page: int, seconds: float) -> Change:
    """Pin a cached page and its ancestors; 0 seconds unpin it."""
    what = f"page {page} of engine {engine} and its prefix"
    title = f"pin {what} for {seconds:g} s" if seconds else f"unpin {what}"
    return Change(title, "PUT", f"/admin/prefixes/{engine}/{page}/pin", {"seconds": seconds})


def evict_page(engine: int, page: int) -> Change:
    """Evict a cached page and its descendants."""
    title = f"evict page {page} of engine {engine} and its descendants"
    return Change(title, "DELETE", f"/admin/prefixes/{engine}/{page}", destroys=True)


def set_slo(priority: str, values: Mapping[str, Any]) -> Change:
    """Change the SLO targets of a class."""
    title = f"set SLO targets of class {priority}: {', '.join(values)}"
    return Change(title, "PATCH", "/admin/slo", {priority: dict(values)})


def create_tenant(body: Mapping[str, Any]) -> Change:
    """Add a tenant."""
    return Change(f"add tenant {body['tenant']}", "POST", "/admin/tenants", dict(body))


def change_tenant(tenant: str, terms: Mapping[str, Any]) -> Change:
    """Change the terms of a tenant (limits, budgets, rights)."""
    title = f"change tenant {tenant}: {', '.join(terms)}"
    return Change(title, "PATCH", f"/admin/tenants/{_part(tenant)}", dict(terms))


def create_key(body: Mapping[str, Any]) -> Change:
    """Create a key; its secret is in the answer."""
    return Change(f"create a key for tenant {body['tenant']}", "POST", "/admin/keys", dict(body))


def rotate_key(key: str, owner: str, body: Mapping[str, Any]) -> Change:
    """Replace the secret of a key; the new one is in the answer."""
    title = f"rotate the secret of key {key} of {owner}"
    return Change(title, "POST", f"/admin/keys/{_part(key)}/rotate", dict(body), destroys=True)


def revoke_key(key: str, owner: str) -> Change:
    """Revoke a key."""
    title = f"revoke key {key} of {owner} and cancel its requests"
    return Change(title, "DELETE", f"/admin/keys/{_part(key)}", destroys=True)


def eviction_message(answer: object) -> str | None:
    """Return the outcome of an eviction as a sentence; None for other answers."""
    try:
        found = msgspec.convert(answer, EvictAnswer)
    except msgspec.ValidationError:
        return None
    stay = f"; {found.in_use} are in use and stay" if found.in_use else ""
    return f"{found.pages} pages are free now{stay}"


def load_model(model: str) -> Change:
    """Load a model: start its engines."""
    return Change(f"load model {model}", "POST", f"/admin/models/{_part(model)}/load")


def unload_model(model: str) -> Change:
    """Unload a model: stop its engines."""
    title = f"unload model {model}: cancel its requests, refuse new ones"
    return Change(title, "POST", f"/admin/models/{_part(model)}/unload", destroys=True)


def swap(kind: str, name: str | list[str], settings: Mapping[str, Any]) -> Change:
    """Replace the strategy of a kind, or its chain of strategies."""
    shown = name if isinstance(name, str) else ", ".join(name) or "nothing"
    body = {"name": name, "settings": dict(settings)}
    return Change(f"set {kind} to {shown}", "PUT", f"/admin/strategies/{_part(kind)}", body)


def set_limits(values: Mapping[str, Any]) -> Change:
    """Change runtime limits of the daemon."""
    shown = ", ".join(f"{name} = {value}" for name, value in values.items())
    return Change(f"set {shown}", "PATCH", "/admin/limits", dict(values))


def _part(name: str) -> str:
    # Names of models may have slashes, which would name another route.
    return quote(name, safe="")


def _request(row: Request, verb: str) -> str:
    return f"/admin/requests/{quote(unique_id(row), safe='')}/{verb}"
