"""All tenants and keys in memory, so that no request reads the database before it is let in."""

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
from gatewayd.tenants.keys import parsed, place_among
from gatewayd.tenants.limits import TenantLimits
from gatewayd.tenants.live_key import LiveKey
from gatewayd.tenants.principal import OPERATOR, Principal, revoked
from gatewayd.tenants.quotas import quota_of
from gatewayd.tenants.records import Everything
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd_engine.process.messages import TenantQuota

_LOOK_SECONDS = 10.0
"""The wall clock may be set while a timer runs that is not."""


class Decisive(NamedTuple):
    """What of the store decides who may do what: not what was used, which changes all the time."""

    terms: dict[str, RequestTerms]
    keys: Sequence[Row[Any]]
    prices: Sequence[Row[Any]]
    doubted_prices: frozenset[str] = frozenset()


def decisive(everything: Everything) -> Decisive:
    """Find it; equal ones need no second ``load``."""
    terms = {row.id: _terms(row) for row in everything.tenants}
    return Decisive(terms, everything.keys, everything.prices, everything.doubted_prices)


class Directory:
    """Who may come in.

    Attributes:
        operator: who comes with the configured key, or where there are none.
        has_keys: whether there is or ever was a key: without one is nobody let in any more.

    Args:
        secret: the server's.
        ledger: of what is used.
        wall: Unix time, by which keys expire: also what runs with them, ten seconds late at most
            where it was set meanwhile.
        believed: the same, by which budgets count.
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
        self._must_look = False
        self._accounts: dict[str, TenantAccount] = {}
        self._quotas: list[TenantQuota] = []
        self._tell_quotas: Callable[[list[TenantQuota]], None] | None = None

    def watch_quotas(self, tell: Callable[[list[TenantQuota]], None]) -> None:
        """Tell what tenants are promised of the KV cache, if any are, and whenever it changes."""
        self._tell_quotas = tell
        if self._quotas:
            tell(self._quotas)

    def load(self, found: Decisive) -> None:
        """Take in what the store has now; whatever runs with a key that is gone ends."""
        known = {row.model: Price(row.input, row.cached, row.output) for row in found.prices}
        prices = Prices(known, found.doubted_prices)
        terms = found.terms
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
        before, self._keys, self.has_keys = self._keys, live, bool(found.keys)
        # Nobody counts what everybody uses, unless something was promised.
        counts = not terms[DEFAULT_TENANT].are_usual
        counted = Principal(
            tenant=DEFAULT_TENANT,
            scopes=OPERATOR.scopes,
            account=self._accounts[DEFAULT_TENANT],
        )
        self.operator = counted if counts else OPERATOR
        quotas = [one.quota for one in terms.values() if one.quota is not None]
        if quotas != self._quotas:
            self._quotas = quotas
            if self._tell_quotas is not None:
                self._tell_quotas(quotas)
        for key_id, key in before.items():
            key.give_way(live.get(key_id))
        self._look()

    def _made(self, row: Row[Any]) -> LiveKey:
        return LiveKey(row, self._accounts[row.tenant], self._keys.get(row.id))

    def _look(self) -> None:
        """End what is over by now, and come again when the next is: one timer for all keys."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._must_look = True  # before the start: whoever comes first sets the timer
            return
        if self._timer is not None:
            self._timer.cancel()
        now, self._timer, self._must_look = self._wall(), None, False
        soonest = min([key.next_end(now) for key in self._keys.values()], default=math.inf)
        if soonest < math.inf:
            seconds = min(soonest - now, _LOOK_SECONDS)
            self._timer = loop.call_later(seconds, self._look)
        for key in self._keys.values():
            key.end_what_is_over(now)

    def authenticate(self, given: bytes) -> Principal:
        """Who has a key.

        Raises:
            Unauthorized: nobody, or it is over.
        """
        form = parsed(given)
        key_id, secret = form or ("", given)
        key, now = self._keys.get(key_id), self._wall()
        digests = () if key is None else key.digests(now)
        place = place_among(self._secret, secret, digests)
        if place is None or key is None:
            raise Unauthorized("the API key is not valid")
        if self._must_look:
            self._look()
        return key.principal(now, digests[place])

    def has_account(self, tenant: str) -> bool:
        """Whether there is such a tenant, or was since the start."""
        return tenant in self._accounts

    def principal_of(self, tenant: str, key_id: str | None) -> Principal:
        """With whose rights something goes on that a tenant has begun.

        Raises:
            Unauthorized: its key is good no more.
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
