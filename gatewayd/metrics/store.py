"""Prometheus metrics of the store, as of its last check, at most a minute ago."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.store.disk_quota import DiskQuota
from gatewayd.store.tenant_shares import StoredBytes
from gatewayd.tenants.tenancy import Tenancy


class StoreCollector(Collector):
    """Prometheus collector of disk usage, limits and integrity faults."""

    def __init__(self, room: DiskQuota, tenancy: Tenancy) -> None:
        self._room = room
        self._tenancy = tenancy

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        room = self._room
        used = GaugeMetricFamily(
            "gatewayd_store_bytes", "Disk usage of the store in bytes.", labels=["kind"]
        )
        for kind in ("files", "database", "log"):
            used.add_metric([kind], getattr(room.used, kind))
        kept = GaugeMetricFamily(
            "gatewayd_store_kept_bytes",
            "Bytes stored by all tenants, including overhead per object.",
            labels=["kind"],
        )
        for kind in StoredBytes._fields:
            kept.add_metric([kind], sum(getattr(one, kind) for one in room.kept.values()))
        refusals = CounterMetricFamily(
            "gatewayd_store_refusals",
            "Files, batches and responses refused for lack of space, by the limiting setting.",
            labels=["reason"],
        )
        for reason, count in room.refusals.items():
            refusals.add_metric([reason], count)
        yield used
        yield kept
        yield GaugeMetricFamily(
            "gatewayd_store_largest_tenant_bytes",
            "Bytes stored by the tenant that stores most.",
            value=max((one.total for one in room.kept.values()), default=0),
        )
        yield GaugeMetricFamily(
            "gatewayd_store_limit_bytes", "Maximum size of the store in bytes.", value=room.limit
        )
        yield GaugeMetricFamily(
            "gatewayd_store_free_bytes",
            "Free bytes on the disk of the store.",
            value=room.used.free,
        )
        yield refusals
        yield GaugeMetricFamily(
            "gatewayd_audit_faults",
            "Integrity faults of the store: audit log, tenants, keys, prices and budgets, "
            "and of reservations at start.",
            value=self._tenancy.num_faults,
        )
