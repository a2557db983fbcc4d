"""What the engines take of their machines: of GPUs where there are any, else of the processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.wire.snapshot import EngineView
from gatewayd_tui.figures import count, percent

_GIB = 1 << 30


class Taken(NamedTuple):
    """Of one engine, or of all of them.

    Attributes:
        is_gpu: whether the numbers are those of GPUs.
        used: bytes; None where they are not known.
        total: bytes that the GPUs have; None of processes.
        busy: share of time in which GPUs compute, a mean; of processes the processors kept busy.
    """

    is_gpu: bool
    used: int | None
    total: int | None
    busy: float | None

    @property
    def memory(self) -> str:
        """``60/80G`` of a GPU, ``1.4G`` of a process; a dash for what is not known."""
        if self.used is None:
            return "-"
        of = "" if self.total is None else f"/{self.total / _GIB:.0f}"
        return f"{self.used / _GIB:.{1 if self.total is None else 0}f}{of}G"

    @property
    def work(self) -> str:
        """``83%`` of a GPU, ``1.8`` processors of a process."""
        return percent(self.busy) if self.is_gpu else count(self.busy)


def taken(engines: Sequence[EngineView]) -> Taken:
    """Of some engines; a GPU that several share counts once."""
    gpus = {one.device: one for one in engines if one.device_total is not None}
    if gpus:
        shares = [one.device_utilization for one in gpus.values()]
        known = [share for share in shares if share is not None]
        return Taken(
            True,
            sum(one.device_used or 0 for one in gpus.values()),
            sum(one.device_total or 0 for one in gpus.values()),
            sum(known) / len(known) if known else None,
        )
    resident = [one.resident_bytes for one in engines if one.resident_bytes is not None]
    cores = [one.cpu_cores for one in engines if one.cpu_cores is not None]
    return Taken(False, sum(resident) if resident else None, None, sum(cores) if cores else None)
