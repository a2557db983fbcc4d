"""In-memory directory of tenants and keys, so that authentication reads no database."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row

from gatewayd.errors import Unauthorized
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd.tenants.account import RequestTerms, TenantAccount
from gatewayd.tenants.billing.budget_ledger import BudgetLedger
from gatewayd.tenants.billing.prices import Price, Prices
from gatewayd.tenants.grants import grant_of
from gatewayd.tenants.keys import matching_digest, parsed
from gatewayd.tenants.limits import TenantLimits
from gatewayd.tenants.live_key import LiveKey
from gatewayd.tenants.principal import OPERATOR, Principal, revoked
from gatewayd.tenants.quotas import quota_of
from gatewayd.tenants.records import AccessRows
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd_engine.process.messages import TenantQuota

_LOOK_SECONDS = 10.0
"""The wall clock may be set while a timer runs on the monotonic clock."""


class AccessRules(NamedTuple):
    """The stored rows that decide about access; without usage, which changes all the time."""

    terms: dict[str, RequestTerms]
    keys: Sequence[Row[Any]]
    prices: Sequence[Row[Any]]
    doubted_prices: frozenset[str] = frozenset()


def access_rules(everything: AccessRows) -> AccessRules:
    """Extract the access rules; if they are equal, no second ``load`` is needed."""
    terms = {row.id: _terms(row) for row in everything.tenants}
    return AccessRules(terms, everything.keys, everything.prices, everything.doubted_prices)


class Directory:
    """Authenticates API keys and holds the tenants' accounts.

    Attributes:
        operator: the principal of the configured key, and of every client if there are no keys.
        has_keys: whether a key exists or ever existed: if so, requests without a key are refused.

    Args:
        secret: the server's.
        ledger: records usage.
        wall: Unix time for the expiry of keys and their running requests, at most ten seconds late
            if the clock was set.
        believed: Unix time for budget periods; see ``Tenancy``.
    """

    def __init__(
        self,
        secret: ServerSecret,
        ledger: BudgetLedger,
        wall: Callable[[], float] = time.time,
        believed: Callable[[], float] = time.time,
    ) -> None:
        self.operator = OPERATOR
        self.has_keys = False
        self._secret = secret
        self._ledger = ledger
        self._wall, self._believed = wall, believed
        self._keys: Mapping[str, LiveKey] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._must_schedule = False
        self._accounts: dict[str, TenantAccount] = {}
        self._quotas: list[TenantQuota] = []
        self._on_quotas: Callable[[list[TenantQuota]], None] | None = None

    def watch_quotas(self, tell: Callable[[list[TenantQuota]], None]) -> None:
        """Report KV-cache quotas, if there are any, and whenever they change."""
        self._on_quotas = tell
        if self._quotas:
            tell(self._quotas)

    @property
    def quotas(self) -> list[TenantQuota]:
        """KV-cache quotas of all tenants that have one."""
        return self._quotas

    def load(self, found: AccessRules) -> None:
        """Apply the stored rows; requests of keys that are gone are cancelled."""
        known = {row.model: Price(row.input, row.cached, row.output) for row in found.prices}
        prices = Prices(known, found.doubted_prices)
        terms = found.terms
        # Accounts are changed in place, since running requests hold them; none is removed.
        for name, promised in terms.items():
            account = self._accounts.get(name)
            if account is None:
                salt = b"" if name == DEFAULT_TENANT else self._secret.salt(name)
                account = self._accounts[name] = TenantAccount(
                    name, promised, self._ledger, salt, believed=self._believed
                )
            account.change(promised, prices)
        live = {
            row.id: self._made(row)
            for row in found.keys
            if row.revoked_at is None and row.tenant in terms
        }
        # Replaced as a whole, before leases end: a callback that looks finds the new keys.
        before, self._keys, self.has_keys = self._keys, live, bool(found.keys)
        # Requests without a key are not counted, unless the default tenant has limits.
        counts = not terms[DEFAULT_TENANT].are_unlimited
        counted = Principal(
            tenant=DEFAULT_TENANT,
            scopes=OPERATOR.scopes,
            account=self._accounts[DEFAULT_TENANT],
        )
        self.operator = counted if counts else OPERATOR
        quotas = [one.quota for one in terms.values() if one.quota is not None]
        if quotas != self._quotas:
            self._quotas = quotas
            if self._on_quotas is not None:
                self._on_quotas(quotas)
        # After the new state is complete, since callbacks run other code.
        for key_id, key in before.items():
            key.hand_over_leases(live.get(key_id))
        self._end_expired()

    def _made(self, row: Row[Any]) -> LiveKey:
        return LiveKey(row, self._accounts[row.tenant], self._keys.get(row.id))

    def _end_expired(self) -> None:
        """End expired leases and schedule the next expiry: one timer for all keys."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._must_schedule = (
                True  # before the loop runs: the first authentication sets the timer
            )
            return
        if self._timer is not None:
            self._timer.cancel()
        now, self._timer, self._must_schedule = self._wall(), None, False
        soonest = min([key.next_end(now) for key in self._keys.values()], default=math.inf)
        if soonest < math.inf:
            seconds = min(soonest - now, _LOOK_SECONDS)
            self._timer = loop.call_later(seconds, self._end_expired)
        for key in self._keys.values():
            key.end_expired(now)

    def authenticate(self, given: bytes) -> Principal:
        """Return the principal of an API key.

        Raises:
            Unauthorized: the key is unknown or has expired.
        """
        form = parsed(given)
        # Text that is no key is digested all the same: every refusal takes the same time.
        key_id, secret = form or ("", given)
        key, now = self._keys.get(key_id), self._wall()
        digests = () if key is None else key.digests(now)
        place = matching_digest(self._secret, secret, digests)
        if place is None or key is None:
            raise Unauthorized("the API key is not valid")
        # The first request runs on the loop, which did not run when keys were loaded.
        if self._must_schedule:
            self._end_expired()
        return key.principal(now, digests[place])

    def has_account(self, tenant: str) -> bool:
        """Whether the tenant exists, or existed since the start."""
        return tenant in self._accounts

    def principal_of(self, tenant: str, key_id: str | None) -> Principal:
        """Return the principal for continuing background work of a tenant.

        Raises:
            Unauthorized: its key is no longer valid.
        """
        if key_id is None and tenant == DEFAULT_TENANT:
            return self.operator
        key = self._keys.get(key_id or "")
        if key is None or key.tenant != tenant:
            raise revoked()
        return key.principal(self._wall())


def _terms(row: Row[Any]) -> RequestTerms:
    return RequestTerms(
        TenantLimits(row.requests_per_minute, row.tokens_per_minute, row.concurrency),
        row.most_tokens is not None,
        row.most_micros is not None,
        row.weight,
        quota_of(row),
        grant_of(row),
    )
