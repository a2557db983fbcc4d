"""One model under the control of residency: its use, its loads and its footprint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import exp
from typing import Protocol

from gatewayd.catalogue.memory_budget import NOTHING, Footprint
from gatewayd.engines.api import ReplicaStatus
from gatewayd.engines.backlog import Backlog
from gatewayd.errors import GatewayError
from gatewayd_hooks.targets.residency import ResidentModel

_log = logging.getLogger(__name__)

_RATE_SECONDS = 300.0
"""Time constant of the averaged request rate."""
_STEP_BYTES = 64 << 20
_FIRST_LOAD_SECONDS = 10.0
"""Estimate of the load time before the first load."""


class SleepingFleet(Protocol):
    """Interface of a fleet whose engines are stopped and started."""

    backlog: Backlog

    @property
    def is_asleep(self) -> bool:
        """Whether it has no engines until it is woken."""

    @property
    def is_resident(self) -> bool:
        """Whether its engines are loaded."""

    @property
    def is_busy(self) -> bool:
        """Whether it has requests, or some wait for its model."""

    @property
    def is_over(self) -> bool:
        """Whether its engines have failed for good."""

    @property
    def num_submitted(self) -> int:
        """Requests since the start."""

    def status(self) -> Sequence[ReplicaStatus]:
        """Status of each replica."""

    @property
    def is_unloaded(self) -> bool:
        """Whether an operator has unloaded it, so that requests are refused."""

    @property
    def num_unfinished(self) -> int:
        """Sequences of its requests."""

    async def refresh_stats(self) -> None:
        """Ask the engines for their memory."""

    def refuse(self, error: GatewayError) -> None:
        """Fail the requests that wait for the engines."""

    async def sleep(self) -> bool:
        """Stop the engines when their requests have ended."""

    def wake(self) -> None:
        """Start the engines."""


class ManagedModel:
    """A model that is loaded and unloaded.

    Args:
        name: of the model.
        fleet: its engines.
        footprint: memory while it is loaded, by estimate or configuration.
        is_pinned: whether it is never unloaded for another.

    Attributes:
        name, fleet, is_pinned: as given.
        loads: number of loads.
        unloads: number of unloads.
        load_seconds: time of the last load; an estimate before the first.
        is_evicting: whether it is being unloaded.
    """

    def __init__(
        self, name: str, fleet: SleepingFleet, footprint: Footprint, *, is_pinned: bool
    ) -> None:
        self.name = name
        self.fleet = fleet
        self.is_pinned = is_pinned
        self.loads = self.unloads = 0
        self.load_seconds = _FIRST_LOAD_SECONDS
        self.is_evicting = False
        self._footprint = footprint
        self._rate = 0.0
        self._counted = 0
        self._observed = self._used = 0.0
        self._woken: float | None = None  # while it loads
        self._ready = 0.0

    @property
    def footprint(self) -> Footprint:
        """Memory while it is loaded."""
        return self._footprint

    @property
    def held(self) -> Footprint:
        """Memory that it holds now, or is about to hold."""
        is_gone = (self.fleet.is_asleep and not self.is_evicting) or self.fleet.is_over
        return NOTHING if is_gone else self._footprint

    def observe(self, now: float) -> None:
        """Record what has changed since the last call; called a few times a second."""
        fleet = self.fleet
        if fleet.is_busy:
            self._used = now
        elapsed, self._observed = now - self._observed, now
        count, self._counted = fleet.num_submitted - self._counted, fleet.num_submitted
        if elapsed > 0:
            weight = 1 - exp(-elapsed / _RATE_SECONDS)
            self._rate += weight * (count / elapsed - self._rate)
        if self._woken is not None and fleet.is_resident:
            self.load_seconds, self._woken, self._ready = now - self._woken, None, now
        self._measure()

    def wake(self, now: float) -> None:
        """Load it."""
        self.loads += 1
        self._woken = now
        self.fleet.wake()

    def loaded_seconds(self, now: float) -> float:
        """Time since it was loaded; 0 unless it is."""
        return now - self._ready if self.fleet.is_resident else 0.0

    def remaining_seconds(self, now: float) -> float:
        """Forecast of the rest of its load."""
        begun = 0.0 if self._woken is None else now - self._woken
        return max(1.0, self.load_seconds - begun)

    def view(self, now: float) -> ResidentModel:
        """Describe it for the strategy."""
        return ResidentModel(
            name=self.name,
            memory=self._footprint.main,
            load_seconds=self.load_seconds,
            num_requests=self.fleet.num_submitted,
            request_rate=self._rate,
            idle_seconds=0.0 if self.fleet.is_busy else now - self._used,
            num_running=self.fleet.num_unfinished,
        )

    def _measure(self) -> None:
        """Raise the footprint to what the engines have been seen to take."""
        host = device = 0
        for replica in self.fleet.status():
            if (machine := replica.machine) is not None:
                host += machine.resident_bytes or 0
                device += machine.device_used or 0
        own = self._footprint
        # Device figures are of the whole device, which other models may share: not taken.
        if host > own.host:
            # In steps, so that slow growth is not logged again and again.
            host = -(-host // _STEP_BYTES) * _STEP_BYTES
            _log.info(
                "the model %s takes more than the estimate of %d MiB of host memory: %d MiB count",
                self.name,
                own.host >> 20,
                host >> 20,
            )
            self._footprint = Footprint(host, own.device)
