"""Builds snapshots of the daemon; see ``wire.snapshot``.

Engines are queried first, with a short timeout. Then everything is read synchronously, so that its
numbers are consistent. Only the metrics of ``/metrics`` may be older, if the caller accepts that.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gatewayd import __version__
from gatewayd.admin.control import Control
from gatewayd.admin.snapshots.engines import engine_view, state_of, strategy_view
from gatewayd.admin.snapshots.latency import LastMinute
from gatewayd.admin.snapshots.pages import kv_view, pages_by_tenant, sequence_reports
from gatewayd.admin.snapshots.requests import RequestRows
from gatewayd.admin.snapshots.samples import Collected
from gatewayd.admin.snapshots.tenants import TenantRows
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.inspection import PATIENCE_SECONDS
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.tenants.tenancy import Tenancy
from gatewayd.tracing.log_buffer import LogLines
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd.wire.snapshot import DaemonView, Snapshot
from gatewayd_engine.process.inspect_messages import Inspected


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Sources of snapshots.

    Attributes:
        url: base URL for clients.
        model: name of the model for clients.
        models: returns the names of all models.
        fleet: the engines.
        control: strategies and limits.
        registry: metrics of ``/metrics``.
        recent: timelines of ended requests.
        live: running requests.
        tenancy: the tenants.
        lines: lines of the log.
        began: ``time.monotonic`` when the daemon began to listen.
    """

    url: str
    model: str
    models: Callable[[], Sequence[str]]
    fleet: EngineFleet
    control: Control
    registry: CollectorRegistry
    recent: RecentLatencyRecords
    live: LiveRequests[Generation]
    tenancy: Tenancy
    lines: LogLines
    began: float = field(default_factory=time.monotonic)


STREAMED_SECONDS = 1.0
"""Maximum age of the samples of a streamed snapshot, which are its most expensive part."""


class Snapshots:
    """Builds snapshots, one at a time.

    Args:
        sources: their sources.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._numbers = itertools.count(1)
        self._latencies = LastMinute(sources.recent, sources.model)
        self._tenants = TenantRows(sources.tenancy, sources.live)
        self._making: asyncio.Task[Snapshot] | None = None
        self._collected: Collected | None = None
        self._samples_age = math.inf

    async def build(self, samples_age: float = 0.0) -> Snapshot:
        """Build a snapshot without log lines; concurrent callers share one.

        Args:
            samples_age: maximum age of the metrics, in seconds.
        """
        # Callers share a snapshot, so the strictest age counts.
        self._samples_age = min(self._samples_age, samples_age)
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._build(), name="snapshot")
        # A caller that is cancelled must not cancel the snapshot of the others.
        return await asyncio.shield(self._making)

    async def _build(self) -> Snapshot:
        said = await self._sources.fleet.inspection.inspect(PATIENCE_SECONDS)
        # A store that is slow shows the rows of its last read.
        if (reading := self._tenants.start_reading()) is not None:
            await asyncio.wait([reading], timeout=PATIENCE_SECONDS)
        return self._assemble(said)

    def _assemble(self, said: Mapping[int, Inspected]) -> Snapshot:
        # No await from here on, so that all figures are of one instant.
        sources, now = self._sources, time.monotonic()
        rows = RequestRows(sources.live, sequence_reports(said.values()), now)
        kv = [kv_view(engine, said[engine]) for engine in sorted(said)]
        collected = self._collect(now)
        tenants, more_tenants = self._tenants.views(rows, pages_by_tenant(kv))
        return Snapshot(
            number=next(self._numbers),
            unix=time.time(),
            daemon=self._daemon(now, collected.fault),
            engines=[engine_view(replica) for replica in sources.fleet.status()],
            latencies=self._latencies.views(now),
            waiting=rows.waiting,
            more_waiting=rows.more_waiting,
            running=rows.running,
            more_running=rows.more_running,
            kv=kv,
            slo=collected.slo,
            tenants=tenants,
            more_tenants=more_tenants,
            strategies=[strategy_view(engine, row) for engine, row in sources.control.costs()],
            limits={name: float(limit) for name, limit in sources.control.limits().items()},
            samples=collected.samples,
            samples_unix=collected.unix,
            logs=[],
        )

    def _collect(self, now: float) -> Collected:
        """The last collection, or a new one if a waiting caller wants a more recent one."""
        age, self._samples_age = self._samples_age, math.inf
        if self._collected is None or now - self._collected.at >= age:
            self._collected = Collected(self._sources.registry.collect(), self._sources.model)
        return self._collected

    def _daemon(self, now: float, fault: str) -> DaemonView:
        sources, fleet = self._sources, self._sources.fleet
        return DaemonView(
            version=__version__,
            pid=os.getpid(),
            url=sources.url,
            model=sources.model,
            models=list(sources.models()),
            state=state_of(
                fleet.status(), is_draining=fleet.is_draining, condition=fleet.condition
            ),
            uptime_seconds=now - sources.began,
            troubles=[*fleet.problems(), *([fault] if fault else [])],
        )
