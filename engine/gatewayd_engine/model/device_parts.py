"""Parts of all decoders of a device: of the served model, and of those that guess for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewayd_engine.kernels.quantized.scratch import SharedScratch
from gatewayd_engine.model.parts import FusedParts

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.model.linears.select_gpu import Apart


class DeviceParts:
    """Each decoder has parts of its own, and those of the start one scratch.

    Norms and gates are fused where that was timed and compared, which is in the served model alone.

    Args:
        kernels: of the device.

    Attributes:
        served: of the served model.
        is_starting: whether nothing is captured yet.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._scratch = SharedScratch()
        self.served = FusedParts(kernels, self._scratch)
        self.is_starting = True
        self._chosen_for = [self.served]

    def beside(self) -> FusedParts:
        """Parts of one model that guesses for the served one."""
        if not self.is_starting:
            # Captured steps have the addresses of what they multiply in: it must not grow.
            return FusedParts(self._kernels)
        parts = FusedParts(self._kernels, self._scratch)
        self._chosen_for.append(parts)
        return parts

    @property
    def dense(self) -> list[Apart]:
        """The matrices of floats of the start, whose products may be chosen."""
        return [matrix for parts in self._chosen_for for matrix in parts.dense]

    def seal(self) -> None:
        """Steps are going to be captured."""
        self.is_starting = False
        self._scratch.seal()
