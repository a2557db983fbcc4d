"""A valid key: the principals of its secrets, and the leases that end with each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from gatewayd.errors import Unauthorized
from gatewayd.tenants.account import TenantAccount
from gatewayd.tenants.principal import Lease, Principal, expired, revoked, rotated


class LiveKey:
    """Built from a key's row whenever that has changed; leases carry over to the next instance.

    Each secret has a lease: what was started with an old secret ends with it. What runs with the
    key's rights regardless of the secret, such as batch lines, has the lease of the key itself.

    Args:
        row: row of the key, which is not revoked.
        account: account of its tenant.
        before: the key before the change of its row; None for a new one.

    Attributes:
        tenant: tenant of the key.
    """

    __slots__ = ("_digest", "_expires_at", "_old_digest", "_old_until", "_principals", "tenant")

    def __init__(self, row: Row[Any], account: TenantAccount, before: LiveKey | None) -> None:
        self.tenant: str = row.tenant
        self._digest: bytes = row.digest
        self._old_digest: bytes | None = row.old_digest
        self._old_until: int = row.old_until or 0
        self._expires_at: int | None = row.expires_at
        known = {} if before is None else before._leases
        # None stands for the key itself.
        secrets = {None: None, self._digest: None, self._old_digest: None}
        self._principals = {
            digest: Principal(
                tenant=row.tenant,
                scopes=frozenset(row.scopes),
                key_id=row.id,
                # The same lease object as before the change: running requests hold it.
                lease=known.get(digest) or Lease(),
                account=account,
            )
            for digest in secrets
        }

    @property
    def _leases(self) -> dict[bytes | None, Lease]:
        return {at: one.lease for at, one in self._principals.items() if one.lease is not None}

    def digests(self, now: float) -> tuple[bytes, ...]:
        """Digests of the secrets that are valid at a time."""
        if self._old_digest is not None and now < self._old_until:
            return self._digest, self._old_digest
        return (self._digest,)

    def principal(self, now: float, digest: bytes | None = None) -> Principal:
        """The principal of a valid secret; without one, of work that belongs to the key itself.

        Raises:
            Unauthorized: the key has expired.
        """
        if self._expires_at is not None and self._expires_at <= now:
            raise expired()
        found = self._principals[digest]
        if found.lease is not None and found.lease.is_over:
            # The clock was beyond the end of the lease, and was set back.
            found = self._principals[digest] = replace(found, lease=Lease())
        return found

    def next_end(self, now: float) -> float:
        """When the key or its old secret ends next, Unix time; infinite if neither does."""
        # Only later ones: what is over was ended when its time came.
        times = (self._expires_at, None if self._old_digest is None else self._old_until)
        return min([at for at in times if at is not None and at > now], default=math.inf)

    def end_expired(self, now: float) -> None:
        """End the leases of the key or secret that has expired at this time."""
        if self._expires_at is not None and self._expires_at <= now:
            self._end(expired)
        # If the key itself has expired, this lease has ended with it.
        elif self._old_digest is not None and self._old_until <= now:
            self._leases[self._old_digest].end(rotated)

    def hand_over_leases(self, later: LiveKey | None) -> None:
        """Hand over to the key's next instance, or None if it was revoked; end other leases."""
        if later is None:
            self._end(revoked)
            return
        leases = self._leases
        # The next instance has the lease objects of all secrets that are still valid.
        for digest in leases.keys() - later._principals.keys():
            leases[digest].end(rotated)

    def _end(self, why: Callable[[], Unauthorized]) -> None:
        for lease in self._leases.values():
            lease.end(why)
