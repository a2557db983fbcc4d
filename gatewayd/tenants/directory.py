"""All tenants and keys in memory, so that no request reads the database before it is let in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Row

from gatewayd.errors import Unauthorized
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd.tenants.account import Account, Terms
from gatewayd.tenants.grants import grant_of
from gatewayd.tenants.keys import is_one_of, parsed
from gatewayd.tenants.ledger import Ledger
from gatewayd.tenants.limits import Limits
from gatewayd.tenants.prices import Price
from gatewayd.tenants.principal import OPERATOR, Lease, Principal, revoked
from gatewayd.tenants.quotas import quota_of
from gatewayd.tenants.records import Everything
from gatewayd.tenants.secret import Secret
from gatewayd_engine.messages import TenantQuota


class _Key:
    """A key's row, and who comes with it."""

    __slots__ = ("digest", "expires_at", "old_digest", "old_until", "principal")

    def __init__(self, row: Row[Any], account: Account, lease: Lease) -> None:
        self.digest: bytes = row.digest
        self.old_digest: bytes | None = row.old_digest
        self.old_until: int = row.old_until or 0
        self.expires_at: int | None = row.expires_at
        self.principal = Principal(
            tenant=row.tenant,
            scopes=frozenset(row.scopes),
            key_id=row.id,
            lease=lease,
            account=account,
        )

    def digests(self, now: float) -> tuple[bytes, ...]:
        if self.old_digest is not None and now < self.old_until:
            return self.digest, self.old_digest
        return (self.digest,)


class Directory:
    """Who may come in.

    Attributes:
        operator: who comes with the configured key, or where there are none.
        has_keys: whether there is or ever was a key: without one is nobody let in any more.

    Args:
        secret: the server's.
        ledger: of what is used.
        wall: Unix time, by which keys expire.
        believed: the same, by which budgets count.
    """

    def __init__(
        self,
        secret: Secret,
        ledger: Ledger,
        wall: Callable[[], float] = time.time,
        believed: Callable[[], float] = time.time,
    ) -> None:
        self.operator = OPERATOR
        self.has_keys = False
        self._secret = secret
        self._ledger = ledger
        self._wall, self._believed = wall, believed
        self._keys: Mapping[str, _Key] = {}
        self._accounts: dict[str, Account] = {}
        self._quotas: list[TenantQuota] = []
        self._tell_quotas: Callable[[list[TenantQuota]], None] | None = None

    def watch_quotas(self, tell: Callable[[list[TenantQuota]], None]) -> None:
        """Tell what tenants are promised of the KV cache, if any are, and whenever it changes."""
        self._tell_quotas = tell
        if self._quotas:
            tell(self._quotas)

    def load(self, everything: Everything) -> None:
        """Take in what the store has now; whatever runs with a key that is gone ends."""
        prices = {row.model: Price(row.input, row.cached, row.output) for row in everything.prices}
        terms = {row.id: _terms(row) for row in everything.tenants}
        for name, promised in terms.items():
            account = self._accounts.get(name)
            if account is None:
                salt = b"" if name == DEFAULT_TENANT else self._secret.salt(name)
                account = self._accounts[name] = Account(
                    name, promised, self._ledger, salt, believed=self._believed
                )
            account.change(promised, prices)
        live = {
            row.id: self._made(row)
            for row in everything.keys
            if row.revoked_at is None and row.tenant in terms
        }
        gone = [self._keys[key_id] for key_id in self._keys.keys() - live.keys()]
        self._keys, self.has_keys = live, bool(everything.keys)
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
        for key in gone:
            if key.principal.lease is not None:
                key.principal.lease.end()

    def _made(self, row: Row[Any]) -> _Key:
        before = self._keys.get(row.id)
        lease = before.principal.lease if before is not None else None
        return _Key(row, self._accounts[row.tenant], lease or Lease())

    def authenticate(self, given: bytes) -> Principal:
        """Who has a key.

        Raises:
            Unauthorized: nobody, or it is over.
        """
        form = parsed(given)
        key_id, secret = form or ("", given)
        key, now = self._keys.get(key_id), self._wall()
        digests = () if key is None else key.digests(now)
        if not is_one_of(self._secret, secret, digests) or key is None:
            raise Unauthorized("the API key is not valid")
        if key.expires_at is not None and key.expires_at <= now:
            raise Unauthorized("the API key has expired", code="key_expired")
        return key.principal

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
        if key is None or key.principal.tenant != tenant:
            raise revoked()
        if key.expires_at is not None and key.expires_at <= self._wall():
            raise Unauthorized("the API key has expired", code="key_expired")
        return key.principal


def _terms(row: Row[Any]) -> Terms:
    return Terms(
        Limits(row.requests_per_minute, row.tokens_per_minute, row.concurrency),
        row.most_tokens is not None,
        row.most_micros is not None,
        row.weight,
        quota_of(row),
        grant_of(row),
    )
