"""Tenants screen: tenants, their usage against limits, and their keys."""

from __future__ import annotations

import time
from typing import Any

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import DataTable

from gatewayd.wire.snapshot import TenantView
from gatewayd.wire.tenants import KeyBody, RotateBody, TenantBody, TenantTerms
from gatewayd_tui import queries
from gatewayd_tui.changes import (
    Change,
    change_tenant,
    changing,
    create_key,
    create_tenant,
    revoke_key,
    rotate_key,
)
from gatewayd_tui.client import AdminRefused, DaemonUnreachable
from gatewayd_tui.figures import count, duration, size
from gatewayd_tui.form_fields import as_typed, form_fields, nest
from gatewayd_tui.queries import Key
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.form import FormDialog
from gatewayd_tui.widgets.secret import Secret
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

_NEAR = 0.8
"""Share of a limit from which the usage is highlighted."""


def usage_cell(used: float, most: float | None, shown: str = "") -> Cell:
    """Format usage and limit: ``30/600``, marked from 80 % and from 100 % on."""
    text = shown or f"{count(used)}/{count(most)}"
    if most is None or used < _NEAR * most:
        return text
    return (f"{text}!", "bold red") if used >= most else (f"{text}^", "yellow")


def _money(row: TenantView) -> Cell:
    most = "-" if row.most_micros is None else as_typed("most_micros", row.most_micros)
    shown = f"{as_typed('used_micros', row.used_micros)}/{most}"
    return usage_cell(row.used_micros, row.most_micros, shown)


def _requests(row: TenantView) -> Cell:
    return usage_cell(row.requests, row.requests_per_minute)


def _tokens(row: TenantView) -> Cell:
    return usage_cell(row.tokens, row.tokens_per_minute)


def _budget(row: TenantView) -> Cell:
    # Reserved tokens count as used when a request is admitted.
    return usage_cell(row.used_tokens + row.reserved_tokens, row.most_tokens)


def _kept(row: TenantView) -> Cell:
    """Return the stored bytes; the limit decides the mark but is too long to be shown."""
    return usage_cell(row.kept_bytes, row.store_bytes, size(row.kept_bytes))


TENANTS: list[Column[TenantView]] = [
    Column("tenant", 0, lambda r: r.tenant, lambda r: r.tenant),
    Column("run", 4, lambda r: count(r.running), lambda r: r.running, True),
    Column("wait", 4, lambda r: count(r.waiting), lambda r: r.waiting, True),
    Column("active", 7, lambda r: usage_cell(r.running + r.waiting, r.concurrency), None, True),
    Column("req/min", 9, _requests, lambda r: r.requests, True),
    Column("tok/min", 11, _tokens, lambda r: r.tokens, True),
    Column("budget", 13, _budget, lambda r: r.used_tokens, True),
    Column("reserved", 8, lambda r: count(r.reserved_tokens), None, True, True),
    Column("money", 15, _money, lambda r: r.used_micros, True, True),
    Column("weight", 6, lambda r: f"{r.weight:g}", lambda r: r.weight, True, True),
    Column("stored", 10, _kept, lambda r: r.kept_bytes, True, True),
    Column("pages", 6, lambda r: count(r.pages), lambda r: r.pages, True),
]


def state_of(key: Key, now: float) -> Cell:
    """Return the state of a key: valid, rotating, expired or revoked."""
    if key.revoked_at is not None:
        return "✖ revoked", "red"
    if key.expires_at is not None and key.expires_at <= now:
        return "◌ expired", "dim"
    if key.old_until is not None and key.old_until > now:
        return "◐ rotating", "yellow"
    return "● valid", "green"


def _expiry(key: Key) -> Cell:
    if key.expires_at is None:
        return "never"
    left = key.expires_at - time.time()
    return f"in {duration(left)}" if left > 0 else f"{duration(-left)} ago"


def _last(key: Key) -> Cell:
    return "-" if key.last_at is None else f"{duration(max(0, time.time() - key.last_at))} ago"


KEYS: list[Column[Key]] = [
    Column("prefix", 16, lambda r: f"gw_{r.key}", lambda r: r.key),
    Column("name", 12, lambda r: r.name, lambda r: r.name),
    Column("state", 10, lambda r: state_of(r, time.time())),
    # Keys that never expire come last.
    Column("expires", 10, _expiry, lambda r: r.expires_at or 10**12),
    Column("last used", 10, _last, lambda r: -(r.last_at or 0)),
    Column("scopes", 0, lambda r: " ".join(r.scopes)),
]


class TenantsScreen(ConsoleScreen):
    """Tenants, and the keys of the tenant under the cursor."""

    NAME = "tenants"
    KEY = "7"
    TITLE = "Tenants"

    BINDINGS = [
        Binding("n", "tenant", "Tenant", id="tenants.new", tooltip="Add a tenant"),
        Binding("m", "limits", "Limits", id="tenants.limits", tooltip="Change limits and budget"),
        Binding("a", "key", "Key", id="tenants.key", tooltip="Create a key for this tenant"),
        Binding(
            "o", "rotate", "Rotate", id="tenants.rotate", tooltip="Replace the secret of a key"
        ),
        Binding("x", "revoke", "Revoke", id="tenants.revoke", tooltip="Revoke a key"),
        Binding("tab", "app.focus_next", "Next table", show=False, id="tenants.other"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Key] = []
        self._trouble = ""

    def body(self) -> ComposeResult:
        """Compose two tables."""
        yield LiveTable(TENANTS, self.id_of, id="tenants")
        yield LiveTable(KEYS, self.id_of, id="keys")

    def id_of(self, row: Any) -> str:  # noqa: ANN401 - a row of either table
        """Return the tenant's name, or the key's id."""
        return str(row.key if isinstance(row, Key) else row.tenant)

    @property
    def _tenants(self) -> LiveTable[TenantView]:
        return self.query_one("#tenants", LiveTable)

    @property
    def _key_table(self) -> LiveTable[Key]:
        return self.query_one("#keys", LiveTable)

    def on_screen_resume(self) -> None:
        """Reload the keys when the screen is opened."""
        super().on_screen_resume()
        self.look_up()

    def show(self, state: ConsoleState) -> None:
        """Update the tenants; keys are as of the last query."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        self._tenants.set_rows(state.snapshot.tenants)
        self._tenants.border_title = "tenants" if state.snapshot.tenants else "there is no tenant"
        self._show_keys()

    @work(exclusive=True, group="keys")
    async def look_up(self) -> None:
        """Reload the keys."""
        try:
            self._found = await queries.keys(self.console.calls, time.time())
        except (DaemonUnreachable, AdminRefused) as error:
            self._found, self._trouble = [], str(error)
        else:
            self._trouble = ""
        self._show_keys()

    @on(DataTable.RowHighlighted, "#tenants")
    def _show_keys(self) -> None:
        tenant = self._tenants.current()
        name = None if tenant is None else tenant.tenant
        # Filtered here: keys of all tenants come with one query.
        self._key_table.set_rows([key for key in self._found if key.tenant == name])
        title = self._trouble or ("keys" if name is None else f"keys of {name}")
        self._key_table.border_title = Content(title)

    def change_applied(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """Show a new secret, and reload the keys."""
        secret = answer.get("secret") if isinstance(answer, dict) else None
        # Only creating and rotating a key answer with a secret.
        if secret is not None:
            self.app.push_screen(Secret(f"The secret of key {answer['key']}", secret))
        self.look_up()

    @changing
    @work
    async def action_tenant(self) -> None:
        """Ask for name and limits, and add a tenant."""
        form = FormDialog("A new tenant", form_fields(TenantBody))
        values = await self.app.push_screen_wait(form)
        if values:
            self.submit_changes([create_tenant(nest(TenantBody, values))])

    @changing
    @work
    async def action_limits(self) -> None:
        """Ask for new limits of the tenant under the cursor."""
        tenant = self._tenants.current()
        if tenant is None:
            # Shows the usual message that no row is selected.
            self.submit_changes([])
            return
        try:
            terms = await queries.terms_of(self.console.calls, tenant.tenant)
        except (DaemonUnreachable, AdminRefused) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        form = FormDialog(f"Limits of tenant {tenant.tenant}", form_fields(TenantTerms, terms))
        values = await self.app.push_screen_wait(form)
        if values:
            self.submit_changes([change_tenant(tenant.tenant, values)])

    @changing
    @work
    async def action_key(self) -> None:
        """Ask for the details of a key, and create it; its secret is shown once."""
        tenant = self._tenants.current()
        asked = form_fields(KeyBody, None if tenant is None else {"tenant": tenant.tenant})
        values = await self.app.push_screen_wait(
            # The tenant is filled in, so that its name is the first question.
            FormDialog("A new key", asked, None if tenant is None else "name")
        )
        if values:
            self.submit_changes([create_key(values)])

    @changing
    @work
    async def action_rotate(self) -> None:
        """Ask how long the old secret stays valid, and rotate; the new one is shown once."""
        key = self._key_table.current()
        if key is None:
            self.submit_changes([])
            return
        form = FormDialog(f"Rotate the secret of key {key.key}", form_fields(RotateBody))
        values = await self.app.push_screen_wait(form)
        if values is not None:
            self.submit_changes([rotate_key(key.key, key.tenant, values)])

    @changing
    def action_revoke(self) -> None:
        """Revoke the chosen keys."""
        self.submit_changes([revoke_key(key.key, key.tenant) for key in self._key_table.chosen()])
