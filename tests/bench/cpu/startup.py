"""Start of a server: time until it is ready and until its first token, and peak memory."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from gatewayd.cli.bench.workload import RequestShape
from tests.bench.cpu import load
from tests.bench.cpu.contestants import Contestants
from tests.bench.cpu.models import ServedFile
from tests.bench.cpu.workloads import Workload

_IDS = list(range(300, 364))
_FIRST = Workload("decode", "first", RequestShape(prompt_tokens=8, output_tokens=2), 1, 1, 0)


def figures(
    contestants: Contestants, name: str, file: ServedFile, kernels: Path
) -> dict[str, float]:
    """Start a server once, send it a request, and stop it.

    Peak memory is what its processes have held together at most, mapped files included; pages that
    several of them share count once for each.
    """
    with tempfile.TemporaryDirectory() as logs:
        began = time.perf_counter()
        with contestants.start(name, file, 1, Path(logs) / "server.log", kernels) as server:
            ready = time.perf_counter() - began
            peak_loading = _peak(server.pid)
            load.figures(server.url, _FIRST, _IDS, "start")
            first = time.perf_counter() - began
    return {"ready, s": ready, "first answer, s": first, "peak MiB": peak_loading}


def _peak(pid: int) -> float:
    """Peak memory of a process and all below it, MiB; 0 where there is no ``/proc``."""
    process = Path(f"/proc/{pid}")
    try:
        lines = (process / "status").read_text().splitlines()
        below = [
            int(child)
            for task in (process / "task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0
    own = sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
    return own + sum(map(_peak, below))
