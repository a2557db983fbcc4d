"""Resource usage of the engine process; measured on request, once a second at most."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import torch

from gatewayd_engine.process.inspect_messages import MachineStats

EACH_SECONDS = 1.0
"""Interval below which the last measurement is returned again."""
_STATM = Path("/proc/self/statm")

_log = logging.getLogger(__name__)


class UsageMeter:
    """Meter of the process and its device, which never synchronises with the device.

    Args:
        device: device of the engine, ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._has_utilization = self._has_memory = self._device.type == "cuda"
        self._seen: MachineStats | None = None
        self._when, self._cpu = time.monotonic(), time.process_time()

    def look(self) -> MachineStats:
        """Return the current usage, or a measurement less than a second old."""
        now = time.monotonic()
        if self._seen is None or now - self._when >= EACH_SECONDS:
            self._seen = self._look(now)
        return self._seen

    def _look(self, now: float) -> MachineStats:
        cpu = time.process_time()
        cores = (cpu - self._cpu) / max(now - self._when, 1e-3)
        self._when, self._cpu = now, cpu
        free, total = self._memory()
        return MachineStats(
            resident_bytes=_resident(),
            cpu_seconds=cpu,
            cpu_cores=cores,
            device_used=None if total is None or free is None else total - free,
            device_total=total,
            device_utilization=self._utilization(),
        )

    def _memory(self) -> tuple[int | None, int | None]:
        """Return the free and the total bytes of device memory."""
        if not self._has_memory:
            return None, None
        try:
            return torch.cuda.mem_get_info(self._device)
        except Exception as error:  # noqa: BLE001 - the next step reports a lost device
            _log.warning("device memory is no longer reported: %s", error)
            # Reported once, not with every measurement.
            self._has_memory = False
            return None, None

    def _utilization(self) -> float | None:
        """Return the share of the driver's last sample in which a kernel ran, from NVML."""
        if not self._has_utilization:
            return None
        try:
            return torch.cuda.utilization(self._device) / 100
        except Exception as error:  # noqa: BLE001 - NVML may be missing, and has its own errors
            _log.info("device utilization is not available: %s", error)
            self._has_utilization = False
            return None


def _resident() -> int | None:
    """Return the resident memory in bytes; None where the system does not report it."""
    try:
        # The second field is the resident set, in pages.
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
