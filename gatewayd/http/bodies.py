"""Memory budget for request bodies of all connections, shared fairly between tenants.

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
_IN_SCOPE, _RESERVATION = "gatewayd.bodies", "gatewayd.body"
_RETRY_SECONDS = 1.0

_Scope = MutableMapping[str, Any]
"""As in ``asgi``, which reads bodies and imports this module."""


class BodyBudget:
    """Budget of body bytes, counted by tenant.

    Args:
        most: maximum bytes of all bodies together.
    """

    def __init__(self, most: int) -> None:
        self._capacity = SharedCapacity(most)
        self.num_refused = 0
        """Requests refused, since the start."""

    @property
    def total(self) -> int:
        """Bytes reserved by all tenants."""
        return self._capacity.total

    def reserve(self, tenant: str, num_bytes: int) -> None:
        """Reserve bytes for a tenant.

        Raises:
            TenantNotAdmitted: the tenant's share is used up.
            NotAdmitted: too much of the budget is reserved by other tenants.
        """
        capacity = self._capacity
        if capacity.is_over_share(tenant, num_bytes):
            self.num_refused += 1
            # 429 if the tenant's own bodies are the cause, else 503.
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

    def release(self, tenant: str, num_bytes: int) -> None:
        """Release bytes of a tenant."""
        self._capacity.release(tenant, num_bytes)


class _BodyReservation:
    """The bytes reserved for one request."""

    __slots__ = ("_bodies", "_num_bytes", "_tenant")

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        self._tenant = current_tenant()
        self._num_bytes = 0

    def grow_to(self, num_bytes: int) -> None:
        if num_bytes > self._num_bytes:
            self._bodies.reserve(self._tenant, num_bytes - self._num_bytes)
            self._num_bytes = num_bytes

    def release(self) -> None:
        self._bodies.release(self._tenant, self._num_bytes)
        self._num_bytes = 0


def attach_body_budget(scope: _Scope, bodies: BodyBudget) -> None:
    """Count the body of a scope's request against ``bodies``."""
    scope[_IN_SCOPE] = bodies


def reserve_body(scope: _Scope, num_bytes: int) -> None:
    """Reserve ``num_bytes`` in total for a request's body, until it is answered.

    Raises:
        NotAdmitted: the budget is used up.
    """
    reservation: _BodyReservation | None = scope.get(_RESERVATION)
    if reservation is None:
        bodies: BodyBudget | None = scope.get(_IN_SCOPE)
        if bodies is None:  # no gate: a test of one route
            return
        reservation = scope[_RESERVATION] = _BodyReservation(bodies)
    reservation.grow_to(num_bytes)


def release_body(scope: _Scope) -> None:
    """Release the bytes of an answered request."""
    reservation: _BodyReservation | None = scope.get(_RESERVATION)
    if reservation is not None:
        reservation.release()
