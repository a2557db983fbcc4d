"""Changes of tenants, keys and prices by operators: each audited in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from gatewayd.errors import InvalidRequest
from gatewayd.store.tables import keys, prices
from gatewayd.tenants import records
from gatewayd.tenants.billing.budget_periods import current
from gatewayd.tenants.keys import ApiKey, new_key
from gatewayd.tenants.principal import INFER, SCOPES, USUAL
from gatewayd.tenants.quotas import check_floors, kept_percent
from gatewayd.tenants.tamper_evidence import audit
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd.wire.tenants import EmptyBody, KeyBody, PriceBody, RotateBody, TenantBody, TenantTerms

Params = Mapping[str, str]


class TenantChanges(NamedTuple):
    """Context of a change: its transaction and actor.

    Attributes:
        connection: within a transaction.
        secret: the server's.
        head: the file with the head of the audit log.
        now: Unix time.
        actor: the operator who makes the change.
        believed: Unix time for budget periods; see ``Tenancy``.
    """

    connection: Connection
    secret: ServerSecret
    head: Path
    now: int
    actor: str
    believed: int

    def record(self, action: str, target: str, **detail: Any) -> None:  # noqa: ANN401 - JSON
        """Append a change to the audit log."""
        audit.append(
            self.connection,
            self.secret,
            at=self.now,
            actor=self.actor,
            action=action,
            target=target,
            detail=detail,
        )


def create_tenant(desk: TenantChanges, params: Params, body: TenantBody) -> dict[str, Any]:
    """Add a tenant."""
    values = msgspec.to_builtins(body.terms)
    # Before the change, since floors that exceed the maximum already may be lowered step by step.
    kept = kept_percent(desk.connection)
    records.add_tenant(desk.connection, body.tenant, desk.believed, values)
    check_floors(desk.connection, kept)
    desk.record("tenant.create", body.tenant, **values)
    return _tenant(desk, body.tenant)


def change_tenant(desk: TenantChanges, params: Params, body: TenantTerms) -> dict[str, Any]:
    """Change a tenant's limits, budget and weight."""
    values = msgspec.to_builtins(body)
    kept = kept_percent(desk.connection)
    records.change_tenant(desk.connection, desk.secret, params["tenant"], desk.believed, values)
    check_floors(desk.connection, kept)
    desk.record("tenant.set", params["tenant"], **values)
    return _tenant(desk, params["tenant"])


def remove_tenant(desk: TenantChanges, params: Params, body: EmptyBody) -> dict[str, Any]:
    """Remove a tenant with its keys and stored data."""
    records.remove_tenant(desk.connection, params["tenant"], desk.now)
    desk.record("tenant.remove", params["tenant"])
    return {"tenant": params["tenant"], "removed": True}


def create_key(desk: TenantChanges, params: Params, body: KeyBody) -> dict[str, Any]:
    """Create a key; the response is the only place that shows its secret."""
    scopes = list(USUAL) if body.scopes is None else body.scopes
    for scope in scopes:
        if scope not in SCOPES and not scope.removeprefix(f"{INFER}:") != scope:
            raise InvalidRequest(
                f"there is no scope {scope!r}; there are {', '.join(SCOPES)} and {INFER}:MODEL",
                param="scopes",
            )
    made = new_key()
    expires_at = None if body.seconds is None else desk.now + body.seconds
    values = {
        "id": made.id,
        "tenant": body.tenant,
        "name": body.name,
        "scopes": scopes,
        "created_at": desk.now,
        "expires_at": expires_at,
    }
    digest = desk.secret.digest(made.secret.encode())
    records.add_key(desk.connection, {**values, "digest": digest})
    desk.record("key.create", made.id, tenant=body.tenant, scopes=scopes, expires_at=expires_at)
    return _shown_once(desk, made)


def rotate_key(desk: TenantChanges, params: Params, body: RotateBody) -> dict[str, Any]:
    """Replace a key's secret."""
    row = records.key(desk.connection, params["key"])
    made = new_key(row.id)
    values = {
        "digest": desk.secret.digest(made.secret.encode()),
        # Without an overlap the old secret ends at once, and is not stored.
        "old_digest": row.digest if body.overlap_seconds else None,
        "old_until": desk.now + body.overlap_seconds if body.overlap_seconds else None,
    }
    records.change_key(desk.connection, row.id, values)
    desk.record("key.rotate", row.id, overlap_seconds=body.overlap_seconds)
    return _shown_once(desk, made)


def revoke_key(desk: TenantChanges, params: Params, body: EmptyBody) -> dict[str, Any]:
    """Revoke a key and cancel its requests."""
    records.change_key(desk.connection, params["key"], {"revoked_at": desk.now})
    desk.record("key.revoke", params["key"])
    return {"key": params["key"], "revoked": True}


def set_price(desk: TenantChanges, params: Params, body: PriceBody) -> dict[str, Any]:
    """Set the price of a model."""
    cached = body.input if body.cached is None else body.cached
    values = {"input": body.input, "cached": cached, "output": body.output}
    records.set_price(desk.connection, body.model, values)
    desk.record("price.set", body.model, **values)
    return {"model": body.model, **values}


def remove_price(desk: TenantChanges, params: Params, body: EmptyBody) -> dict[str, Any]:
    """Remove the price of a model."""
    records.remove_price(desk.connection, params["model"])
    desk.record("price.remove", params["model"])
    return {"model": params["model"], "removed": True}


def list_tenants(desk: TenantChanges, params: Params, body: EmptyBody) -> list[dict[str, Any]]:
    """List all tenants that are not removed."""
    return [_shown(desk, row) for row in records.read_access_rows(desk.connection).tenants]


def list_keys(desk: TenantChanges, params: Params, body: EmptyBody) -> list[dict[str, Any]]:
    """List all keys, revoked ones included, without their digests."""
    public = [c for c in keys.c if c.name not in ("digest", "old_digest")]
    rows = desk.connection.execute(select(*public).order_by(keys.c.created_at, keys.c.id))
    return [{"key": row.id, **_without(row, "id")} for row in rows]


def list_prices(desk: TenantChanges, params: Params, body: EmptyBody) -> list[dict[str, Any]]:
    """List the prices of all models that have one."""
    rows = desk.connection.execute(select(prices).order_by(prices.c.model))
    return [dict(row._mapping) for row in rows]


def _tenant(desk: TenantChanges, name: str) -> dict[str, Any]:
    return _shown(desk, records.tenant(desk.connection, name))


def _shown(desk: TenantChanges, row: Any) -> dict[str, Any]:  # noqa: ANN401 - a row
    values = current(row, desk.believed)
    del values["id"], values["removed_at"]
    return {"tenant": row.id, **values}


def _without(row: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401 - a row
    return {name: value for name, value in row._mapping.items() if name not in names}


def _shown_once(desk: TenantChanges, made: ApiKey) -> dict[str, Any]:
    row = records.key(desk.connection, made.id)
    public = _without(row, "id", "digest", "old_digest", "revoked_at")
    return {"key": made.id, "secret": made.text, **public}
