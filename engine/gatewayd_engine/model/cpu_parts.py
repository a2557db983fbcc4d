"""Factory of a decoder's operations on a CPU with compiled kernels."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears.panel_linear import PanelLinear
from gatewayd_engine.model.parts import Gate, PlainParts
from gatewayd_hooks.quantization import SparseWeight, Weight


class CompiledParts(PlainParts):
    """Panels of weights for float32; torch's operations for everything else.

    Args:
        team: threads that compute the products.
    """

    def __init__(self, team: ThreadTeam) -> None:
        self._team = team

    def linear(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """See ``LayerParts``."""
        if isinstance(weight, SparseWeight):
            weight = weight.values  # no CPU has a sparse kernel
        if isinstance(weight, torch.Tensor) and dtype == torch.float32:
            return PanelLinear(self._team, weight, bias)
        return super().linear(weight, bias, dtype)

    def gate(self, name: str, entry: LinearOp, source: LinearOp | None = None) -> Gate:
        """See ``LayerParts``."""
        if isinstance(source, PanelLinear) and source.fuse_gate(name):
            return _unchanged
        return super().gate(name, entry, source)


def _unchanged(gated: torch.Tensor) -> torch.Tensor:
    return gated
