"""Factory of a decoder's operations on a CPU with compiled kernels."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears.panel_linear import PanelLinear, panel_linear
from gatewayd_engine.model.parts import Gate, PlainParts
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, Weight


class CompiledParts(PlainParts):
    """Panels of weights for float32; torch's operations for everything else.

    Args:
        team: threads that compute the products.
        rounds_activations: whether low-bit integer weights are multiplied with activations that
            are rounded to 8-bit integers; else with floats.
    """

    def __init__(self, team: ThreadTeam, *, rounds_activations: bool) -> None:
        self._team = team
        self._rounds_activations = rounds_activations

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> LinearOp:
        """See ``LayerParts``."""
        if isinstance(weight, SparseWeight):
            weight = weight.values  # no CPU has a sparse kernel
        if dtype == torch.float32 and isinstance(weight, torch.Tensor | GroupedWeight):
            made = panel_linear(
                *(self._team, weight, bias, activation),
                rounds_activations=self._rounds_activations,
            )
            if made is not None:
                return made
        return super().linear(weight, bias, dtype, activation)

    def gate(self, name: str, entry: LinearOp, source: LinearOp | None = None) -> Gate:
        """See ``LayerParts``."""
        if isinstance(source, PanelLinear) and source.is_gated:
            return _unchanged
        return super().gate(name, entry, source)


def _unchanged(gated: torch.Tensor) -> torch.Tensor:
    return gated
