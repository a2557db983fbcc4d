"""Resource usage of engines: of their GPUs if there are any, else of their processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.wire.snapshot import EngineView
from gatewayd_tui.figures import count, percent

_GIB = 1 << 30


class MachineUsage(NamedTuple):
    """Resource usage of one or several engines.

    Attributes:
        is_gpu: whether the numbers are of GPUs, not of processes.
        used: memory in bytes; None if unknown.
        total: memory of the GPUs in bytes; None for processes.
        busy: mean share of time in which the GPUs compute; for processes the CPU cores in use.
    """

    is_gpu: bool
    used: int | None
    total: int | None
    busy: float | None

    @property
    def memory(self) -> str:
        """Memory as text: ``60/80G`` of a GPU, ``1.4G`` of a process; a dash if unknown."""
        if self.used is None:
            return "-"
        of = "" if self.total is None else f"/{self.total / _GIB:.0f}"
        return f"{self.used / _GIB:.{1 if self.total is None else 0}f}{of}G"

    @property
    def work(self) -> str:
        """Utilization as text: ``83%`` of a GPU, ``1.8`` CPU cores of a process."""
        return percent(self.busy) if self.is_gpu else count(self.busy)


def usage_of(engines: Sequence[EngineView]) -> MachineUsage:
    """Return the usage of engines; a GPU that several engines share counts once."""
    # By device: engines that share a GPU report the same memory.
    gpus = {one.device: one for one in engines if one.device_total is not None}
    if gpus:
        shares = [one.device_utilization for one in gpus.values()]
        known = [share for share in shares if share is not None]
        return MachineUsage(
            True,
            sum(one.device_used or 0 for one in gpus.values()),
            sum(one.device_total or 0 for one in gpus.values()),
            sum(known) / len(known) if known else None,
        )
    resident = [one.resident_bytes for one in engines if one.resident_bytes is not None]
    cores = [one.cpu_cores for one in engines if one.cpu_cores is not None]
    return MachineUsage(
        False, sum(resident) if resident else None, None, sum(cores) if cores else None
    )
