"""Tenants of a snapshot: stored terms and budgets, and present usage."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gatewayd.admin.snapshots.requests import RequestRows
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.tenants.actions import action_of
from gatewayd.tenants.tenancy import Tenancy
from gatewayd.wire.snapshot import MOST_ROWS, TenantView
from gatewayd.wire.tenants import EmptyBody

_log = logging.getLogger(__name__)
_FRESH_SECONDS = 1.0
_ACTOR = "the console"


class TenantRows:
    """Stored rows of tenants, read at most once a second, or for a new tenant, on demand.

    Args:
        tenancy: reads the rows.
        live: running requests, by tenant.
    """

    def __init__(self, tenancy: Tenancy, live: LiveRequests[Generation]) -> None:
        self._tenancy = tenancy
        self._live = live
        self._num_tenants = 0
        self._action, _ = action_of("GET", "/admin/tenants")
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._read_at = -_FRESH_SECONDS
        self._reading: asyncio.Task[None] | None = None

    def start_reading(self) -> asyncio.Task[None] | None:
        """Start reading if the rows are old; return the pending read, if any."""
        is_over = self._reading is None or self._reading.done()
        is_old = time.monotonic() - self._read_at >= _FRESH_SECONDS
        if is_over and (is_old or self._live.num_tenants != self._num_tenants):
            self._num_tenants = self._live.num_tenants
            self._reading = asyncio.create_task(self._read(), name="tenants of a snapshot")
        return None if self._reading is None or self._reading.done() else self._reading

    def views(self, rows: RequestRows, pages: Mapping[str, int]) -> tuple[list[TenantView], int]:
        """The busiest tenants, and the number of others.

        Args:
            rows: rows of requests.
            pages: pages in the KV pools, by tenant.
        """

        def busy(row: Mapping[str, Any]) -> tuple[int, int, int]:
            name = row["tenant"]
            return -rows.runs[name] - rows.waits[name], -pages.get(name, 0), -row["used_tokens"]

        # Selected by load but shown by name, so that rows keep their positions.
        shown = sorted(self._rows, key=busy)[:MOST_ROWS]
        found = [_view(row, rows, self._live, pages) for row in shown]
        return sorted(found, key=lambda one: one.tenant), len(self._rows) - len(shown)

    async def _read(self) -> None:
        try:
            self._rows = await self._tenancy.act(self._action, {}, EmptyBody(), _ACTOR)
        except Exception as error:  # noqa: BLE001 - the snapshot is useful without tenants
            _log.debug("cannot read tenants: %s", error)
        # Also after an error, so that a failing store is not read for every snapshot.
        self._read_at = time.monotonic()


def _view(
    row: Mapping[str, Any],
    rows: RequestRows,
    live: LiveRequests[Generation],
    pages: Mapping[str, int],
) -> TenantView:
    name = row["tenant"]
    requests, tokens = live.last_minute(name)
    return TenantView(
        tenant=name,
        weight=row["weight"],
        running=rows.runs[name],
        waiting=rows.waits[name],
        concurrency=row["concurrency"],
        requests=requests,
        requests_per_minute=row["requests_per_minute"],
        tokens=tokens,
        tokens_per_minute=row["tokens_per_minute"],
        used_tokens=row["used_tokens"],
        most_tokens=row["most_tokens"],
        reserved_tokens=row["reserved_tokens"],
        used_micros=row["used_micros"],
        most_micros=row["most_micros"],
        pages=pages.get(name, 0),
        kept_bytes=row["kept_bytes"],
        store_bytes=row["store_bytes"],
    )
