"""Whether this machine runs the compiled CPU kernels, and their thread team."""

from __future__ import annotations

import logging
import os
from functools import cache

from gatewayd_engine.kernels.cpu.code import matmul_code
from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.kernels.llvm.library import sources_digest
from gatewayd_engine.kernels.llvm.processor import Processor, host

_log = logging.getLogger(__name__)
_teams: dict[tuple[int, int], ThreadTeam] = {}


def thread_team(size: int) -> ThreadTeam | None:
    """Return the team of this process; None, with a warning, where torch has to compute.

    Args:
        size: number of threads.
    """
    processor = _processor()
    if processor is None:
        return None
    # A forked process has none of its parent's threads.
    key = os.getpid(), size
    if key not in _teams:
        _teams[key] = ThreadTeam(processor, size)
    return _teams[key]


def kernels_name(choice: str) -> str:
    """Return what computes steps on this CPU: other names may give other bits.

    Args:
        choice: ``EngineConfig.cpu_kernels``.
    """
    processor = _processor() if choice == "auto" else None
    if processor is None:
        return "torch"
    return f"{processor.kind}, {processor.cpu}, {processor.features}, {sources_digest()}"


@cache
def _processor() -> Processor | None:
    try:
        found = host()
        if found is not None:
            # Compiled or loaded now, while there is another way to compute.
            matmul_code(found, PanelFormat("bf16"))
    # OSError: its library cannot be loaded. RuntimeError: it does not compile.
    except (ImportError, OSError, RuntimeError, LookupError) as error:
        _log.warning("compiled CPU kernels are not used, which is slower: %s", error)
        return None
    if found is None:
        _log.warning(
            "compiled CPU kernels are not used, which is slower: this processor has neither"
            " AVX2 with FMA nor NEON, or the system is neither Linux nor macOS"
        )
    return found
