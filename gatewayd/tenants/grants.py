"""Rights of a tenant beyond the default: class of service and cache retention."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Row

from gatewayd_hooks.caching import NORMAL_PRIORITY
from gatewayd_hooks.scheduling import Priority

CLASSES = {
    "realtime": Priority.REALTIME,
    "standard": Priority.STANDARD,
    "batch": Priority.BATCH,
}
"""Classes of service by name, the most urgent first."""
MOST_SECONDS = 86_400
"""Maximum of a cache retention, for anyone."""


class Grant(NamedTuple):
    """The rights of a tenant; the defaults are those of every tenant.

    Attributes:
        service_class: the most urgent class.
        retention_priority: the highest eviction priority; up to the usual one needs no grant.
        retention_seconds: maximum duration of a higher one.
    """

    service_class: Priority = Priority.STANDARD
    retention_priority: int = NORMAL_PRIORITY
    retention_seconds: int = MOST_SECONDS

    def keeps(self, priority: int, seconds: float) -> bool:
        """Whether a cache retention is granted; up to the usual priority it always is."""
        # It takes nothing from others, for however long.
        if priority <= NORMAL_PRIORITY:
            return True
        return priority <= self.retention_priority and seconds <= self.retention_seconds


def grant_of(row: Row[Any]) -> Grant:
    """The rights in a tenant's row; NULL means the default."""
    usual = Grant()
    priority, seconds = row.retention_priority, row.retention_seconds
    return Grant(
        usual.service_class if row.service_class is None else CLASSES[row.service_class],
        usual.retention_priority if priority is None else priority,
        usual.retention_seconds if seconds is None else seconds,
    )
