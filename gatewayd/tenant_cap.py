"""How many things of one kind a tenant may have that are not over."""

from __future__ import annotations

from collections import Counter

from gatewayd.errors import TenantNotAdmitted


class TenantCap:
    """Counts them from before they are made until they are over.

    Attributes:
        num_refused: since the start.

    Args:
        most: of a tenant.
        message: for the client, with the fields ``held`` and ``most``.
        reason: the word for why, in the error.
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
        """Count one that is about to be made, up to its ``give_up``.

        Raises:
            TenantNotAdmitted: there are as many as may be.
        """
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
        """Count one that is there already, however many there are."""
        self._held[tenant] += 1

    def give_up(self, tenant: str) -> None:
        """What was counted is not made, or is over."""
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
