"""The processor that a comparison runs on, and the kind whose table its figures belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gatewayd_engine.kernels.llvm import processor
from tests.bench import report

_KINDS = {"avx2": "AVX2", "avx512": "AVX-512", "neon": "NEON"}


def described() -> dict[str, Any]:
    """The machine and its processor's kind."""
    try:
        host = processor.host()
    except ImportError:
        host = None
    info = Path("/proc/cpuinfo")
    flags = info.read_text() if info.exists() else ""
    name = name_of(None if host is None else host.kind, flags)
    found = report.machine() | {"kind": None if host is None else host.kind, "name": name}
    if host is not None:
        # The model's name alone may be no more than the brand.
        found["cpu"] = f"{found['cpu']} ({host.cpu})"
    return found


def name_of(kind: str | None, flags: str) -> str:
    """Heading of a kind of processor.

    Args:
        kind: ``Processor.kind``; None where no kernels are written for it.
        flags: text with the flags of ``/proc/cpuinfo``.
    """
    if kind is None:
        return "in torch"
    # The kernels use no matrix unit yet, but llama.cpp and torch do.
    return _KINDS[kind] + (" with AMX" if "amx_tile" in flags.split() else "")
