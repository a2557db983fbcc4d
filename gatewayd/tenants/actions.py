"""Tenant administration actions, as routes of the admin API and as commands.

With a running daemon they are sent over its socket, otherwise they work on its store directly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from gatewayd.errors import InvalidRequest, NotFound
from gatewayd.tenants import changes
from gatewayd.tenants.billing.usage import summed
from gatewayd.tenants.changes import Params, TenantChanges
from gatewayd.tenants.tamper_evidence import audit, integrity
from gatewayd.wire.tenants import EmptyBody, KeyBody, PriceBody, RotateBody, TenantBody, TenantTerms

_MOST_ROWS = 10_000


class TenantAction(NamedTuple):
    """An action on tenants, keys, prices, usage or the audit log.

    Attributes:
        method: HTTP method of its route.
        path: path of its route, with names of parameters in braces.
        body: type of the request body.
        run: the implementation; takes the ``TenantChanges``, parameters of path or query, and body.
    """

    method: str
    path: str
    body: type[Any]
    run: Callable[[TenantChanges, Params, Any], Any]

    @property
    def is_change(self) -> bool:
        """Whether the action writes."""
        return self.method != "GET"


def _usage(desk: TenantChanges, params: Params, body: EmptyBody) -> Any:  # noqa: ANN401 - JSON
    return summed(
        desk.connection,
        by=params.get("by", "tenant"),
        tenant=params.get("tenant"),
        since=_number(params, "since", 0),
    )


def _audit(desk: TenantChanges, params: Params, body: EmptyBody) -> Any:  # noqa: ANN401 - JSON
    most = min(_number(params, "limit", 100), _MOST_ROWS)
    # All of it, not only rows since the last verification.
    found = integrity.examine(desk.connection, desk.secret, desk.head).all
    if (head := params.get("head")) is not None and not _has(desk, head):
        found.insert(0, f"the audit has no row {head[:80]}: the store is an older one")
    return {
        "rows": [row._asdict() for row in audit.rows(desk.connection, most)],
        "head": str(audit.head_of(desk.connection)),
        "fault": "; ".join(found) or None,
        "faults": found,
    }


def _has(desk: TenantChanges, head: str) -> bool:
    """Whether the audit has a row with that number and seal."""
    seq, _, mac = head.partition(":")
    if not (seq.isascii() and seq.isdigit() and len(seq) < 16 and mac):
        raise InvalidRequest(
            f"head is {head[:80]!r}; it must be NUMBER:SEAL, as gatewayd audit and the log print",
            param="head",
        )
    return audit.has_row(desk.connection, audit.Head(int(seq), mac))


def _accept(desk: TenantChanges, params: Params, body: EmptyBody) -> Any:  # noqa: ANN401 - JSON
    told = integrity.accept(desk.connection, desk.secret, desk.head, desk.now, desk.actor)
    return {"accepted": told}


ACTIONS = (
    TenantAction("GET", "/admin/tenants", EmptyBody, changes.list_tenants),
    TenantAction("POST", "/admin/tenants", TenantBody, changes.create_tenant),
    TenantAction("PATCH", "/admin/tenants/{tenant}", TenantTerms, changes.change_tenant),
    TenantAction("DELETE", "/admin/tenants/{tenant}", EmptyBody, changes.remove_tenant),
    TenantAction("GET", "/admin/keys", EmptyBody, changes.list_keys),
    TenantAction("POST", "/admin/keys", KeyBody, changes.create_key),
    TenantAction("POST", "/admin/keys/{key}/rotate", RotateBody, changes.rotate_key),
    TenantAction("DELETE", "/admin/keys/{key}", EmptyBody, changes.revoke_key),
    TenantAction("GET", "/admin/prices", EmptyBody, changes.list_prices),
    TenantAction("PUT", "/admin/prices", PriceBody, changes.set_price),
    TenantAction("DELETE", "/admin/prices/{model:path}", EmptyBody, changes.remove_price),
    TenantAction("GET", "/admin/usage", EmptyBody, _usage),
    TenantAction("GET", "/admin/audit", EmptyBody, _audit),
    TenantAction("POST", "/admin/audit/accept", EmptyBody, _accept),
)


def action_of(method: str, path: str) -> tuple[TenantAction, dict[str, str]]:
    """Return the action of a route, with the parameters of its path.

    Raises:
        NotFound: there is no such route.
    """
    for action in ACTIONS:
        # Offline commands have no web framework that matches paths.
        pattern = re.sub(
            r"{(\w+)(:path)?}", lambda m: f"(?P<{m[1]}>{'.+' if m[2] else '[^/]+'})", action.path
        )
        found = re.fullmatch(pattern, path)
        if action.method == method and found is not None:
            return action, found.groupdict()
    raise NotFound(f"there is no {method} {path}")


def body_of(action: TenantAction, given: object) -> Any:  # noqa: ANN401 - a body's struct
    """Convert and validate a request body.

    Raises:
        InvalidRequest: it does not have the action's type.
    """
    try:
        return msgspec.convert({} if given is None else given, action.body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body is invalid: {error}") from error


def _number(params: Mapping[str, str], name: str, default: int) -> int:
    text = params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidRequest(f"{name} is {text[:32]!r}; it must be a whole number", param=name)
    return int(text)
