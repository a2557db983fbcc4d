"""What ``/metrics`` shows of the store, as it was when last verified: within a minute."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.store.disk_quota import DiskQuota
from gatewayd.store.tenant_shares import StoredBytes
from gatewayd.tenants.tenancy import Tenancy


class StoreCollector(Collector):
    """Reads what is used."""

    def __init__(self, room: DiskQuota, tenancy: Tenancy) -> None:
        self._room = room
        self._tenancy = tenancy

    def collect(self) -> Iterator[Metric]:
        """Give all figures."""
        room = self._room
        used = GaugeMetricFamily("gatewayd_store_bytes", "What the store takes.", labels=["kind"])
        for kind in ("files", "database", "log"):
            used.add_metric([kind], getattr(room.used, kind))
        kept = GaugeMetricFamily(
            "gatewayd_store_kept_bytes",
            "What tenants keep, all together, with what each object takes beside its content.",
            labels=["kind"],
        )
        for kind in StoredBytes._fields:
            kept.add_metric([kind], sum(getattr(one, kind) for one in room.kept.values()))
        refusals = CounterMetricFamily(
            "gatewayd_store_refusals",
            "Files, batches and responses that found no room, by the setting.",
            labels=["reason"],
        )
        for reason, count in room.refusals.items():
            refusals.add_metric([reason], count)
        yield used
        yield kept
        yield GaugeMetricFamily(
            "gatewayd_store_largest_tenant_bytes",
            "What the tenant keeps that keeps most.",
            value=max((one.total for one in room.kept.values()), default=0),
        )
        yield GaugeMetricFamily(
            "gatewayd_store_limit_bytes", "What the store may take.", value=room.limit
        )
        yield GaugeMetricFamily(
            "gatewayd_store_free_bytes", "What its disk has left.", value=room.used.free
        )
        yield refusals
        yield GaugeMetricFamily(
            "gatewayd_audit_faults",
            "What is not as the daemon left it: the audit, tenants, keys, prices and budgets, and "
            "reservations as this start has found them.",
            value=self._tenancy.num_faults,
        )
