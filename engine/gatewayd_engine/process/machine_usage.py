"""What the engine takes of its machine; looked at when an operator asks, once a second at most."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import torch

from gatewayd_engine.process.inspect_messages import MachineLook

EACH_SECONDS = 1.0
"""Between two looks; who asks sooner is told what the last one found."""
_STATM = Path("/proc/self/statm")

_log = logging.getLogger(__name__)


class Meter:
    """Looks at the process and at its device; no step waits for it, and the device for nothing.

    Args:
        device: where the engine computes, ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._has_utilization = self._has_memory = self._device.type == "cuda"
        self._seen: MachineLook | None = None
        self._when, self._cpu = time.monotonic(), time.process_time()

    def look(self) -> MachineLook:
        """What it takes now, or took less than a second ago."""
        now = time.monotonic()
        if self._seen is None or now - self._when >= EACH_SECONDS:
            self._seen = self._look(now)
        return self._seen

    def _look(self, now: float) -> MachineLook:
        cpu = time.process_time()
        cores = (cpu - self._cpu) / max(now - self._when, 1e-3)
        self._when, self._cpu = now, cpu
        free, total = self._memory()
        return MachineLook(
            resident_bytes=_resident(),
            cpu_seconds=cpu,
            cpu_cores=cores,
            device_used=None if total is None or free is None else total - free,
            device_total=total,
            device_utilization=self._utilization(),
        )

    def _memory(self) -> tuple[int | None, int | None]:
        """Bytes of the device that are free, and all of them."""
        if not self._has_memory:
            return None, None
        try:
            return torch.cuda.mem_get_info(self._device)
        except Exception as error:  # noqa: BLE001 - of a lost device the next step tells
            _log.warning("device memory is no longer reported: %s", error)
            self._has_memory = False
            return None, None

    def _utilization(self) -> float | None:
        """Share of the driver's last sample in which a kernel ran; it asks NVML."""
        if not self._has_utilization:
            return None
        try:
            return torch.cuda.utilization(self._device) / 100
        except Exception as error:  # noqa: BLE001 - NVML has errors of its own, and may not be there
            _log.info("device utilization is not available: %s", error)
            self._has_utilization = False
            return None


def _resident() -> int | None:
    """Bytes of memory that the process has now; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
