"""A memory budget for request bodies over all connections, shared between tenants.

Bodies up to ``FREE_BYTES`` are not counted: the limit on connections bounds them, and most requests
are smaller.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd.fairness.fair_queue import current_tenant
from gatewayd.fairness.shared_capacity import SharedCapacity

FREE_BYTES = 64 * 1024
_IN_SCOPE, _CLAIM = "gatewayd.bodies", "gatewayd.body"
_RETRY_SECONDS = 1.0

_Scope = MutableMapping[str, Any]
"""As in ``asgi``, which reads bodies and is above this."""


class Bodies:
    """Counts body bytes by tenant.

    Args:
        most: bytes of all bodies together.
    """

    def __init__(self, most: int) -> None:
        self._capacity = SharedCapacity(most)
        self.num_refused = 0
        """Requests refused, since the start."""

    @property
    def total(self) -> int:
        """Bytes held by all tenants."""
        return self._capacity.total

    def take(self, tenant: str, num_bytes: int) -> None:
        """Reserve bytes for a tenant.

        Raises:
            TenantNotAdmitted: the tenant's share is used up.
            NotAdmitted: others hold too much of the budget.
        """
        capacity = self._capacity
        if capacity.is_over_share(tenant, num_bytes):
            self.num_refused += 1
            if held := capacity.held(tenant):
                raise TenantNotAdmitted(
                    f"this tenant's bodies hold {held} bytes, and this one has {num_bytes}: "
                    f"its share of the {capacity.most} of [server] bodies_bytes is used up; try "
                    "again when one of them has been answered",
                    reason="bodies",
                    retry_after=_RETRY_SECONDS,
                )
            raise NotAdmitted(
                f"this body has {num_bytes} bytes, and {capacity.left} of the {capacity.most} of "
                "[server] bodies_bytes are left; try again later",
                reason="bodies",
                retry_after=_RETRY_SECONDS,
            )
        capacity.reserve(tenant, num_bytes)

    def give_back(self, tenant: str, num_bytes: int) -> None:
        """Release bytes of a tenant."""
        self._capacity.release(tenant, num_bytes)


class _Claim:
    """The bytes reserved for one request."""

    __slots__ = ("_bodies", "_num_bytes", "_tenant")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._tenant = current_tenant()
        self._num_bytes = 0

    def grow_to(self, num_bytes: int) -> None:
        if num_bytes > self._num_bytes:
            self._bodies.take(self._tenant, num_bytes - self._num_bytes)
            self._num_bytes = num_bytes

    def give_back(self) -> None:
        self._bodies.give_back(self._tenant, self._num_bytes)
        self._num_bytes = 0


def attach_body_budget(scope: _Scope, bodies: Bodies) -> None:
    """Count the body of a scope's request against ``bodies``."""
    scope[_IN_SCOPE] = bodies


def claim(scope: _Scope, num_bytes: int) -> None:
    """Reserve so many bytes in total for a request's body, until it is answered.

    Raises:
        NotAdmitted: the budget is used up.
    """
    held: _Claim | None = scope.get(_CLAIM)
    if held is None:
        bodies: Bodies | None = scope.get(_IN_SCOPE)
        if bodies is None:  # no gate: a test of one route
            return
        held = scope[_CLAIM] = _Claim(bodies)
    held.grow_to(num_bytes)


def give_back(scope: _Scope) -> None:
    """Release a request's bytes; it was answered."""
    held: _Claim | None = scope.get(_CLAIM)
    if held is not None:
        held.give_back()
