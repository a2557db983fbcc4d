"""Layer operations of all decoders on a GPU: of the served model and of draft models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewayd_engine.kernels.quantized.scratch import SharedScratch
from gatewayd_engine.model.parts import FusedParts

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear


class DeviceParts:
    """Factory of ``FusedParts``, one for each decoder; those made at startup share a scratch.

    Norms and gates are fused into matrix products only in the served model, where the start-up
    tuner times and checks them.

    Args:
        kernels: of the device.

    Attributes:
        served: parts of the served model.
        is_starting: whether no CUDA graph has been captured yet.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._scratch = SharedScratch()
        self.served = FusedParts(kernels, self._scratch)
        self.is_starting = True
        self._chosen_for = [self.served]

    def draft_parts(self) -> FusedParts:
        """Make the parts of a draft model that is loaded alongside the served one."""
        if not self.is_starting:
            # Captured graphs hold the addresses of the shared scratch, so it must not grow.
            return FusedParts(self._kernels)
        parts = FusedParts(self._kernels, self._scratch)
        self._chosen_for.append(parts)
        return parts

    @property
    def dense(self) -> list[DenseGpuLinear]:
        """The float matrices made at startup, whose kernels can be tuned."""
        return [matrix for parts in self._chosen_for for matrix in parts.dense]

    def seal(self) -> None:
        """Fix the size of the shared scratch before CUDA graphs are captured."""
        self.is_starting = False
        self._scratch.seal()
