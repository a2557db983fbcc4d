"""Rows of tenants, keys and prices: queries and updates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.dialects import sqlite

from gatewayd.errors import Conflict, InvalidRequest, NotFound
from gatewayd.store.tables import (
    DEFAULT_TENANT,
    batches,
    budgets,
    files,
    kept,
    keys,
    prices,
    responses,
    tenants,
)
from gatewayd.tenants.billing import budget_periods
from gatewayd.tenants.billing.periods import begin_of
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
QUOTAS = ("kv_floor", "kv_ceiling")
RIGHTS = ("service_class", "retention_priority", "retention_seconds", "store_bytes")
LIMITS = ("weight", "requests_per_minute", "tokens_per_minute", "concurrency", *QUOTAS, *RIGHTS)
BUDGETS = ("most_tokens", "most_micros")
_OVER = ("failed", "completed", "expired", "cancelled")


class AccessRows(NamedTuple):
    """All rows that decide about access.

    Attributes:
        doubted_prices: models whose price was changed or removed from outside.
    """

    tenants: Sequence[Row[Any]]
    keys: Sequence[Row[Any]]
    prices: Sequence[Row[Any]]
    doubted_prices: frozenset[str] = frozenset()


def read_access_rows(connection: Connection) -> AccessRows:
    """Read the rows that decide about access."""
    return AccessRows(
        connection.execute(_with_budgets()).all(),
        connection.execute(select(keys)).all(),
        connection.execute(select(prices)).all(),
    )


def _with_budgets() -> Any:  # noqa: ANN401 - a select of many columns
    # `reserved_tags` changes with each reservation and decides nothing about access.
    amounts = [column for column in budgets.c if column.name not in ("tenant", "reserved_tags")]
    total = func.coalesce(kept.c.files + kept.c.responses + kept.c.batches, 0)
    return (
        select(tenants, *amounts, total.label("kept_bytes"))
        .join(budgets, budgets.c.tenant == tenants.c.id)
        .outerjoin(kept, kept.c.tenant == tenants.c.id)
        .where(tenants.c.removed_at.is_(None))
        .order_by(tenants.c.id)
    )


def tenant(connection: Connection, name: str) -> Row[Any]:
    """Return a tenant that is not removed, with its budget.

    Raises:
        NotFound: there is none.
    """
    found = connection.execute(_with_budgets().where(tenants.c.id == name)).one_or_none()
    if found is None:
        raise NotFound(f"there is no tenant {name[:64]!r}", param="tenant")
    row: Row[Any] = found
    return row


def add_tenant(connection: Connection, name: str, now: int, values: Mapping[str, Any]) -> None:
    """Add a tenant.

    Raises:
        InvalidRequest: the name is invalid.
        Conflict: there is, or was, one of that name.
    """
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"the tenant name {name[:64]!r} is invalid: use up to 64 of a-z, 0-9, dot, hyphen, "
            "underscore, starting with a letter or digit",
            param="tenant",
        )
    # Names of removed tenants stay taken: their usage rows would count for the new one.
    known = connection.execute(select(tenants.c.removed_at).where(tenants.c.id == name))
    if (row := known.one_or_none()) is not None:
        was = "there is a tenant" if row.removed_at is None else "there was a tenant"
        raise Conflict(f"{was} {name}; choose another name", param="tenant")
    connection.execute(insert(tenants).values(id=name, created_at=now, **_some(values, LIMITS)))
    period = values.get("budget_period")
    began = {"budget_period": period, "period_begin": begin_of(period, now)}
    connection.execute(insert(budgets).values(tenant=name, **began, **_some(values, BUDGETS)))


def change_tenant(
    connection: Connection, secret: ServerSecret, name: str, now: int, values: Mapping[str, Any]
) -> None:
    """Change limits and budgets; None removes one."""
    before = tenant(connection, name)
    if limits := _some(values, LIMITS):
        connection.execute(update(tenants).where(tenants.c.id == name).values(limits))
    if amounts := _some(values, BUDGETS):
        connection.execute(update(budgets).where(budgets.c.tenant == name).values(amounts))
    # After the limits: changing the period recomputes amounts from usage and reservations.
    if values.get("budget_period", before.budget_period) != before.budget_period:
        budget_periods.change_period(connection, secret, name, values["budget_period"], now)


def remove_tenant(connection: Connection, name: str, now: int) -> None:
    """Remove a tenant with all its resources; its usage records are kept.

    Raises:
        Conflict: it is the default tenant.
    """
    tenant(connection, name)
    if name == DEFAULT_TENANT:
        raise Conflict(
            f"the tenant {name} is the operator's own and cannot be removed", param="tenant"
        )
    # Tenants and keys are marked, never deleted: the audit relies on their number.
    connection.execute(update(tenants).where(tenants.c.id == name).values(removed_at=now))
    revoke = update(keys).where(keys.c.tenant == name, keys.c.revoked_at.is_(None))
    connection.execute(revoke.values(revoked_at=now))
    # Results of these are being written already, and a cancelled one ends by itself.
    live = batches.c.status.not_in((*_OVER, "finalizing", "cancelling"))
    stop = update(batches).where(batches.c.tenant == name, live)
    connection.execute(stop.values(status="cancelling", cancelling_at=now))
    # The sweep deletes their contents, once no batch reads them.
    connection.execute(update(files).where(files.c.tenant == name).values(expires_at=now))
    connection.execute(delete(responses).where(responses.c.tenant == name))


def key(connection: Connection, key_id: str) -> Row[Any]:
    """Return a key that is not revoked.

    Raises:
        NotFound: there is none.
    """
    query = select(keys).where(keys.c.id == key_id, keys.c.revoked_at.is_(None))
    found = connection.execute(query).one_or_none()
    if found is None:
        raise NotFound(f"there is no key {key_id[:32]!r}", param="key")
    return found


def add_key(connection: Connection, values: Mapping[str, Any]) -> None:
    """Add a key to an existing tenant."""
    tenant(connection, values["tenant"])
    connection.execute(insert(keys).values(values))


def change_key(connection: Connection, key_id: str, values: Mapping[str, Any]) -> None:
    """Change a key that is not revoked."""
    key(connection, key_id)
    connection.execute(update(keys).where(keys.c.id == key_id).values(values))


def set_price(connection: Connection, model: str, values: Mapping[str, int]) -> None:
    """Set the price of a model."""
    statement = sqlite.insert(prices).values(model=model, **values)
    connection.execute(statement.on_conflict_do_update(["model"], set_=dict(values)))


def remove_price(connection: Connection, model: str) -> None:
    """Remove the price of a model.

    Raises:
        NotFound: it has none.
    """
    if not connection.execute(delete(prices).where(prices.c.model == model)).rowcount:
        raise NotFound(f"the model {model[:128]!r} has no price", param="model")


def _some(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}
