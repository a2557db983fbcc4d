"""A key that is good now: who comes with each of its secrets, and what ends with which of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from gatewayd.errors import Unauthorized
from gatewayd.tenants.account import Account
from gatewayd.tenants.principal import Lease, Principal, expired, revoked, rotated


class LiveKey:
    """Made from its row, whenever that has changed; what runs with it goes on from one to the next.

    Each secret has a lease: what was begun with the old one ends with that. What goes on with the
    key's rights whichever secret began it, as the lines of a batch, has the key's own.

    Args:
        row: of the key, which is not revoked.
        account: of its tenant.
        before: the same key before its row has changed; None for a new one.

    Attributes:
        tenant: whose it is.
    """

    __slots__ = ("_digest", "_expires_at", "_old_digest", "_old_until", "_principals", "tenant")

    def __init__(self, row: Row[Any], account: Account, before: LiveKey | None) -> None:
        self.tenant: str = row.tenant
        self._digest: bytes = row.digest
        self._old_digest: bytes | None = row.old_digest
        self._old_until: int = row.old_until or 0
        self._expires_at: int | None = row.expires_at
        known = {} if before is None else before._leases
        # The key's own is that of no secret.
        secrets = {None: None, self._digest: None, self._old_digest: None}
        self._principals = {
            digest: Principal(
                tenant=row.tenant,
                scopes=frozenset(row.scopes),
                key_id=row.id,
                lease=known.get(digest) or Lease(),
                account=account,
            )
            for digest in secrets
        }

    @property
    def _leases(self) -> dict[bytes | None, Lease]:
        return {at: one.lease for at, one in self._principals.items() if one.lease is not None}

    def digests(self, now: float) -> tuple[bytes, ...]:
        """Of the secrets that are good at a time."""
        if self._old_digest is not None and now < self._old_until:
            return self._digest, self._old_digest
        return (self._digest,)

    def principal(self, now: float, digest: bytes | None = None) -> Principal:
        """Who comes with a secret that is good now; without one, whatever the key has begun.

        Raises:
            Unauthorized: its time is over.
        """
        if self._expires_at is not None and self._expires_at <= now:
            raise expired()
        found = self._principals[digest]
        if found.lease is not None and found.lease.is_over:
            # The clock was beyond its end, and was put back.
            found = self._principals[digest] = replace(found, lease=Lease())
        return found

    def next_end(self, now: float) -> float:
        """When it or a secret of it is over, Unix time; infinite for never, or if all are."""
        times = (self._expires_at, None if self._old_digest is None else self._old_until)
        return min([at for at in times if at is not None and at > now], default=math.inf)

    def end_what_is_over(self, now: float) -> None:
        """End what runs with what is good no more by this time."""
        if self._expires_at is not None and self._expires_at <= now:
            self._end(expired)
        elif self._old_digest is not None and self._old_until <= now:
            self._leases[self._old_digest].end(rotated)

    def give_way(self, later: LiveKey | None) -> None:
        """It is as another row says now, or gone: end what does not go on."""
        if later is None:
            self._end(revoked)
            return
        leases = self._leases
        for digest in leases.keys() - later._principals.keys():
            leases[digest].end(rotated)

    def _end(self, why: Callable[[], Unauthorized]) -> None:
        for lease in self._leases.values():
            lease.end(why)
