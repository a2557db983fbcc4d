"""Checks of the GPU and its driver, without importing torch, which takes seconds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.device_defaults import sizes
from gatewayd.config.tables import Config
from gatewayd_hooks.helpers import children

_DRIVER = Path("/proc/driver/nvidia/version")
_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
_DRIVER_VERSION = re.compile(r"Kernel Module\D*([\d.]+)")
_LEAST = {12: 525, 13: 580}
"""Minimum major version of the driver, by the major version of torch's CUDA."""


class GpuMachine(NamedTuple):
    """GPU hardware and software of this machine.

    Attributes:
        gpus: nvidia-smi's line for each GPU.
        driver: version of the driver; empty if there is none.
        cuda: CUDA version of torch; empty for a CPU build.
    """

    gpus: tuple[str, ...]
    driver: str
    cuda: str


def gpu(config: Config) -> Finding:
    """Check that the configured GPU exists and that its driver is new enough for torch."""
    return judge(sizes(config.engine).device, query_machine())


def query_machine() -> GpuMachine:
    """Query the driver and torch's package files."""
    lines: list[str] = []
    if shutil.which(_QUERY[0]):
        try:
            done = children.run(_QUERY, capture_output=True, text=True, timeout=30, check=True)
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        except (OSError, subprocess.SubprocessError):
            lines = []
    driver = ""
    if _DRIVER.exists() and (found := _DRIVER_VERSION.search(_DRIVER.read_text())):
        driver = found[1]
    elif lines:
        driver = lines[0].rpartition(",")[2].strip()
    return GpuMachine(tuple(lines), driver, _cuda_of_torch())


def judge(device: str, machine: GpuMachine) -> Finding:
    """Check whether engines can use a device.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        machine: GPUs and software to check against.
    """
    gpus, driver, cuda = machine
    shown = "; ".join(gpus) or "no NVIDIA GPU"
    if device == "cpu":
        if gpus and not cuda:
            text = f"{shown}, not used: torch is built for CPUs; install a CUDA build"
            return Finding("gpu", "warning", text)
        return Finding("gpu", "ok", f"{shown}; engines run on the CPU")
    if not driver:
        text = f"[engine] device is {device}, and the NVIDIA driver is not loaded"
        return Finding("gpu", "failure", text)
    if not cuda:
        text = f"[engine] device is {device}, and torch is built for CPUs; install a CUDA build"
        return Finding("gpu", "failure", text)
    index = int(device.partition(":")[2] or 0)
    # Without nvidia-smi the number of GPUs is unknown.
    if gpus and index >= len(gpus):
        return Finding("gpu", "failure", f"[engine] device is {device}, and there is {shown}")
    least = _LEAST.get(int(cuda.partition(".")[0]), 0)
    if int(driver.partition(".")[0]) < least:
        text = f"driver {driver}; torch for CUDA {cuda} needs {least} or later"
        return Finding("gpu", "failure", text)
    missing = [name for name in ("triton", "flashinfer") if importlib.util.find_spec(name) is None]
    text = f"{shown}; driver {driver}, torch for CUDA {cuda}"
    if missing:
        advice = "pip install 'gatewayd[gpu]'"
        return Finding("gpu", "warning", f"{text}; without {', '.join(missing)}, slow: {advice}")
    return Finding("gpu", "ok", text)


def _cuda_of_torch() -> str:
    """Return torch's CUDA version such as ``12.8``; empty for a CPU build or without torch."""
    try:
        files = importlib.metadata.files("torch") or []
        # Raises ValueError unless there is exactly one.
        (file,) = [file for file in files if str(file) == "torch/version.py"]
        text = file.read_text()
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return ""
    found = re.search(r"^cuda\b.*= '([\d.]+)'", text, re.MULTILINE)
    return found[1] if found else ""
