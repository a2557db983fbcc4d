"""Autotuning of one device: the table of known choices, and how to measure new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gatewayd_engine.tuning.cache_files import folder
from gatewayd_engine.tuning.clock import GraphClock, LaunchClock
from gatewayd_engine.tuning.machine import this_machine
from gatewayd_engine.tuning.matmul import TunedMatmul, choose_matmuls
from gatewayd_engine.tuning.matmul_candidates import Candidates, installed
from gatewayd_engine.tuning.table import TuningTable


@dataclass(frozen=True, slots=True)
class Tuning:
    """Autotuning of one device.

    Attributes:
        table: known choices.
        clock: measures candidates.
        candidates: loads the alternatives to torch's matmul.
    """

    table: TuningTable
    clock: LaunchClock
    candidates: Callable[[], Sequence[Candidates]]

    def choose_matmuls(
        self,
        matmuls: Sequence[TunedMatmul],
        sizes: Sequence[int],
        progress: Callable[[float], None],
    ) -> None:
        """See ``choose_matmuls``."""
        if matmuls and sizes:
            # Only if there is something to tune: their modules may have to be compiled.
            candidates = self.candidates()
            choose_matmuls(matmuls, sizes, candidates, self.table, self.clock, progress)


def tuning_of(device: torch.device) -> Tuning:
    """Return the autotuning of a CUDA device, cached in the user's cache folder."""
    table = TuningTable(this_machine(device), folder())
    return Tuning(table, GraphClock(device), lambda: installed(device))
