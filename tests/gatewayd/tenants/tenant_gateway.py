"""Gateway with tenants that a test makes, over a fake fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Connection, Table, func, select

from gatewayd.daemon.resources import PersistentResources
from gatewayd.store.tables import budgets, reservations, usage
from gatewayd.tenants.actions import action_of, body_of
from gatewayd.tenants.billing import budget_ledger_sql
from gatewayd.tenants.billing.costs import LedgerEntry
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, Script
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.store_fixtures import opened


@dataclass
class Town:
    """A gateway, its store, and what an operator does there."""

    gateway: Gateway
    durable: PersistentResources

    async def act(self, method: str, path: str, body: object = None, **query: str) -> Any:
        action, params = action_of(method, path)
        return await self.durable.tenancy.act(
            action, {**params, **query}, body_of(action, body), "a test"
        )

    async def tenant(self, name: str, **terms: object) -> None:
        await self.act("POST", "/admin/tenants", {"tenant": name, "terms": terms})

    async def key(self, tenant: str, **fields: object) -> str:
        made = await self.act("POST", "/admin/keys", {"tenant": tenant, **fields})
        secret: str = made["secret"]
        return secret

    async def revoke(self, key: str) -> None:
        await self.act("DELETE", f"/admin/keys/{key.split('_')[1]}")

    async def post(
        self, path: str, key: str, body: Mapping[str, object], **more: Any
    ) -> httpx.Response:
        return await self.gateway.http.post(path, json=dict(body), headers=bearer(key), **more)

    async def rows(self, table: Table) -> list[dict[str, Any]]:
        await self.durable.tenancy.ledger.flush()
        found = await self.durable.database.read(lambda c: c.execute(select(table)).all())
        return [dict(row._mapping) for row in found]

    async def budget(self, tenant: str) -> dict[str, Any]:
        (row,) = [row for row in await self.rows(budgets) if row["tenant"] == tenant]
        return row

    async def check_books(self) -> None:
        """Used is the sum of usage, reserved that of reservations, for every tenant."""
        await self.durable.tenancy.ledger.flush()
        await self.durable.database.read(check_books)


SECRET = ServerSecret(bytes(32))
"""For tables without a daemon."""


def reserve_one(connection: Connection, entry: LedgerEntry, secret: ServerSecret = SECRET) -> None:
    """Reserve for one request; raises why it is refused."""
    (refusal,) = budget_ledger_sql.reserve(connection, [entry], secret)
    if refusal is not None:
        raise refusal


def check_books(connection: Any) -> None:
    """Of the budget's period; what was not reserved counts when it came."""
    tokens = usage.c.prompt_tokens + usage.c.completion_tokens
    for row in connection.execute(select(budgets)).all():
        used = connection.execute(
            select(
                func.coalesce(func.sum(tokens), 0), func.coalesce(func.sum(usage.c.micros), 0)
            ).where(usage.c.tenant == row.tenant, usage.c.created_at >= row.period_begin)
        ).one()
        assert tuple(used) == (row.used_tokens, row.used_micros), row
        held = connection.execute(
            select(
                func.coalesce(func.sum(reservations.c.tokens), 0),
                func.coalesce(func.sum(reservations.c.micros), 0),
            ).where(
                reservations.c.tenant == row.tenant,
                reservations.c.period_begin == row.period_begin,
            )
        ).one()
        assert tuple(held) == (row.reserved_tokens, row.reserved_micros), row


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def town(text: TextModel, folder: Path, script: Script, **more: Any) -> AsyncIterator[Town]:
    with opened(folder) as durable:
        async with running(text, FakeFleet(script), durable=durable, **more) as gateway:
            yield Town(gateway, durable)
