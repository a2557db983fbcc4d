"""Description of the machine that figures were measured on."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

from gatewayd.runtime.cpu_count import available_cores
from gatewayd_hooks.helpers import children

_SECONDS = 20.0


def gpu_names() -> list[str]:
    """Return the names of NVIDIA GPUs as reported by the driver; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = children.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def computes_on(device: str) -> str:
    """Return the name of the GPU of an engine's device; empty for a CPU.

    ``cuda:1`` is an index among the devices visible to the process, which the driver does not know;
    if there are different GPUs, all names are returned.
    """
    if not device.startswith("cuda"):
        return ""
    return ", ".join(sorted(set(gpu_names()))) or "an unknown GPU"


def processor() -> str:
    """Return the name of the CPU and the number of available cores."""
    name = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {available_cores()} cores"
