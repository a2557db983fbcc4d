"""What a tenant may ask for beyond the usual service: how urgent, and how long its cache stays."""

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
"""Classes of service by their names, the most urgent first."""
MOST_SECONDS = 86_400
"""Of a cache retention, whoever asks."""


class Grant(NamedTuple):
    """Of a tenant; what is left out is what every tenant has.

    Attributes:
        service_class: the most urgent one.
        retention_priority: the highest eviction priority; no higher than usual needs no grant.
        retention_seconds: for which a higher one may count.
    """

    service_class: Priority = Priority.STANDARD
    retention_priority: int = NORMAL_PRIORITY
    retention_seconds: int = MOST_SECONDS

    def keeps(self, priority: int, seconds: float) -> bool:
        """Whether a cache retention is granted; one of at most the usual priority always is."""
        if priority <= NORMAL_PRIORITY:
            return True
        return priority <= self.retention_priority and seconds <= self.retention_seconds


def grant_of(row: Row[Any]) -> Grant:
    """Of a tenant's row; what it does not say is the usual."""
    usual = Grant()
    priority, seconds = row.retention_priority, row.retention_seconds
    return Grant(
        usual.service_class if row.service_class is None else CLASSES[row.service_class],
        usual.retention_priority if priority is None else priority,
        usual.retention_seconds if seconds is None else seconds,
    )
