"""A cap on a tenant's unfinished objects of one kind, such as open batches."""

from __future__ import annotations

from collections import Counter

from gatewayd.errors import TenantNotAdmitted


class TenantCap:
    """Counts objects from before their creation until their end.

    Attributes:
        num_refused: objects refused since the start.

    Args:
        most: maximum per tenant.
        message: message for the client, with the fields ``held`` and ``most``.
        reason: reason in the error.
        retry_after: seconds, for the error.
    """

    def __init__(self, most: int, message: str, *, reason: str, retry_after: float) -> None:
        self._most = most
        self._message = message
        self._reason = reason
        self._retry_after = retry_after
        self._held = Counter[str]()
        self.num_refused = 0

    def reserve(self, tenant: str) -> None:
        """Count an object that is about to be created, until ``release``.

        Raises:
            TenantNotAdmitted: the tenant has reached the cap.
        """
        # No await between check and count, or two requests might both be the last one.
        held = self._held[tenant]
        if held >= self._most:
            self.num_refused += 1
            raise TenantNotAdmitted(
                self._message.format(held=held, most=self._most),
                reason=self._reason,
                retry_after=self._retry_after,
            )
        self.count(tenant)

    def count(self, tenant: str) -> None:
        """Count an existing object, regardless of the cap."""
        self._held[tenant] += 1

    def release(self, tenant: str) -> None:
        """Stop counting an object that was not created, or has ended."""
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
